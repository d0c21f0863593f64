/* SPDX-License-Identifier: Apache-2.0 */
#include "top_view.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <string.h>
#include <time.h>

#include "common/text.h"
#include "trend.h"

enum { RECENT = 32, BAR = 24, OTHER_LINES = 11, SLOW_AFTER = 10 };

static const struct train_curve *curve(const struct top_run *run, const char *name)
{
    for (size_t i = 0; i < run->history->ncurves; i++)
        if (strcmp(run->history->curves[i].name, name) == 0 && run->history->curves[i].count)
            return &run->history->curves[i];
    return NULL;
}

static double last(const struct top_run *run, const char *name)
{
    const struct train_curve *c = curve(run, name);
    return c ? c->values[c->count - 1] : NAN;
}

/* Mean over the last steps; 0: there is no such number. */
static double recent(const struct train_curve *c)
{
    const size_t n = c ? (c->count < RECENT ? c->count : RECENT) : 0;
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += isfinite(c->values[c->count - 1 - i]) ? c->values[c->count - 1 - i] / (double)n : 0;
    return sum;
}

static double recent_of(const struct top_run *run, const char *name)
{
    return recent(curve(run, name));
}

static void print_state(FILE *f, const struct top_run *run)
{
    const struct train_folder *r = run->folder;
    const struct train_history *h = run->history;
    const uint64_t step = h->nsteps ? h->steps[h->nsteps - 1] : 0;
    const double each = recent_of(run, "step_seconds");
    char clock[TEXT_NBYTES];
    text_print(f, run->name);
    fprintf(f, ": %s, step %" PRIu64, train_folder_state(r), step);
    if (r->nsteps)
        fprintf(f, " of %" PRIu64 " (%.0f %%)", r->nsteps, 100 * (double)step / (double)r->nsteps);
    if (r->trains && r->nsteps > step && each > 0)
        fprintf(f, ", ETA %s", text_clock(each * (double)(r->nsteps - step), clock));
    fputc('\n', f);
    if (r->trains && h->nsteps && run->quiet_seconds > SLOW_AFTER && run->quiet_seconds > SLOW_AFTER * each)
        fprintf(f, "no step for %s; a step takes %.3g s\n", text_clock(run->quiet_seconds, clock), each);
}

static void print_loss(FILE *f, const struct top_run *run)
{
    const struct train_curve *loss = curve(run, "loss"), *eval = curve(run, "eval_loss");
    char trend[TREND_NBYTES];
    if (!loss)
        return;
    trend_format(loss->values, loss->count, trend);
    fprintf(f, "loss %.4f%s%s%s  gradient norm %.4g  learning rate %.3g", last(run, "loss"), *trend ? " (" : "", trend,
            *trend ? ")" : "", last(run, "grad_norm"), last(run, "lr"));
    if (eval)
        fprintf(f, "  eval loss %.4f at step %" PRIu64, eval->values[eval->count - 1], eval->steps[eval->count - 1]);
    fputc('\n', f);
}

static void print_rates(FILE *f, const struct top_run *run)
{
    const double each = recent_of(run, "step_seconds"), pss = last(run, "pss_bytes"), rss = last(run, "rss_bytes");
    char all[TEXT_NBYTES], one[TEXT_NBYTES];
    if (each <= 0)
        return;
    fprintf(f, "%.0f tokens/s  %.3g s/it", recent_of(run, "tokens") / each, each);
    if (pss > 0 && pss < 1e18)
        fprintf(f, "  memory %s all ranks", text_bytes((uint64_t)pss, all));
    if (rss > 0 && rss < 1e18)
        fprintf(f, ", %s rank 0", text_bytes((uint64_t)rss, one));
    fputc('\n', f);
}

static void print_phases(FILE *f, const struct top_run *run)
{
    const double each = recent_of(run, "step_seconds"), comm = recent_of(run, "comm_seconds"),
                 data = recent_of(run, "data_wait_seconds"), offload = recent_of(run, "offload_wait_seconds");
    if (each <= 0)
        return;
    fprintf(
        f,
        "rank 0, of a step: computation and the rest %.1f %%, exposed communication %.1f %% (gathers %.1f, exchanges "
        "%.1f), data %.1f %%",
        100 * (each - comm - data - offload) / each, 100 * comm / each,
        100 * recent_of(run, "comm_gather_seconds") / each, 100 * recent_of(run, "comm_exchange_seconds") / each,
        100 * data / each);
    if (offload > 0)
        fprintf(f, ", file of the state %.1f %%", 100 * offload / each);
    fprintf(f, "\nbeside it: hidden communication %.1f %%; after it: saving %.1f %%\n",
            100 * recent_of(run, "comm_hidden_seconds") / each, 100 * recent_of(run, "save_stall_seconds") / each);
}

/* In how many of the last steps a rank computed longest. */
static size_t count_slowest(const struct train_curve *slowest, uint32_t rank)
{
    const size_t n = slowest ? (slowest->count < RECENT ? slowest->count : RECENT) : 0;
    size_t found = 0;
    for (size_t i = 0; i < n; i++)
        found += slowest->values[slowest->count - 1 - i] == (double)rank;
    return found;
}

static void print_rank(FILE *f, const struct top_run *run, uint32_t rank, double busy, double most)
{
    const struct train_curve *slowest = curve(run, "slowest_rank");
    const size_t n = slowest ? (slowest->count < RECENT ? slowest->count : RECENT) : 0;
    const double part = busy / most; /* NaN: both are 0, or without end */
    char bar[BAR + 1] = "";
    memset(bar, '#', part > 0 ? (size_t)(BAR * part) : 0);
    fprintf(f, "%5u  %9.4f  %-*s", rank, busy, BAR, bar);
    if (n)
        fprintf(f, "  slowest in %zu of %zu", count_slowest(slowest, rank), n);
    fputc('\n', f);
}

/* The curve of a rank of the last step. */
static const struct train_curve *busy_curve(const struct top_run *run, uint32_t rank)
{
    const struct train_history *h = run->history;
    char name[48];
    snprintf(name, sizeof name, "rank_busy_seconds[%u]", rank);
    const struct train_curve *c = curve(run, name);
    return c && c->steps[c->count - 1] == h->steps[h->nsteps - 1] ? c : NULL;
}

static void print_ranks(FILE *f, const struct top_run *run, unsigned rows)
{
    uint32_t nranks = 0, shown, slow = 0;
    double most = 0;
    while (busy_curve(run, nranks)) {
        const double busy = recent(busy_curve(run, nranks));
        slow = busy > most ? nranks : slow;
        most = busy > most ? busy : most;
        nranks++;
    }
    if (!nranks)
        return;
    shown = rows > OTHER_LINES && nranks > rows - OTHER_LINES ? rows - OTHER_LINES : nranks;
    fprintf(f, "%5s  %9s\n", "rank", "busy s/it");
    for (uint32_t q = 0; q < shown; q++)
        print_rank(f, run, q, recent(busy_curve(run, q)), most);
    if (slow >= shown)
        print_rank(f, run, slow, most, most);
    if (nranks > shown)
        fprintf(f, "%5u ranks; the slowest is %u\n", nranks, slow);
}

static void print_saved(FILE *f, const struct top_run *run)
{
    const struct train_folder *r = run->folder;
    char nbytes[TEXT_NBYTES];
    if (r->nsaved)
        fprintf(f, "last checkpoint: step %" PRIu64 ", %s\n", r->saved[r->nsaved - 1].step,
                text_bytes(r->saved[r->nsaved - 1].nbytes, nbytes));
}

/* The last of what happened. */
static void print_event(FILE *f, const struct top_run *run)
{
    const json_t *o = json_array_get(run->folder->events, json_array_size(run->folder->events) - 1);
    const char *kind = json_string_value(json_object_get(o, "event")),
               *text = json_string_value(json_object_get(o, "text")),
               *how = json_string_value(json_object_get(o, "how"));
    const time_t at = (time_t)json_integer_value(json_object_get(o, "time"));
    char when[40];
    struct tm t;
    if (!kind || !localtime_r(&at, &t) || !strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &t))
        return;
    fprintf(f, "%s: ", when);
    text_print(f, how ? how : kind);
    if (text) {
        fputs(": ", f);
        text_print(f, text);
    }
    fputc('\n', f);
}

void top_view_print(FILE *f, const struct top_run *run, unsigned rows)
{
    print_state(f, run);
    print_loss(f, run);
    print_rates(f, run);
    print_phases(f, run);
    print_ranks(f, run, rows);
    print_saved(f, run);
    print_event(f, run);
}
