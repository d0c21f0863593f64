/* SPDX-License-Identifier: Apache-2.0 */
/* Messages between two ranks, separate from those of the lanes. ALARM carries an error; ACK answers it and says whether
 * the receiver has failed by itself; ASK and HERE are the roll call. Every wait is bounded: a stopped rank never
 * answers. */
#include "comm/mpi_alarm.h"

#include <errno.h>
#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

enum { ALARM = 2, ACK, ASK, HERE }; /* tags in MPI_COMM_WORLD */
enum { POLL_MS = 10, ANSWER_MS = 4000 };

struct mpi_alarm {
    struct job_status *job_status;
    uint32_t rank, nranks;
    pthread_t thread;
    pthread_mutex_t roll; /* serialises roll calls */
    _Atomic bool ending, done, waiting;
    struct fsdpck_error error; /* the error to send */
    MPI_Request *_Atomic acks; /* (nranks); NULL: nothing has been sent */
    uint32_t *failed_too;      /* (nranks) */
    _Atomic bool *silent;      /* (nranks) did not answer a roll call; not asked again */
    long sent_ms;              /* time since the alarm was sent */
};

static void nap(void)
{
    const struct timespec t = { .tv_nsec = POLL_MS * 1000000L };
    nanosleep(&t, NULL);
}

/* Does not wait: the message is short, and the process may end before it is sent. */
static void send(const void *data, size_t nbytes, uint32_t to, int tag)
{
    MPI_Request request;
    if (MPI_Isend(data, (int)nbytes, MPI_BYTE, (int)to, tag, MPI_COMM_WORLD, &request) == MPI_SUCCESS)
        MPI_Request_free(&request);
}

static bool take(int tag, void *data, size_t nbytes, uint32_t *from)
{
    MPI_Message message;
    MPI_Status status;
    int there = 0;
    if (MPI_Improbe(MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, &there, &message, &status) != MPI_SUCCESS || !there)
        return false;
    *from = (uint32_t)status.MPI_SOURCE;
    return MPI_Mrecv(data, (int)nbytes, MPI_BYTE, &message, MPI_STATUS_IGNORE) == MPI_SUCCESS;
}

static void take_alarms(struct mpi_alarm *a)
{
    static const uint32_t answers[] = { 0, 1 }; /* static, because send() does not copy them */
    struct fsdpck_error err;
    uint32_t from;
    while (take(ALARM, &err, sizeof err, &from))
        send(&answers[!job_status_adopt(a->job_status, &err)], sizeof answers[0], from, ACK);
}

static void answer(struct mpi_alarm *a)
{
    static const uint32_t places[] = { 0, 1 };
    uint32_t from;
    while (take(ASK, NULL, 0, &from))
        send(&places[atomic_load(&a->waiting)], sizeof places[0], from, HERE);
}

static void raise_alarm(struct mpi_alarm *a)
{
    MPI_Request *acks = malloc(a->nranks * sizeof *acks);
    for (uint32_t r = 0; r < a->nranks && acks; r++) {
        acks[r] = MPI_REQUEST_NULL;
        if (r == a->rank)
            continue;
        MPI_Irecv(&a->failed_too[r], sizeof a->failed_too[r], MPI_BYTE, (int)r, ACK, MPI_COMM_WORLD, &acks[r]);
        send(&a->error, sizeof a->error, r, ALARM);
    }
    a->acks = acks;
    atomic_store(&a->done, !acks);
}

static bool all_answered(struct mpi_alarm *a)
{
    for (uint32_t r = 0; r < a->nranks; r++) {
        int there = 0;
        if (!atomic_load(&a->silent[r]) && MPI_Test(&a->acks[r], &there, MPI_STATUS_IGNORE) == MPI_SUCCESS && !there)
            return false;
    }
    return true;
}

/* Waits for the answers. If a lower rank has failed by itself, it reports for both. */
static void take_acks(struct mpi_alarm *a)
{
    a->sent_ms += POLL_MS;
    if (!all_answered(a) && a->sent_ms < ANSWER_MS)
        return;
    for (uint32_t r = 0; r < a->rank; r++) {
        if (a->failed_too[r] == 1)
            job_status_mute(a->job_status);
    }
    atomic_store(&a->done, true);
}

static void *run(void *arg)
{
    struct mpi_alarm *a = arg;
    while (!atomic_load(&a->ending)) {
        take_alarms(a);
        answer(a);
        if (a->acks && !atomic_load(&a->done))
            take_acks(a);
        else if (!a->acks && !job_status_is_muted(a->job_status) && job_status_error(a->job_status, &a->error))
            raise_alarm(a);
        nap();
    }
    return NULL;
}

static void free_alarm(struct mpi_alarm *a)
{
    pthread_mutex_destroy(&a->roll);
    free(a->failed_too);
    free(a->silent);
    free(a->acks);
    free(a);
}

int mpi_alarm_start(struct job_status *job_status, uint32_t rank, uint32_t nranks, struct mpi_alarm **out,
                    struct fsdpck_error *err)
{
    struct mpi_alarm *a = calloc(1, sizeof *a);
    *out = NULL;
    if (!a)
        return fsdpck_error_nomem(err, sizeof *a);
    a->failed_too = calloc(nranks, sizeof *a->failed_too);
    a->silent = calloc(nranks, sizeof *a->silent);
    a->job_status = job_status;
    a->rank = rank;
    a->nranks = nranks;
    pthread_mutex_init(&a->roll, NULL);
    int failed = !a->failed_too || !a->silent ? ENOMEM : pthread_create(&a->thread, NULL, run, a);
    if (failed)
        free_alarm(a);
    else
        *out = a;
    return failed ? fsdpck_error_sys(err, failed, NULL, "pthread_create") : 0;
}

void mpi_alarm_end(struct mpi_alarm *a)
{
    if (!a)
        return;
    atomic_store(&a->ending, true);
    pthread_join(a->thread, NULL);
    free_alarm(a);
}

void mpi_alarm_wait(struct mpi_alarm *a)
{
    for (long ms = 0; ms < 2 * ANSWER_MS && !atomic_load(&a->done) && !(job_status_is_muted(a->job_status) && !a->acks);
         ms += POLL_MS)
        nap();
}

void mpi_alarm_waiting(struct mpi_alarm *a, bool waiting)
{
    atomic_store(&a->waiting, waiting);
}

/* places: (nranks) 0: works, 1: waits, 2: no answer. */
static void call_roll(struct mpi_alarm *a, uint32_t *places, MPI_Request *requests)
{
    int all = 0;
    for (uint32_t r = 0; r < a->nranks; r++) {
        places[r] = r == a->rank ? 1 : 2;
        requests[r] = MPI_REQUEST_NULL;
        if (r == a->rank)
            continue;
        MPI_Irecv(&places[r], sizeof places[r], MPI_BYTE, (int)r, HERE, MPI_COMM_WORLD, &requests[r]);
        send(NULL, 0, r, ASK);
    }
    for (long ms = 0; ms < ANSWER_MS && !all; ms += POLL_MS) {
        if (MPI_Testall((int)a->nranks, requests, &all, MPI_STATUSES_IGNORE) != MPI_SUCCESS)
            return;
        nap();
    }
    for (uint32_t r = 0; r < a->nranks; r++) {
        atomic_store(&a->silent[r], places[r] == 2);
        if (requests[r] != MPI_REQUEST_NULL && !all)
            MPI_Cancel(&requests[r]);
    }
}

static uint32_t first_that(const struct mpi_alarm *a, const uint32_t *places, uint32_t is)
{
    uint32_t r = 0;
    while (r < a->nranks && places[r] != is)
        r++;
    return r;
}

uint32_t mpi_alarm_find_late(struct mpi_alarm *a, uint32_t pending)
{
    uint32_t *places = calloc(a->nranks, sizeof *places), late = pending;
    MPI_Request *requests = calloc(a->nranks, sizeof *requests);
    pthread_mutex_lock(&a->roll);
    if (places && requests) {
        call_roll(a, places, requests);
        late = first_that(a, places, 2);
        late = late < a->nranks ? late : first_that(a, places, 0);
        late = late < a->nranks ? late : pending;
    }
    pthread_mutex_unlock(&a->roll);
    free(requests); /* `places` is leaked: a late answer may still write to it, and the run ends now */
    return late;
}
