/* SPDX-License-Identifier: Apache-2.0 */
/* See mpi_start.h. A thread watches MPI_Finalize, which cannot be interrupted. */
#include "comm/mpi_start.h"

#include <errno.h>
#include <math.h>
#include <mpi.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

enum { FAILED_END_SECONDS = 2 };

struct watch {
    double seconds;
    struct job_status *job_status; /* NULL: an error is recorded already */
    struct fsdpck_error error;
};

int mpi_start(uint32_t rank, uint32_t nranks, struct fsdpck_error *err)
{
    int provided = 0, mine = -1, all = -1;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS)
        return fsdpck_error_set(err, FSDPCK_ERR_IO, NULL, "MPI does not start");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &mine);
    MPI_Comm_size(MPI_COMM_WORLD, &all);
    if (provided < MPI_THREAD_MULTIPLE)
        return fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, NULL,
                                "this MPI cannot be called by several threads (MPI_THREAD_MULTIPLE)");
    if ((uint32_t)mine != rank || (uint32_t)all != nranks)
        return fsdpck_error_set(
            err, FSDPCK_ERR_UNSUPPORTED, NULL,
            "the launcher says rank %u of %u, MPI says %d of %d: it is not the launcher of the MPI that fsdptrain is "
            "built with",
            rank, nranks, mine, all);
    return 0;
}

static void *watch(void *arg)
{
    struct watch *w = arg;
    const double whole = floor(w->seconds);
    const struct timespec t = { .tv_sec = (time_t)whole, .tv_nsec = (long)((w->seconds - whole) * 1e9) };
    nanosleep(&t, NULL);
    if (w->job_status)
        job_status_fail(w->job_status, &w->error);
    _exit(1);
}

/* w: must live until the process ends. If the thread cannot start, the end is not bounded. */
static void finalize(struct watch *w)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, watch, w) == 0)
        pthread_detach(thread);
    MPI_Finalize();
}

void mpi_end(struct job_status *job_status, uint32_t rank, uint32_t nranks)
{
    static struct watch w;
    w = (struct watch){ .seconds = job_status_patience(job_status), .job_status = job_status };
    fsdpck_error_set(&w.error, FSDPCK_ERR_IO, NULL,
                     "rank %u of %u waited %.0f s for the end of MPI: a rank was lost after the last step; everything "
                     "is saved",
                     rank, nranks, w.seconds);
    w.error.sys_errno = ETIMEDOUT;
    finalize(&w);
}

void mpi_end_after_failure(void)
{
    static struct watch w = { .seconds = FAILED_END_SECONDS };
    finalize(&w);
}
