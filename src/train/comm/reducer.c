/* One thread, one mutex, two counters that only grow: exchanges that were started, and those that are over. */
#include "comm/reducer.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct reducer {
    struct comm *comm;
    pthread_t thread;
    bool running;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under the lock */
    struct reducer_job jobs[REDUCER_JOBS]; /* job i is jobs[i % REDUCER_JOBS] */
    uint64_t started, over;
    bool ending;
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

static void do_next(struct reducer *r)
{
    const struct reducer_job job = r->jobs[r->over % REDUCER_JOBS];
    struct fsdpck_error err = { 0 };
    bool failed = r->error.code;
    uint64_t started = comm_now_ns();
    pthread_mutex_unlock(&r->lock);
    int rc = failed ? 0 : exchange(r->comm, &job, &err);
    pthread_mutex_lock(&r->lock);
    r->times.busy_ns += comm_now_ns() - started;
    if (rc)
        r->error = err;
    r->over++;
    pthread_cond_broadcast(&r->changed);
}

static void *exchange_behind(void *arg)
{
    struct reducer *r = arg;
    pthread_mutex_lock(&r->lock);
    while (!r->ending) {
        if (r->over < r->started)
            do_next(r);
        else
            pthread_cond_wait(&r->changed, &r->lock);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

int reducer_new(struct comm *comm, struct reducer **out, struct fsdpck_error *err)
{
    struct reducer *r = calloc(1, sizeof *r);
    *out = NULL;
    if (!r)
        return fsdpck_error_nomem(err, sizeof *r);
    r->comm = comm;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    int failed = pthread_create(&r->thread, NULL, exchange_behind, r);
    r->running = !failed;
    if (failed) {
        reducer_free(r);
        return fsdpck_error_sys(err, failed, NULL, "pthread_create");
    }
    *out = r;
    return 0;
}

void reducer_free(struct reducer *r)
{
    if (!r)
        return;
    if (r->running) {
        pthread_mutex_lock(&r->lock);
        r->ending = true;
        pthread_cond_broadcast(&r->changed);
        pthread_mutex_unlock(&r->lock);
        pthread_join(r->thread, NULL);
    }
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

void reducer_start(struct reducer *r, const struct reducer_job *job)
{
    pthread_mutex_lock(&r->lock);
    r->jobs[r->started++ % REDUCER_JOBS] = *job;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

int reducer_wait(struct reducer *r, uint32_t left, struct fsdpck_error *err)
{
    uint64_t started = comm_now_ns();
    pthread_mutex_lock(&r->lock);
    while (r->started - r->over > left)
        pthread_cond_wait(&r->changed, &r->lock);
    r->times.waited_ns += comm_now_ns() - started;
    int rc = r->error.code;
    if (rc && err)
        *err = r->error;
    pthread_mutex_unlock(&r->lock);
    return rc;
}

struct reducer_times reducer_times(const struct reducer *r)
{
    struct reducer *lock = (struct reducer *)r; /* the lock is no part of what is read */
    pthread_mutex_lock(&lock->lock);
    struct reducer_times t = r->times;
    pthread_mutex_unlock(&lock->lock);
    return t;
}
