/* SPDX-License-Identifier: Apache-2.0 */
/* See late.h. A thread that waits for a place in a stream runs the stream's commands up to it. If one of them waits for
 * a place in another stream, the thread runs that stream first. It holds only the right to run one command, so that
 * threads that run several streams cannot deadlock. */
#include "late.h"

#include "guarded.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TICK_NS = 1000 };

struct stream;

/* A piece of work, or (before) a wait for a place in another stream. */
struct command {
    struct command *next;
    late_fn run;
    void *args;
    bool waits;
    struct stream *before;
    uint64_t upto;
};

/* Never freed, because events and waits may refer to streams that have ended. */
struct stream {
    struct stream *next;
    struct kern_stream *inner;
    struct command *first, **last;
    uint64_t nput, ndone;
    bool early;
    bool busy; /* a thread is running its first command */
};

struct kern_event {
    struct stream *on; /* NULL: never recorded, so nothing waits for it */
    uint64_t at;
    _Atomic uint64_t ns;
    _Atomic int nusers; /* its owner, and records that have not run */
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct stream *streams;
} late = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

/* The device's clock. It advances one tick per piece of work, so that measured times depend on the order of the work
 * and not on the load of this machine. */
static _Atomic uint64_t clock_ns;

static void take_time(struct kern_stream *inner, void *args);

/* True while this thread may access the device's memory: from its first command until it has no more to run, because
 * entering takes longer than a small kernel. */
static _Thread_local bool inside;

static struct stream *of(const struct kern_stream *s)
{
    return (struct stream *)s;
}

static void *must_have(void *p)
{
    if (!p)
        guarded_die("no memory", "a command");
    return p;
}

void *late_copy(const void *first, size_t first_nbytes, const void *second_from, size_t second_nbytes, void **second)
{
    const size_t at = (first_nbytes + _Alignof(max_align_t) - 1) / _Alignof(max_align_t) * _Alignof(max_align_t);
    char *block = must_have(malloc(at + second_nbytes));
    memcpy(block, first, first_nbytes);
    if (second_nbytes)
        memcpy(block + at, second_from, second_nbytes);
    if (second)
        *second = block + at;
    return block;
}

/* Call without the lock. */
static void let_in(bool in)
{
    if (in && !inside)
        guarded_enter();
    if (!in && inside)
        guarded_leave();
    inside = in;
}

/* Call with the lock; releases it meanwhile. */
static void run_first(struct stream *s)
{
    struct command *c = s->first;
    s->busy = true;
    pthread_mutex_unlock(&late.lock);
    let_in(!c->waits);
    if (c->run && c->run != take_time)
        clock_ns += TICK_NS;
    if (c->run)
        c->run(s->inner, c->args);
    free(c->args);
    pthread_mutex_lock(&late.lock);
    s->first = c->next;
    if (!s->first)
        s->last = &s->first;
    s->ndone++;
    s->busy = false;
    pthread_cond_broadcast(&late.changed);
    free(c);
}

/* Call with the lock; releases it. */
static void leave(void)
{
    pthread_mutex_unlock(&late.lock);
    let_in(false);
}

/* Call with the lock. */
static void run_to(struct stream *s, uint64_t upto)
{
    while (s->ndone < upto) {
        if (s->busy && inside)
            leave(), pthread_mutex_lock(&late.lock); /* other threads may change it meanwhile */
        else if (s->busy)
            pthread_cond_wait(&late.changed, &late.lock);
        else if (s->first->before && s->first->before->ndone < s->first->upto)
            run_to(s->first->before, s->first->upto);
        else
            run_first(s);
    }
}

/* Call with the lock. Returns the place in the stream. */
static uint64_t append(struct stream *s, struct command command)
{
    struct command *c = must_have(malloc(sizeof *c));
    *c = command;
    *s->last = c;
    s->last = &c->next;
    return ++s->nput;
}

static void put(struct kern_stream *s, struct command command)
{
    pthread_mutex_lock(&late.lock);
    const uint64_t at = append(of(s), command);
    if (of(s)->early)
        run_to(of(s), at);
    leave();
}

void late_put(struct kern_stream *s, late_fn run, void *args)
{
    put(s, (struct command){ .run = run, .args = args });
}

void late_put_waiting(struct kern_stream *s, late_fn run, void *args)
{
    put(s, (struct command){ .run = run, .args = args, .waits = true });
}

void late_run(struct kern_stream *s)
{
    pthread_mutex_lock(&late.lock);
    run_to(of(s), of(s)->nput);
    leave();
}

uint64_t late_done(struct kern_stream *s)
{
    pthread_mutex_lock(&late.lock);
    uint64_t n = of(s)->ndone;
    pthread_mutex_unlock(&late.lock);
    return n;
}

struct kern_stream *late_inner(const struct kern_stream *s)
{
    return of(s)->inner;
}

bool late_is_early(const struct kern_stream *s)
{
    return of(s)->early;
}

int late_stream_new(struct kern_stream *inner, bool early, struct kern_stream **out, char *message)
{
    struct stream *s = calloc(1, sizeof *s);
    if (!s) {
        snprintf(message, KERN_MESSAGE_BYTES, "no memory for a stream");
        return KERN_ERR_MEMORY;
    }
    s->inner = inner;
    s->early = early;
    s->last = &s->first;
    pthread_mutex_lock(&late.lock);
    s->next = late.streams;
    late.streams = s;
    pthread_mutex_unlock(&late.lock);
    *out = (struct kern_stream *)s;
    return KERN_OK;
}

struct kern_stream *late_stream_end(struct kern_stream *s)
{
    late_run(s);
    return of(s)->inner;
}

int late_event_new(int index, bool timed, struct kern_event **out, char *message)
{
    (void)index, (void)timed;
    struct kern_event *e = calloc(1, sizeof *e);
    if (!e) {
        snprintf(message, KERN_MESSAGE_BYTES, "no memory for an event");
        return KERN_ERR_MEMORY;
    }
    e->nusers = 1;
    *out = e;
    return KERN_OK;
}

void late_event_free(struct kern_event *e)
{
    if (e && --e->nusers == 0)
        free(e);
}

static void take_time(struct kern_stream *inner, void *args)
{
    struct kern_event *e = *(struct kern_event **)args;
    (void)inner;
    e->ns = clock_ns;
    late_event_free(e);
}

void late_event_record(struct kern_event *e, struct kern_stream *s)
{
    e->nusers++;
    pthread_mutex_lock(&late.lock);
    e->on = of(s);
    e->at = append(of(s), (struct command){ .run = take_time, .args = late_copy(&e, sizeof e, NULL, 0, NULL) });
    if (of(s)->early)
        run_to(of(s), e->at);
    leave();
}

/* Waits for the event as recorded now; a later record does not count. */
void late_event_wait(struct kern_event *e, struct kern_stream *s)
{
    pthread_mutex_lock(&late.lock);
    if (e->on)
        append(of(s), (struct command){ .before = e->on, .upto = e->at });
    pthread_mutex_unlock(&late.lock);
}

int late_event_sync(struct kern_event *e)
{
    pthread_mutex_lock(&late.lock);
    if (e->on)
        run_to(e->on, e->at);
    leave();
    return KERN_OK;
}

uint64_t late_now_ns(void)
{
    return clock_ns;
}

uint64_t late_event_elapsed_ns(struct kern_event *from, struct kern_event *to)
{
    return to->ns - from->ns;
}
