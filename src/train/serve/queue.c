/* SPDX-License-Identifier: Apache-2.0 */
/* Tasks and the lanes that run them. Each adapter has a queue, in order. Passes and samples that follow each other run
 * at the same time, in units; any other task runs alone. A lane takes the next unit of the adapter that has been served
 * least. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "serve/losses.h"
#include "serve/serve_impl.h"

/* ---- Adapters */

int serve_adapter_new(struct serve *s, bool frozen, struct serve_adapter **out, struct fsdpck_error *err)
{
    struct serve_adapter *a = calloc(1, sizeof *a);
    *out = a;
    if (!a)
        return fsdpck_error_nomem(err, sizeof *a);
    a->s = s;
    a->frozen = frozen;
    pthread_mutex_lock(&s->mutex);
    a->next = s->adapters;
    s->adapters = a;
    pthread_mutex_unlock(&s->mutex);
    return 0;
}

/* The mutex is held, and is released. Frees an adapter that nobody uses any more. */
static void drop_unused(struct serve_adapter *a)
{
    struct serve *s = a->s;
    const bool unused = a->released && !a->first && !a->nending;
    for (struct serve_adapter **p = &s->adapters; unused && *p; p = &(*p)->next)
        if (*p == a) {
            *p = a->next;
            break;
        }
    pthread_mutex_unlock(&s->mutex);
    if (unused) {
        held_free(s, a->held);
        free(a);
    }
}

void serve_adapter_release(struct serve_adapter *a)
{
    pthread_mutex_lock(&a->s->mutex);
    a->released = true;
    drop_unused(a);
}

/* ---- Submitting */

/* One that comes back has no claim on the time that others had. */
static void come_back(struct serve_adapter *a)
{
    double least = INFINITY;
    for (const struct serve_adapter *other = a->s->adapters; other; other = other->next)
        if (other != a && other->first && other->served < least)
            least = other->served;
    if (!isinf(least) && a->served < least)
        a->served = least;
}

void serve_submit(struct serve *s, struct serve_task *t)
{
    struct serve_adapter *a = t->adapter;
    t->next = NULL;
    t->nunits = 1;
    t->nbegun = t->nended = 0;
    t->packets = NULL;
    t->err = (struct fsdpck_error){ 0 };
    if ((t->kind == SERVE_PASS && pass_plan(s, t)) || (t->kind == SERVE_SAMPLE && generate_plan(t))) {
        t->done(t);
        return;
    }
    pthread_mutex_lock(&s->mutex);
    if (!a->first)
        come_back(a);
    *(a->first ? &a->last->next : &a->first) = t;
    a->last = t;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
}

/* ---- Choosing */

struct unit {
    struct serve_task *t;
    size_t number;
    uint64_t ticket;
};

static bool runs_in_units(const struct serve_task *t)
{
    return t->kind == SERVE_PASS || t->kind == SERVE_SAMPLE;
}

static bool is_for_files(const struct serve_task *t)
{
    return !runs_in_units(t) && t->kind != SERVE_OPTIMIZE;
}

/* The mutex is held. The pages of another sample of the task; of the first one, with those of the prompt. */
static size_t npages_of(const struct serve_task *t)
{
    return generate_sample_npages(&t->sample) + (t->nbegun ? 0 : generate_prompt_npages(&t->sample));
}

/* The mutex is held. A sample begins only when all pages that it may take are reserved: it can then always go on to its
 * end. While a task waits for pages, no other prompt is read. Tasks whose prompts have been read go on: the last of
 * these prompts found room beside the others for one of its samples, so that all of them end. */
static bool may_begin(const struct serve *s, const struct serve_task *t)
{
    if (t->nbegun == t->nunits || t->kind != SERVE_SAMPLE)
        return t->nbegun < t->nunits;
    if (t->nbegun && !t->sample.read->done)
        return false;
    return !s->awaited || ((t == s->awaited || t->nbegun) && kv_pool_has(s->kv, npages_of(t)));
}

/* The mutex is held. The task of the adapter that has a unit for the lane; NULL: none. */
static struct serve_task *ready_task(const struct serve_adapter *a, bool files)
{
    struct serve_task *t = a->first;
    while (t && runs_in_units(t) && !may_begin(a->s, t))
        t = t->next;
    if (!t || (t != a->first && !runs_in_units(t)) || t->nbegun == t->nunits)
        return NULL;
    return is_for_files(t) == files ? t : NULL;
}

/* The mutex is held. least_served() has found the pages. */
static void begin_sample(struct serve_adapter *a, const struct serve_task *t, size_t number)
{
    const size_t npages = generate_sample_npages(&t->sample) + (number ? 0 : generate_prompt_npages(&t->sample));
    const bool reserved = kv_pool_reserve(a->s->kv, npages);
    assert(reserved);
    (void)reserved;
    a->served += number ? 0 : (double)t->sample.nprompt; /* and the new tokens at the end */
    a->s->awaited = a->s->awaited == t ? NULL : a->s->awaited;
}

/* The mutex is held. Takes a unit of a task that is ready. */
static struct unit begin_unit(struct serve_adapter *a, struct serve_task *t)
{
    struct unit u = { .t = t, .number = t->nbegun++ };
    if (t->kind == SERVE_PASS)
        a->served += (double)pass_ntok(t, u.number);
    else if (t->kind == SERVE_SAMPLE)
        begin_sample(a, t, u.number);
    if (t->kind == SERVE_PASS && t->pass.backward)
        u.ticket = a->tickets++;
    return u;
}

/* The mutex is held. Of those that have a task for the lane; NULL: none has. One whose sample finds no pages is
 * awaited, and the next one is tried. */
static struct serve_adapter *least_served(const struct lane *lane)
{
    const bool files = lane->number == lane->s->nranks;
    struct serve *s = lane->s;
    for (;;) {
        struct serve_adapter *best = NULL;
        for (struct serve_adapter *a = s->adapters; a; a = a->next)
            if ((!best || a->served < best->served) && ready_task(a, files))
                best = a;
        struct serve_task *t = best ? ready_task(best, files) : NULL;
        if (!t || t->kind != SERVE_SAMPLE || kv_pool_has(s->kv, npages_of(t)))
            return best;
        s->awaited = t;
    }
}

/* The mutex is held. */
static bool choose(const struct lane *lane, struct unit *out)
{
    struct serve_adapter *a = least_served(lane);
    if (a)
        *out = begin_unit(a, ready_task(a, lane->number == lane->s->nranks));
    return a != NULL;
}

void queue_await_turn(struct serve_adapter *a, uint64_t ticket)
{
    struct serve *s = a->s;
    pthread_mutex_lock(&s->mutex);
    while (a->folded != ticket)
        pthread_cond_wait(&s->changed, &s->mutex);
    pthread_mutex_unlock(&s->mutex);
}

void queue_pass_turn(struct serve_adapter *a)
{
    pthread_mutex_lock(&a->s->mutex);
    a->folded++;
    pthread_cond_broadcast(&a->s->changed);
    pthread_mutex_unlock(&a->s->mutex);
}

/* ---- Running */

/* Sets t->err. */
static void run_alone(struct lane *lane, struct serve_task *t)
{
    switch (t->kind) {
    case SERVE_BEGIN:
        adapter_begin(lane, t);
        t->adapter->why = t->err;
        break;
    case SERVE_FREEZE:
        adapter_freeze(lane, t);
        t->frozen->why = t->err;
        break;
    case SERVE_LOAD: adapter_load(lane, t); break;
    case SERVE_OPTIMIZE: optimize_run(lane, t); break;
    case SERVE_SAVE: save_run(lane, t); break;
    case SERVE_SAMPLE:
    case SERVE_PASS: break;
    }
}

static bool has_begun(const struct serve_task *t, struct fsdpck_error *err)
{
    if (t->kind == SERVE_BEGIN || t->adapter->held)
        return true;
    *err = t->adapter->why;
    if (!err->code)
        fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "it has not begun yet");
    return false;
}

static void run(struct lane *lane, const struct unit *u, struct fsdpck_error *err)
{
    if (!has_begun(u->t, err))
        return;
    if (u->t->kind == SERVE_PASS)
        pass_run(lane, u->t, u->number, u->ticket, err);
    else
        run_alone(lane, u->t);
}

/* The mutex is held. Takes a task that has run out of the queue. A pass, or a sample, may end before earlier ones. */
static struct serve_task *take_done(struct serve_adapter *a)
{
    struct serve_task *before = NULL, *t = a->first;
    while (t && t->nended < t->nunits) {
        before = t;
        t = runs_in_units(t) ? t->next : NULL;
    }
    if (!t)
        return NULL;
    *(before ? &before->next : &a->first) = t->next;
    a->last = t->next ? a->last : before;
    return t;
}

static void finish(struct serve_task *t)
{
    if (t->kind == SERVE_PASS && !t->err.code) {
        t->pass.loss_sum = 0;
        for (size_t i = 0; i < t->pass.ndata; i++)
            t->pass.loss_sum += losses_sum(&t->pass, &t->pass.data[i]);
    }
    if (t->kind == SERVE_SAMPLE)
        generate_drop(t->adapter->s, t);
    pass_drop(t);
    t->done(t);
}

/* The mutex is held, and is released. */
static void end_unit(const struct unit *u, const struct fsdpck_error *err)
{
    struct serve_adapter *a = u->t->adapter;
    struct serve_task *t;
    if (!u->t->err.code)
        u->t->err = *err;
    u->t->nended++;
    a->nending++;
    while ((t = take_done(a)) != NULL) {
        pthread_mutex_unlock(&a->s->mutex);
        finish(t);
        pthread_mutex_lock(&a->s->mutex);
    }
    a->nending--;
    pthread_cond_broadcast(&a->s->changed);
    drop_unused(a);
}

/* The mutex is held. The samples that wait, and that run. */
static size_t count_samples(const struct serve *s)
{
    size_t n = 0;
    for (const struct serve_adapter *a = s->adapters; a; a = a->next)
        for (const struct serve_task *t = ready_task(a, false); t && t->kind == SERVE_SAMPLE; t = t->next)
            n += t->nunits - t->nbegun;
    for (uint32_t i = 0; i < s->nranks; i++)
        n += s->lanes[i].nsampling;
    return n;
}

/* Lanes share the samples. Where a pass is due, none is taken: the lane ends those that it has, and runs the pass. */
bool queue_take_sample(struct lane *lane, struct generate_unit *out)
{
    struct serve *s = lane->s;
    struct serve_adapter *a;
    pthread_mutex_lock(&s->mutex);
    const size_t share = (count_samples(s) + s->nranks - 1) / s->nranks;
    struct serve_task *t = lane->nsampling < share && (a = least_served(lane)) ? ready_task(a, false) : NULL;
    const bool takes = t && t->kind == SERVE_SAMPLE && t->adapter->held;
    if (takes) {
        const struct unit u = begin_unit(a, t);
        *out = (struct generate_unit){ .t = t, .number = u.number };
        lane->nsampling++;
    }
    pthread_mutex_unlock(&s->mutex);
    return takes;
}

bool queue_ends(struct serve *s)
{
    pthread_mutex_lock(&s->mutex);
    const bool ends = s->ends;
    pthread_mutex_unlock(&s->mutex);
    return ends;
}

/* The mutex is held. */
static void end_prompt(struct serve_task *t, const struct fsdpck_error *err)
{
    if (err && !t->sample.read->done)
        t->sample.read->err = *err;
    t->sample.read->done = true;
    pthread_cond_broadcast(&t->adapter->s->changed);
}

void queue_end_prompt(struct serve_task *t)
{
    pthread_mutex_lock(&t->adapter->s->mutex);
    end_prompt(t, NULL);
    pthread_mutex_unlock(&t->adapter->s->mutex);
}

/* The mutex is held, and is released. */
static void end_sample(struct lane *lane, const struct generate_unit *u)
{
    struct serve_task *t = u->t;
    kv_pool_release(lane->s->kv, generate_sample_npages(&t->sample));
    t->adapter->served += (double)t->sample.samples[u->number].n;
    lane->nsampling--;
    if (u->number == 0)
        end_prompt(t, &u->err);
    end_unit(&(struct unit){ .t = t, .number = u->number }, &u->err);
}

void queue_end_sample(struct lane *lane, const struct generate_unit *u)
{
    pthread_mutex_lock(&lane->s->mutex);
    end_sample(lane, u);
}

/* The mutex is held, and is released. */
static void run_sample(struct lane *lane, const struct unit *u)
{
    struct generate_unit g = { .t = u->t, .number = u->number };
    lane->nsampling++;
    if (!has_begun(u->t, &g.err)) {
        end_sample(lane, &g);
        return;
    }
    pthread_mutex_unlock(&lane->s->mutex);
    generate_run(lane, &g);
}

/* The mutex is held, and is released. */
static void run_unit(struct lane *lane, const struct unit *u)
{
    struct fsdpck_error err = { 0 };
    if (u->t->kind == SERVE_SAMPLE) {
        run_sample(lane, u);
        return;
    }
    pthread_mutex_unlock(&lane->s->mutex);
    run(lane, u, &err);
    pthread_mutex_lock(&lane->s->mutex);
    end_unit(u, &err);
}

void *queue_run(void *ctx)
{
    struct lane *lane = ctx;
    struct serve *s = lane->s;
    pthread_mutex_lock(&s->mutex);
    while (!s->ends) {
        struct unit u;
        if (choose(lane, &u)) {
            run_unit(lane, &u);
            pthread_mutex_lock(&s->mutex);
        } else {
            pthread_cond_wait(&s->changed, &s->mutex);
        }
    }
    pthread_mutex_unlock(&s->mutex);
    return NULL;
}
