/* One worker, two counters that only grow: exchanges that were started, and those that are over. */
#include "comm/reducer.h"

#include <stdlib.h>
#include <string.h>

#include "comm/worker.h"

struct reducer {
    struct comm *comm;
    struct worker worker;
    /* under its lock */
    struct reducer_job jobs[REDUCER_JOBS]; /* job i is jobs[i % REDUCER_JOBS] */
    uint64_t started, over;
    struct reducer_times times;
    struct fsdpck_error error; /* the first; what comes after it is over at once */
};

void reducer_clean(struct comm *comm, const struct comm_slice *slices, size_t nslices)
{
    for (size_t i = 0; i < nslices; i++)
        memset(comm->contribution + slices[i].at, 0, (size_t)slices[i].nelem * sizeof(float));
}

static int exchange(struct comm *comm, const struct reducer_job *job, struct fsdpck_error *err)
{
    int rc = comm->ops->exchange(comm, job->slices, job->nslices, job->ncontributions, job->first, err);
    if (!rc && job->clean)
        reducer_clean(comm, job->slices, job->nslices);
    return rc;
}

static bool do_next(void *ctx)
{
    struct reducer *r = ctx;
    if (r->over == r->started)
        return false;
    const struct reducer_job job = r->jobs[r->over % REDUCER_JOBS];
    struct fsdpck_error err = { 0 };
    bool failed = r->error.code;
    uint64_t started = comm_now_ns();
    pthread_mutex_unlock(&r->worker.lock);
    int rc = failed ? 0 : exchange(r->comm, &job, &err);
    pthread_mutex_lock(&r->worker.lock);
    r->times.busy_ns += comm_now_ns() - started;
    if (rc)
        r->error = err;
    r->over++;
    pthread_cond_broadcast(&r->worker.changed);
    return true;
}

int reducer_new(struct comm *comm, struct reducer **out, struct fsdpck_error *err)
{
    struct reducer *r = calloc(1, sizeof *r);
    *out = NULL;
    if (!r)
        return fsdpck_error_nomem(err, sizeof *r);
    r->comm = comm;
    int rc = worker_start(&r->worker, do_next, r, err);
    if (rc)
        free(r);
    else
        *out = r;
    return rc;
}

void reducer_free(struct reducer *r)
{
    if (!r)
        return;
    worker_stop(&r->worker);
    free(r);
}

void reducer_start(struct reducer *r, const struct reducer_job *job)
{
    pthread_mutex_lock(&r->worker.lock);
    r->jobs[r->started++ % REDUCER_JOBS] = *job;
    pthread_cond_broadcast(&r->worker.changed);
    pthread_mutex_unlock(&r->worker.lock);
}

int reducer_wait(struct reducer *r, uint32_t left, struct fsdpck_error *err)
{
    uint64_t started = comm_now_ns();
    pthread_mutex_lock(&r->worker.lock);
    while (r->started - r->over > left)
        pthread_cond_wait(&r->worker.changed, &r->worker.lock);
    r->times.waited_ns += comm_now_ns() - started;
    int rc = r->error.code;
    if (rc && err)
        *err = r->error;
    pthread_mutex_unlock(&r->worker.lock);
    return rc;
}

struct reducer_times reducer_times(const struct reducer *r)
{
    struct reducer *lock = (struct reducer *)r; /* the lock is no part of what is read */
    pthread_mutex_lock(&lock->worker.lock);
    struct reducer_times t = r->times;
    pthread_mutex_unlock(&lock->worker.lock);
    return t;
}
