/* SPDX-License-Identifier: Apache-2.0 */
/* At most one worker thread, and counters that only grow during a micro-batch: uses requested, gathered, and
 * completed. */
#include "comm/ring.h"

#include <stdlib.h>
#include <string.h>

#include "comm/stream_timer.h"
#include "comm/worker.h"

struct ring {
    struct comm *comm;
    const struct schedule *schedule;
    const struct ring_group *groups;
    struct ring_device on;
    uint32_t ngroups;
    char **slots; /* (schedule->nslots + 1) the last is NULL, for groups that are not gathered */
    /* NULL unless comm moves data on a stream. (schedule->nentries + 1) events each. arrived[u], on comm's stream: use
     * u's group has been gathered. left[u], on the compute stream: use u is over. The last `left` marks the start of
     * the micro-batch: parameters have changed, and all buffers are free. */
    struct kern_event **arrived, **left;
    struct stream_timer *stalls; /* if comm launches: stalls of the compute stream, waiting for gathers, by group */
    uint64_t *waited_ns;         /* (ngroups) else: the caller's waits for gathers */
    struct worker worker;        /* if comm launches, without a thread: the caller gathers */
    /* guarded by the worker's lock */
    enum ring_change change;
    uint32_t nuses;  /* in this micro-batch */
    uint32_t wanted; /* uses entered so far, including one that is being entered */
    uint32_t there;  /* uses whose group is in its slot */
    uint32_t over;   /* uses that have been left, together with all earlier ones */
    uint32_t live;
    struct ring_times times;
    struct fsdpck_error error;
};

static size_t aligned(size_t nbytes)
{
    return (nbytes + 4095) / 4096 * 4096;
}

static size_t slot_nbytes(const struct schedule *s, const struct ring_group *groups, uint32_t ngroups, uint32_t slot)
{
    size_t most = 0;
    if (s->slot_group[slot] != UINT32_MAX)
        return aligned(groups[s->slot_group[slot]].nbytes);
    for (uint32_t u = 0; u < s->nentries; u++) {
        if (s->entries[u].slot == slot && s->entries[u].group < ngroups && groups[s->entries[u].group].nbytes > most)
            most = groups[s->entries[u].group].nbytes;
    }
    return aligned(most);
}

uint64_t ring_nbytes(const struct schedule *schedule, const struct ring_group *groups, uint32_t ngroups)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < schedule->nslots; i++)
        sum += slot_nbytes(schedule, groups, ngroups, i);
    return sum;
}

static size_t count_unchanged(const struct ring *r, const struct ring_group *g)
{
    return r->change == RING_ALL ? 0 : r->change == RING_TRAINED ? g->nfrozen : g->npieces;
}

/* The parameters of this group that must be gathered for this use. */
static const struct comm_piece *pieces_of(const struct ring *r, const struct schedule_entry *e, size_t *n)
{
    const struct ring_group *g = &r->groups[e->group];
    const size_t skipped = r->schedule->slot_group[e->slot] == UINT32_MAX ? 0 : count_unchanged(r, g);
    *n = e->gather ? g->npieces - skipped : 0;
    return g->pieces + skipped;
}

static int gather(const struct ring *r, const struct schedule_entry *e, const struct comm_piece *pieces, size_t n,
                  struct fsdpck_error *err)
{
    const struct ring_group *g = &r->groups[e->group];
    const size_t unchanged = count_unchanged(r, g);
    int rc = r->comm->ops->gather(r->comm, e->kept ? COMM_KEPT : COMM_AT_REST, pieces, n, r->slots[e->slot], err);
    if (!rc && e->keep)
        r->comm->ops->keep(r->comm, g->pieces + unchanged, g->npieces - unchanged, r->slots[e->slot]);
    return rc;
}

static bool may_gather(const struct ring *r)
{
    if (r->there >= r->nuses)
        return false;
    const struct schedule_entry *e = &r->schedule->entries[r->there];
    return r->there < r->wanted + e->ahead && r->over >= e->after && !r->error.code;
}

static bool gather_next(void *ctx)
{
    struct ring *r = ctx;
    if (!may_gather(r))
        return false;
    const struct schedule_entry *e = &r->schedule->entries[r->there];
    struct fsdpck_error err = { 0 };
    size_t n;
    const struct comm_piece *pieces = pieces_of(r, e, &n);
    uint64_t nbytes = 0;
    const uint32_t use = r->there;
    pthread_mutex_unlock(&r->worker.lock);
    const uint64_t started = comm_now_ns();
    if (r->left)
        r->on.device->event_wait(e->after > 0 ? r->left[e->after - 1] : r->left[r->schedule->nentries],
                                 r->comm->stream);
    int rc = n ? gather(r, e, pieces, n, &err) : 0;
    for (size_t i = 0; i < n; i++)
        nbytes += pieces[i].nbytes;
    if (r->arrived)
        r->on.device->event_record(r->arrived[use], r->comm->stream);
    pthread_mutex_lock(&r->worker.lock);
    r->times.gathered_ns += comm_now_ns() - started;
    r->times.nbytes += nbytes;
    if (rc)
        r->error = err;
    else
        r->there++;
    pthread_cond_broadcast(&r->worker.changed);
    return true;
}

/* Enqueues all gathers that are possible now. The order depends on the caller's program only, so it is the same on
 * every rank. */
static void gather_in_line(struct ring *r)
{
    while (r->comm->launches && gather_next(r))
        ;
}

static int cut_slots(struct ring *r, uint32_t ngroups, struct fsdpck_error *err)
{
    size_t at = 0;
    r->slots = calloc(r->schedule->nslots + 1, sizeof *r->slots);
    if (!r->slots)
        return fsdpck_error_nomem(err, r->schedule->nslots * sizeof *r->slots);
    for (uint32_t i = 0; i < r->schedule->nslots; i++) {
        r->slots[i] = r->on.memory + at;
        at += slot_nbytes(r->schedule, r->groups, ngroups, i);
    }
    return 0;
}

static void free_events(const struct ring *r, struct kern_event **events)
{
    for (uint32_t i = 0; events && i <= r->schedule->nentries; i++)
        r->on.device->event_free(events[i]);
    free(events);
}

static int make_events(struct ring *r, struct kern_event ***out, struct fsdpck_error *err)
{
    char message[KERN_MESSAGE_BYTES];
    struct kern_event **events = *out = calloc(r->schedule->nentries + 1, sizeof *events);
    if (!events)
        return fsdpck_error_nomem(err, r->schedule->nentries * sizeof *events);
    for (uint32_t i = 0; i <= r->schedule->nentries; i++) {
        if (r->on.device->event_new(r->on.index, false, &events[i], message) != KERN_OK)
            return fsdpck_error_set(err, FSDPCK_ERR_NOMEM, NULL, "events of gathers: %s", message);
    }
    return 0;
}

int ring_new(struct comm *comm, const struct schedule *schedule, const struct ring_group *groups, uint32_t ngroups,
             const struct ring_device *on, struct ring **out, struct fsdpck_error *err)
{
    struct ring *r = calloc(1, sizeof *r);
    *out = NULL;
    if (!r)
        return fsdpck_error_nomem(err, sizeof *r);
    r->comm = comm;
    r->schedule = schedule;
    r->groups = groups;
    r->on = *on;
    r->ngroups = ngroups;
    r->waited_ns = calloc(ngroups, sizeof *r->waited_ns);
    r->nuses = r->there = r->over = r->wanted = 0; /* no micro-batch has begun */
    int rc = r->waited_ns ? cut_slots(r, ngroups, err) : fsdpck_error_nomem(err, ngroups * sizeof *r->waited_ns);
    if (!rc && comm->stream)
        rc = make_events(r, &r->arrived, err);
    if (!rc && comm->stream)
        rc = make_events(r, &r->left, err);
    if (!rc && comm->launches)
        rc = stream_timer_new(on->device, on->index, ngroups, STREAM_TIMER_INTERVALS, &r->stalls, err);
    if (!rc)
        rc = worker_start(&r->worker, comm->launches ? NULL : gather_next, r, err);
    if (rc)
        ring_free(r);
    else
        *out = r;
    return rc;
}

void ring_free(struct ring *r)
{
    if (!r)
        return;
    worker_stop(&r->worker);
    free_events(r, r->arrived);
    free_events(r, r->left);
    stream_timer_free(r->stalls);
    free(r->waited_ns);
    free(r->slots);
    free(r);
}

void ring_begin(struct ring *r, enum ring_change change, uint32_t nuses)
{
    pthread_mutex_lock(&r->worker.lock);
    r->change = change;
    r->nuses = nuses;
    r->wanted = r->there = r->over = r->live = 0;
    if (r->left)
        r->on.device->event_record(r->left[r->schedule->nentries], r->on.compute);
    gather_in_line(r);
    pthread_cond_broadcast(&r->worker.changed);
    pthread_mutex_unlock(&r->worker.lock);
}

static void wait_on_device(struct ring *r, uint32_t use)
{
    if (r->stalls)
        stream_timer_begin(r->stalls, r->schedule->entries[use].group, r->on.compute);
    r->on.device->event_wait(r->arrived[use], r->on.compute);
    if (r->stalls)
        stream_timer_end(r->stalls, r->on.compute);
}

int ring_enter(struct ring *r, uint32_t group, char **data, struct fsdpck_error *err)
{
    int rc = 0;
    const uint64_t started = comm_now_ns();
    pthread_mutex_lock(&r->worker.lock);
    uint32_t use = r->wanted;
    if (use >= r->nuses || r->schedule->entries[use].group != group) {
        pthread_mutex_unlock(&r->worker.lock);
        return fsdpck_error_set(err, FSDPCK_ERR_STOPPED, NULL,
                                "group %u is used where the schedule of gathers has another", group);
    }
    r->wanted++;
    r->live++;
    gather_in_line(r);
    pthread_cond_broadcast(&r->worker.changed);
    while (r->there <= use && !r->error.code)
        pthread_cond_wait(&r->worker.changed, &r->worker.lock);
    r->waited_ns[group] += comm_now_ns() - started;
    if (r->error.code) {
        rc = r->error.code;
        if (err)
            *err = r->error;
    }
    *data = r->slots[r->schedule->entries[use].slot];
    pthread_mutex_unlock(&r->worker.lock);
    if (!rc && r->arrived)
        wait_on_device(r, use);
    return rc;
}

void ring_leave(struct ring *r)
{
    pthread_mutex_lock(&r->worker.lock);
    if (--r->live == 0) {
        for (uint32_t use = r->over; r->left && use < r->wanted; use++)
            r->on.device->event_record(r->left[use], r->on.compute);
        r->over = r->wanted;
    }
    gather_in_line(r);
    pthread_cond_broadcast(&r->worker.changed);
    pthread_mutex_unlock(&r->worker.lock);
}

struct ring_times ring_times(const struct ring *r)
{
    struct ring *lock = (struct ring *)r; /* casts away const for the mutex only */
    pthread_mutex_lock(&lock->worker.lock);
    struct ring_times t = r->times;
    pthread_mutex_unlock(&lock->worker.lock);
    if (r->stalls)
        t.gathered_ns = comm_wait_ns(r->comm);
    for (uint32_t g = 0; g < r->ngroups; g++)
        t.waited_ns += ring_waited_ns(r, g);
    return t;
}

/* Only the thread that enters groups writes waited_ns, and it asks. */
uint64_t ring_waited_ns(const struct ring *r, uint32_t group)
{
    return r->stalls ? stream_timer_ns(r->stalls, group) : r->waited_ns[group];
}
