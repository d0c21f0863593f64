/* SPDX-License-Identifier: Apache-2.0 */
/* A cycle gathers the groups of parameters once, and computes a micro-batch of each tenant that takes part. A tenant's
 * step lasts as many cycles as the run that trains it alone has turns: its packets, the order in which they are added,
 * its norm and its update are those of that run, and with them its bits. All ranks decide alike. */
#include "run/cycle.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "comm/reducer.h"
#include "rank/gather.h"
#include "rank/owners.h"
#include "run/agree.h"
#include "run/control.h"
#include "run/course.h"
#include "run/resume.h"
#include "run/step.h"
#include "state/load.h"

enum { PAUSE_MS = 20 };

struct tenant {
    struct rank *rank; /* as this tenant sees it */
    struct course course;
    struct cycle_result *result;
    double share;
    double served;            /* tokens that were computed for it, over its share */
    struct requests requests; /* to this rank, for the end of the step */
    struct train_metrics m;   /* of the step under way: */
    bool in_step;
    struct step_plan plan;
    size_t wave, turn;
    struct packet packet;
    uint32_t number; /* of the packet in its wave, which its contribution has in the exchange */
    double mine, loss;
    bool joins; /* takes part in this cycle */
    bool paused, ended;
    bool rests_unsaved; /* asked to pause: it is saved when its step has ended */
};

struct cycle {
    struct rank *rank;
    struct tenant *tenants; /* (n) */
    size_t n;
    struct compute **computes; /* (n) scratch: those that compute on this rank in this cycle */
    double *losses;            /* (n) */
    struct course *writing;
    struct control control; /* of the whole run */
    uint32_t turned;        /* packets of the waves that have begun */
    bool changed;           /* some parameters have changed since the last cycle */
    bool stopping, reloading;
};

/* ---- Who takes part */

static int64_t largest_ntok(const struct tenant *t)
{
    int64_t ntok;
    size_t ndocs;
    data_largest(t->rank->job->data, &ntok, &ndocs);
    return ntok;
}

/* A pause, and an end of the run, wait for the end of a step. */
static bool is_active(const struct cycle *c, const struct tenant *t)
{
    return !t->ended && (t->in_step || (!t->paused && !c->stopping && !c->reloading));
}

/* Each tenant gets its share of the tokens, give or take one cycle: one that is ahead waits. Returns whether any takes
 * part. */
static bool choose(struct cycle *c)
{
    double least = 0, largest = 0;
    bool any = false;
    for (size_t i = 0; i < c->n; i++) {
        const struct tenant *t = &c->tenants[i];
        const double cycle = (double)(largest_ntok(t) * c->rank->comm->nranks) / t->share;
        if (!is_active(c, t))
            continue;
        least = !any || t->served < least ? t->served : least;
        largest = cycle > largest ? cycle : largest;
        any = true;
    }
    for (size_t i = 0; i < c->n; i++)
        c->tenants[i].joins = is_active(c, &c->tenants[i]) && c->tenants[i].served <= least + largest;
    return any;
}

/* A word of the user has been followed. */
static void note_followed(const struct tenant *t, const char *what)
{
    char line[100];
    snprintf(line, sizeof line, "this tenant %s step %llu", what, (unsigned long long)t->rank->step);
    rank_note(t->rank, line);
}

/* One that comes back has no claim on the time that others had. */
static void come_back(const struct cycle *c, struct tenant *t)
{
    for (size_t i = 0; i < c->n; i++) {
        const struct tenant *other = &c->tenants[i];
        if (other != t && is_active(c, other) && other->served > t->served)
            t->served = other->served;
    }
    t->paused = t->rests_unsaved = false;
    note_followed(t, "goes on after");
}

/* ---- The end of a tenant */

static int end(struct tenant *t, struct fsdpck_error *err)
{
    struct course *c = &t->course;
    course_end(c);
    int rc = c->gone ? 0 : course_agree(c, course_export(c, err), err), written = 0;
    course_close_files(c, &written, err);
    if (!rc)
        rc = course_agree(c, written, err);
    t->ended = true;
    t->in_step = false;
    step_plan_free(&t->plan);
    return rc;
}

static void note_end(const struct tenant *t, const struct fsdpck_error *why)
{
    char text[2048], line[2400];
    snprintf(line, sizeof line, "this tenant ends with step %llu: %s", (unsigned long long)t->rank->step,
             fsdpck_error_format(why, text, sizeof text));
    rank_note(t->rank, line);
}

/* Saves the tenant where it can be saved; the others go on. */
static int fail(struct tenant *t, const struct fsdpck_error *why, struct fsdpck_error *err)
{
    struct fsdpck_error later = { 0 };
    note_end(t, why);
    t->result->failed = why->code;
    t->course.stopping = true;
    int rc = t->course.gone ? 0 : course_save(&t->course, err);
    if (rc || t->ended || !end(t, &later))
        return rc;
    if (t->course.failed) {
        note_end(t, &later);
        return 0;
    }
    *err = later;
    return later.code;
}

/* rc: of an operation of this tenant. */
static int settle(struct tenant *t, int rc, struct fsdpck_error *err)
{
    if (!rc || !t->course.failed)
        return rc;
    const struct fsdpck_error why = *err;
    *err = (struct fsdpck_error){ 0 };
    return fail(t, &why, err);
}

/* asked: for this tenant alone. */
static int stop(const struct cycle *c, struct tenant *t, bool asked, struct fsdpck_error *err)
{
    t->result->by_reload = !asked && !c->stopping;
    t->course.stopping = true;
    int rc = course_save(&t->course, err);
    if (!rc && asked)
        note_followed(t, "is saved, and ends with");
    return settle(t, rc ? rc : end(t, err), err);
}

static int rest(struct tenant *t, struct fsdpck_error *err)
{
    int rc = course_save(&t->course, err);
    t->rests_unsaved = false;
    if (!rc)
        note_followed(t, "is saved, and rests after");
    return rc;
}

/* ---- A step */

static int begin_step(struct tenant *t, struct fsdpck_error *err)
{
    struct rank *r = t->rank;
    t->m = (struct train_metrics){ 0 };
    t->loss = 0;
    t->wave = t->turn = 0;
    course_begin_step(&t->course, &t->m);
    int rc = course_agree(&t->course, data_step(r->job->data, r->job->config, r->step, &t->plan, err), err);
    t->m.data_wait_seconds = course_seconds(&t->course);
    t->in_step = !rc;
    return rc;
}

static size_t packet_nmicros(const struct tenant *t)
{
    return t->rank->job->config->train.accumulation;
}

static uint32_t in_wave(const struct tenant *t)
{
    const size_t left = step_npackets(&t->plan, packet_nmicros(t)) - t->wave;
    return (uint32_t)(left < t->rank->comm->nranks ? left : t->rank->comm->nranks);
}

/* A wave of few packets does not always begin with the same rank: a rank computes a packet of another one of its host
 * into the contribution of that rank. */
static void begin_wave(struct cycle *c, struct tenant *t)
{
    const struct comm *comm = t->rank->comm;
    const uint32_t n = comm->nnear, place = n ? comm->rank - comm->near_first : 0;
    t->number = n ? comm->near_first + (place + n - c->turned % n) % n : comm->rank;
    if (t->rank->owners)
        owners_shift(t->rank->owners, comm, c->turned % n);
    c->turned += in_wave(t);
    t->packet = step_packet(&t->plan, packet_nmicros(t), t->wave, t->number);
    t->mine = 0;
    float *contribution =
        n ? comm->near_contributions + (t->number - comm->near_first) * comm->near_nelem : comm->contribution;
    t->rank->compute->grads = contribution;
    if (t->packet.first < t->packet.end)
        step_clean(t->rank, contribution);
}

/* This rank's micro-batch in the turn; NULL: it has none. */
static const struct micro_batch *micro_of(const struct tenant *t)
{
    const size_t i = t->packet.first + t->turn;
    return i < t->packet.end ? &t->plan.micros[i] : NULL;
}

static int end_wave(struct tenant *t, struct fsdpck_error *err)
{
    struct rank *r = t->rank;
    const struct reducer_job job = {
        .slices = r->slices, .nslices = r->nslices, .ncontributions = in_wave(t), .first = t->wave == 0
    };
    const uint64_t before = r->comm->wait_ns;
    int rc = reducer_exchange(r->comm, &job, err);
    r->exchanged_ns += r->comm->wait_ns - before;
    if (!rc)
        rc = rank_fold_part(r, t->number, t->mine, job.ncontributions, &t->loss, err);
    t->wave += r->comm->nranks;
    t->turn = 0;
    return rc;
}

static int end_step(struct tenant *t, struct fsdpck_error *err)
{
    struct requests requests = t->requests;
    const bool asked = requests.stop && !job_status_stopping(t->rank->comm->job_status);
    t->requests = (struct requests){ 0 };
    t->in_step = false;
    t->m.loss = t->loss / (double)t->plan.nsupervised;
    int rc = course_update(&t->course, 0, &t->plan, &t->m, &requests, err);
    step_plan_free(&t->plan);
    if (!rc)
        rc = course_end_step(&t->course, &t->m, &requests, err);
    if (!rc && asked)
        note_followed(t, "is saved, and ends with");
    if (!rc && (t->course.stopping || t->rank->step == t->rank->job->nsteps))
        rc = end(t, err);
    return rc;
}

/* ---- A cycle */

/* The tokens of the turn on all ranks, so that all count alike. */
static int64_t turn_ntok(const struct tenant *t)
{
    int64_t ntok = 0;
    for (uint32_t q = 0; q < in_wave(t); q++) {
        const struct packet p = step_packet(&t->plan, packet_nmicros(t), t->wave, q);
        ntok += p.first + t->turn < p.end ? t->plan.micros[p.first + t->turn].ntok : 0;
    }
    return ntok;
}

static int begin_turns(struct cycle *c, struct fsdpck_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < c->n && !rc; i++) {
        struct tenant *t = &c->tenants[i];
        if (t->joins && !t->in_step)
            rc = settle(t, begin_step(t, err), err);
        t->joins &= t->in_step;
        if (t->joins && t->turn == 0)
            begin_wave(c, t);
    }
    return rc;
}

/* True if this rank computes for the tenant in this cycle: its own micro-batch, or tokens of other ranks. */
static bool works_for(const struct tenant *t)
{
    return t->joins && (micro_of(t) || t->rank->owners);
}

static int compute(struct cycle *c, struct fsdpck_error *err)
{
    const struct compute_hook hook = gather_hook(c->rank->gather);
    size_t n = 0;
    int rc = 0;
    for (size_t i = 0; i < c->n && !rc; i++) {
        struct tenant *t = &c->tenants[i];
        if (!works_for(t))
            continue;
        const struct micro_batch *micro = micro_of(t);
        rc = micro ? rank_fill(t->rank, t->rank->job->data, &t->plan, micro, err) : 0;
        t->rank->compute->serves = !micro;
        c->computes[n++] = t->rank->compute;
    }
    if (rc)
        return rc;
    gather_begin(c->rank->gather, c->changed, true);
    c->changed = false;
    rc = n ? compute_micros(c->computes, n, &hook, c->losses, err) : compute_skip(c->rank->compute, &hook, err);
    n = 0;
    for (size_t i = 0; i < c->n && !rc; i++) {
        struct tenant *t = &c->tenants[i];
        if (!works_for(t))
            continue;
        t->mine += c->losses[n++];
        t->rank->compute->serves = false; /* evaluations and samples are computed with it too */
    }
    return rc;
}

static int end_turns(struct cycle *c, struct fsdpck_error *err)
{
    struct comm *comm = c->rank->comm;
    int rc = comm->nnear > 1 ? comm->ops->barrier(comm, COMM_EXCHANGE_OPERATION, err) : 0; /* see near_contributions */
    for (size_t i = 0; i < c->n && !rc; i++) {
        struct tenant *t = &c->tenants[i];
        if (!t->joins)
            continue;
        t->served += (double)turn_ntok(t) / t->share;
        if (++t->turn < t->packet.nturns)
            continue;
        rc = end_wave(t, err);
        if (rc || t->wave < step_npackets(&t->plan, packet_nmicros(t)))
            continue;
        rc = settle(t, end_step(t, err), err);
        c->changed = true;
    }
    return rc;
}

/* Words that ranks exchange about a tenant. */
enum { PAUSE, RESUME, STOP, NWORDS };

/* What the user asks of the tenants through this rank, for the end of their steps and now. */
static void listen(struct cycle *c, const struct requests *whole, uint64_t *words)
{
    for (size_t i = 0; i < c->n; i++, words += NWORDS) {
        struct tenant *t = &c->tenants[i];
        if (t->ended)
            continue;
        course_poll(&t->course, &t->requests);
        t->requests.save |= whole->save;
        t->requests.sample |= whole->sample && t->rank->job->samples;
        words[PAUSE] = t->requests.pause;
        words[RESUME] = t->requests.resume;
        words[STOP] = t->requests.stop;
        t->requests.pause = t->requests.resume = false;
    }
}

/* Between two steps of a tenant. asked: by any rank. */
static int obey(struct cycle *c, struct tenant *t, const uint64_t *asked, struct fsdpck_error *err)
{
    if (asked[RESUME] && t->paused)
        come_back(c, t);
    if (asked[PAUSE])
        t->paused = t->rests_unsaved = true;
    if (t->in_step)
        return 0;
    if (asked[STOP] || c->stopping || c->reloading)
        return stop(c, t, asked[STOP] > 0, err);
    return t->rests_unsaved ? rest(t, err) : 0;
}

static int take_requests(struct cycle *c, struct fsdpck_error *err)
{
    enum { RUN_STOP, RUN_RELOAD, FIRST };
    struct comm *comm = c->rank->comm;
    uint64_t words[COMM_MAX_SUM] = { 0 };
    struct requests whole = { 0 };
    if (comm->rank == c->rank->job->first)
        control_poll(&c->control, &whole);
    if (whole.stop)
        job_status_stop(comm->job_status);
    words[RUN_STOP] = job_status_stopping(comm->job_status);
    words[RUN_RELOAD] = whole.reload;
    listen(c, &whole, words + FIRST);
    int rc = comm->ops->sum_u64(comm, words, FIRST + NWORDS * (uint32_t)c->n, err);
    c->stopping |= words[RUN_STOP] > 0;
    c->reloading |= words[RUN_RELOAD] > 0;
    for (size_t i = 0; i < c->n && !rc; i++)
        if (!c->tenants[i].ended)
            rc = obey(c, &c->tenants[i], words + FIRST + NWORDS * i, err);
    return rc;
}

static bool have_ended(const struct cycle *c)
{
    for (size_t i = 0; i < c->n; i++)
        if (!c->tenants[i].ended)
            return false;
    return true;
}

static int train(struct cycle *c, struct fsdpck_error *err)
{
    const struct timespec pause = { 0, PAUSE_MS * 1000000 };
    struct rank *r = c->rank;
    int rc = 0;
    while (!rc && !have_ended(c)) {
        comm_at(r->comm, r->step + 1, "forward and backward");
        rc = take_requests(c, err);
        if (!rc && !choose(c)) {
            nanosleep(&pause, NULL);
            continue;
        }
        if (!rc)
            rc = begin_turns(c, err);
        if (!rc)
            rc = compute(c, err);
        if (!rc)
            rc = end_turns(c, err);
        r->step++; /* of the whole: for messages */
    }
    for (size_t i = 0; i < c->n; i++)
        c->tenants[i].result->paused = c->tenants[i].paused;
    c->tenants[0].result->reload = c->reloading && !c->stopping;
    return rc;
}

/* ---- Start and end */

static int load(struct cycle *c, const struct cycle_tenant *tenants, struct fsdpck_error *err)
{
    bool *resumes = calloc(c->n, sizeof *resumes);
    int rc = resumes ? 0 : fsdpck_error_nomem(err, c->n);
    for (size_t i = 0; i < c->n && !rc; i++) {
        resumes[i] = tenants[i].resume != NULL;
        rc = agree(c->tenants[i].rank, tenants[i].resume, err);
    }
    if (!rc)
        rc = rank_load_tenants(c->rank, resumes, err);
    for (size_t i = 0; i < c->n && !rc; i++) {
        struct loop_results *results = &c->tenants[i].result->loop;
        rc = resume_load(c->tenants[i].rank, tenants[i].resume, &results->saved, err);
        course_count(c->tenants[i].rank, results);
    }
    free(resumes);
    return rc ? rc : c->rank->comm->ops->barrier(c->rank->comm, "start", err);
}

static int begin(struct cycle *c, struct fsdpck_error *err)
{
    int rc = 0;
    if (c->rank->comm->rank == c->rank->job->first)
        control_open(&c->control, c->rank);
    for (size_t i = 0; i < c->n && !rc; i++) {
        struct tenant *t = &c->tenants[i];
        uint64_t nagain;
        rc = course_open(t->rank, &t->result->loop, &t->course, &nagain, err);
        t->course.apart = true;
        t->course.writing = &c->writing;
        if (!rc)
            rc = course_report_start(t->rank, err);
        if (!rc && t->rank->step >= t->rank->job->nsteps)
            rc = settle(t, end(t, err), err);
    }
    c->changed = true;
    return rc;
}

/* Results that the supervisor does not read. */
static int allocate(struct cycle *c, struct cycle_result **scratch, struct fsdpck_error *err)
{
    c->tenants = calloc(c->n, sizeof *c->tenants);
    c->computes = calloc(c->n, sizeof *c->computes);
    c->losses = calloc(c->n, sizeof *c->losses);
    *scratch = calloc(c->n, sizeof **scratch);
    return c->tenants && c->computes && c->losses && *scratch ? 0 : fsdpck_error_nomem(err, c->n * sizeof *c->tenants);
}

int cycle_run(struct rank *r, const struct cycle_tenant *tenants, struct fsdpck_error *err)
{
    struct cycle c = { .rank = r, .n = r->job->ntenants };
    struct cycle_result *scratch = NULL;
    int rc = allocate(&c, &scratch, err);
    for (size_t i = 0; i < c.n && !rc; i++) {
        c.tenants[i].rank = &r->tenants[i];
        c.tenants[i].share = tenants[i].share;
        c.tenants[i].paused = tenants[i].paused;
        c.tenants[i].result = r->comm->rank == r->job->first ? tenants[i].results : &scratch[i];
        c.tenants[i].course.rank = &r->tenants[i];
    }
    if (!rc)
        rc = load(&c, tenants, err);
    if (!rc)
        rc = begin(&c, err);
    if (!rc)
        rc = train(&c, err);
    if (rc)
        rank_fail(r->job, r->comm->job_status, err); /* first: course_free() joins threads that may wait for others */
    for (size_t i = 0; i < c.n && c.tenants; i++) {
        step_plan_free(&c.tenants[i].plan);
        course_free(&c.tenants[i].course);
    }
    free(c.tenants);
    free(c.computes);
    free(c.losses);
    free(scratch);
    return rc ? rc : r->comm->ops->barrier(r->comm, "end", err);
}
