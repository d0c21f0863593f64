/* SPDX-License-Identifier: Apache-2.0 */
/* At most one worker thread, and two counters that only grow: exchanges started, and exchanges completed (or awaited by
 * the compute stream). */
#include "comm/reducer.h"

#include <stdlib.h>
#include <string.h>

#include <kernels/memory.h>

#include "comm/stream_timer.h"
#include "comm/worker.h"

struct reducer {
    struct comm *comm;
    struct reducer_device on; /* used if comm launches */
    struct kern_event *made, *done[REDUCER_JOBS];
    uint32_t ngroups;
    struct stream_timer *stalls; /* if comm launches: stalls of the compute stream, waiting for exchanges, by group */
    uint64_t *waited_ns;         /* (ngroups) else: the caller's waits for exchanges */
    struct worker worker;
    /* guarded by the worker's lock */
    struct reducer_job jobs[REDUCER_JOBS]; /* job i is jobs[i % REDUCER_JOBS] */
    uint64_t started, over;
    struct reducer_times times;
    struct fsdpck_error error; /* the first error; later exchanges are skipped */
};

void reducer_clean(struct comm *comm, const struct comm_slice *slices, size_t nslices)
{
    for (size_t i = 0; i < nslices; i++)
        memset(comm->contribution + slices[i].at, 0, (size_t)slices[i].nelem * sizeof(float));
}

/* An exchange for each run of slices with one dtype. Their order is the same on all ranks. */
static int exchange_by_dtype(struct comm *comm, const struct reducer_job *job, struct fsdpck_error *err)
{
    int rc = 0;
    for (size_t i = 0, end; i < job->nslices && !rc; i = end) {
        comm->reduce = job->slices[i].reduce;
        for (end = i + 1; end < job->nslices && job->slices[end].reduce == comm->reduce;)
            end++;
        rc = comm->ops->exchange(comm, job->slices + i, end - i, job->ncontributions, job->first, err);
    }
    return rc;
}

int reducer_exchange(struct comm *comm, const struct reducer_job *job, struct fsdpck_error *err)
{
    const struct reducer_sums *sums = &job->sums;
    int rc = sums->begin ? sums->begin(sums->ctx, job->group, job->first, err) : 0;
    if (!rc)
        rc = exchange_by_dtype(comm, job, err);
    return rc || !sums->end ? rc : sums->end(sums->ctx, job->group, err);
}

static int exchange(struct comm *comm, const struct reducer_job *job, struct fsdpck_error *err)
{
    int rc = reducer_exchange(comm, job, err);
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

static int make_events(struct reducer *r, struct fsdpck_error *err)
{
    struct kern_event **events[] = { &r->made, &r->done[0], &r->done[1] };
    char message[KERN_MESSAGE_BYTES];
    _Static_assert(REDUCER_JOBS == 2, "an event a job");
    for (size_t i = 0; i < sizeof events / sizeof *events; i++) {
        if (r->on.device->event_new(r->on.index, false, events[i], message) != KERN_OK)
            return fsdpck_error_set(err, FSDPCK_ERR_NOMEM, NULL, "events of exchanges: %s", message);
    }
    return 0;
}

int reducer_new(struct comm *comm, const struct reducer_device *on, uint32_t ngroups, struct reducer **out,
                struct fsdpck_error *err)
{
    struct reducer *r = calloc(1, sizeof *r);
    *out = NULL;
    if (!r)
        return fsdpck_error_nomem(err, sizeof *r);
    r->comm = comm;
    r->ngroups = ngroups;
    r->waited_ns = calloc(ngroups, sizeof *r->waited_ns);
    if (comm->launches)
        r->on = *on;
    int rc = worker_start(&r->worker, comm->launches ? NULL : do_next, r, err);
    if (!rc && !r->waited_ns)
        rc = fsdpck_error_nomem(err, ngroups * sizeof *r->waited_ns);
    if (!rc && comm->launches)
        rc = make_events(r, err);
    if (!rc && comm->launches)
        rc = stream_timer_new(on->device, on->index, ngroups, STREAM_TIMER_INTERVALS, &r->stalls, err);
    if (rc)
        reducer_free(r);
    else
        *out = r;
    return rc;
}

void reducer_free(struct reducer *r)
{
    if (!r)
        return;
    worker_stop(&r->worker);
    if (r->on.device) {
        r->on.device->event_free(r->made);
        r->on.device->event_free(r->done[0]);
        r->on.device->event_free(r->done[1]);
    }
    stream_timer_free(r->stalls);
    free(r->waited_ns);
    free(r);
}

/* The sums leave memory before those of the next group take their place: the host waits. */
static int end_sums(struct reducer *r, const struct reducer_job *job, struct fsdpck_error *err)
{
    char message[KERN_MESSAGE_BYTES];
    if (r->on.device->stream_sync(r->comm->stream, message) != KERN_OK)
        return fsdpck_error_set(err, FSDPCK_ERR_IO, NULL, "an exchange of gradients: %s", message);
    return job->sums.end(job->sums.ctx, job->group, err);
}

/* Enqueues an exchange after the work on the compute stream, and then an event that the compute stream can wait for. */
static void launch(struct reducer *r, const struct reducer_job *job)
{
    const struct kern_device *device = r->on.device;
    struct fsdpck_error err = { 0 };
    if (!r->error.code && job->sums.begin && job->sums.begin(job->sums.ctx, job->group, job->first, &err))
        r->error = err;
    device->event_record(r->made, r->on.compute);
    device->event_wait(r->made, r->comm->stream);
    if (!r->error.code && exchange_by_dtype(r->comm, job, &err))
        r->error = err;
    if (!r->error.code && job->sums.end && end_sums(r, job, &err))
        r->error = err;
    for (size_t i = 0; i < job->nslices && job->clean; i++)
        device->memory->zero(r->comm->stream, r->comm->contribution + job->slices[i].at,
                             (size_t)job->slices[i].nelem * sizeof(float));
    r->jobs[r->started % REDUCER_JOBS] = *job;
    device->event_record(r->done[r->started++ % REDUCER_JOBS], r->comm->stream);
}

/* Exchanges complete in the order in which they were started. */
static void wait_on_device(struct reducer *r, uint32_t left)
{
    if (r->started - r->over <= left)
        return;
    r->over = r->started - left;
    const size_t last = (r->over - 1) % REDUCER_JOBS;
    stream_timer_begin(r->stalls, r->jobs[last].group, r->on.compute);
    r->on.device->event_wait(r->done[last], r->on.compute);
    stream_timer_end(r->stalls, r->on.compute);
}

void reducer_start(struct reducer *r, const struct reducer_job *job)
{
    if (r->on.device) {
        launch(r, job);
        return;
    }
    pthread_mutex_lock(&r->worker.lock);
    r->jobs[r->started++ % REDUCER_JOBS] = *job;
    pthread_cond_broadcast(&r->worker.changed);
    pthread_mutex_unlock(&r->worker.lock);
}

int reducer_wait(struct reducer *r, uint32_t left, struct fsdpck_error *err)
{
    uint64_t started = comm_now_ns();
    pthread_mutex_lock(&r->worker.lock);
    if (r->on.device)
        wait_on_device(r, left);
    while (r->started - r->over > left) {
        uint64_t *waited_ns = &r->waited_ns[r->jobs[r->over % REDUCER_JOBS].group];
        pthread_cond_wait(&r->worker.changed, &r->worker.lock);
        const uint64_t now = comm_now_ns();
        *waited_ns += now - started;
        started = now;
    }
    int rc = r->error.code;
    if (rc && err)
        *err = r->error;
    pthread_mutex_unlock(&r->worker.lock);
    return rc;
}

struct reducer_times reducer_times(const struct reducer *r)
{
    struct reducer *lock = (struct reducer *)r; /* casts away const for the mutex only */
    pthread_mutex_lock(&lock->worker.lock);
    struct reducer_times t = r->times;
    pthread_mutex_unlock(&lock->worker.lock);
    if (r->stalls)
        t.busy_ns = comm_wait_ns(r->comm);
    for (uint32_t g = 0; g < r->ngroups; g++)
        t.waited_ns += reducer_waited_ns(r, g);
    return t;
}

/* Only the thread that waits writes waited_ns, and it asks. */
uint64_t reducer_waited_ns(const struct reducer *r, uint32_t group)
{
    return r->stalls ? stream_timer_ns(r->stalls, group) : r->waited_ns[group];
}
