/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the start table, the lines of steps, and the remaining time. The estimate uses the time since the first step
 * that was shown, including saves and evaluations. */
#include "run_view.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "common/text.h"

enum { HISTORY_LINES = 20 };
static const int64_t minute_ns = 60 * INT64_C(1000000000), plain_ns = 10 * INT64_C(1000000000), redraw_ns = 100000000;

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

struct run_view *run_view_new(bool quiet)
{
    struct run_view *v = mmap(NULL, sizeof *v, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (v == MAP_FAILED)
        return NULL;
    v->report.quiet = quiet;
    v->report.terminal = isatty(STDERR_FILENO);
    v->report.started_ns = now_ns();
    return v;
}

/* "1,234,567" */
static const char *grouped(uint64_t value, char buf[TEXT_NBYTES])
{
    char digits[24];
    int n = snprintf(digits, sizeof digits, "%" PRIu64, value), at = 0;
    for (int i = 0; i < n; i++) {
        if (i && (n - i) % 3 == 0)
            buf[at++] = ',';
        buf[at++] = digits[i];
    }
    buf[at] = '\0';
    return buf;
}

static void __attribute__((format(printf, 2, 3))) put_row(const char *title, const char *format, ...)
{
    char line[1600];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    fprintf(stderr, "  %-11s ", title);
    text_print(stderr, line); /* it contains file names, so it is escaped */
    fputc('\n', stderr);
}

static void put_data(const char *title, const char *path, const struct train_data_facts *f, const struct train_start *s)
{
    char docs[TEXT_NBYTES], tokens[TEXT_NBYTES], rows[TEXT_NBYTES], packed[100] = "";
    if (s->config->pipeline) {
        put_row(title, "%.1000s: %s picture%s, at most %s tokens of text and latents each", path,
                grouped(f->ndocs, docs), fsdpck_plural(f->ndocs), grouped(f->longest_ntok, tokens));
        return;
    }
    if (!f->by_plan)
        snprintf(packed, sizeof packed, "; in %s row%s of %s token%s, %.1f %% full", grouped(f->nrows, docs),
                 fsdpck_plural(f->nrows), grouped(s->config->data.seq_len, rows),
                 fsdpck_plural(s->config->data.seq_len),
                 100.0 * (double)f->ntok / ((double)f->nrows * (double)s->config->data.seq_len));
    put_row(title, "%.1000s: %s document%s, %s token%s, %.1f %% of them supervised%s", path, grouped(f->ndocs, docs),
            fsdpck_plural(f->ndocs), grouped(f->ntok, tokens), fsdpck_plural(f->ntok),
            100.0 * (double)f->nsupervised / (double)f->ntok, packed);
}

static void put_steps(const struct train_start *s)
{
    const struct train_config *c = s->config;
    char going_on[80] = "", epochs[80] = "", passes[20], share[60] = "", schedule[TRAIN_WORD_NBYTES];
    if (s->step)
        snprintf(going_on, sizeof going_on, ", %" PRIu64 " of them done", s->step);
    if (!s->data.by_plan) {
        snprintf(passes, sizeof passes, "%.3g",
                 (double)s->plan.nsteps * (double)c->train.global_batch_size / (double)s->data.nrows);
        snprintf(epochs, sizeof epochs, " of %" PRIu64 " %s%s, %s epoch%s", c->train.global_batch_size,
                 c->pipeline ? "picture" : "row", fsdpck_plural(c->train.global_batch_size), passes,
                 strcmp(passes, "1") == 0 ? "" : "s");
    }
    if (!c->train.warmup_given)
        snprintf(share, sizeof share, " (train.warmup_ratio %g)", c->train.warmup_ratio);
    put_row("steps", "%" PRIu64 "%s%s; learning rate %g, %s, %" PRIu64 " step%s of warm-up%s", s->plan.nsteps, epochs,
            going_on, c->train.learning_rate,
            train_config_word("train.lr_scheduler_type", c->train.scheduler, schedule), s->warmup_steps,
            fsdpck_plural(s->warmup_steps), share);
}

/* A line for each tenant, under what they share. */
static void show_tenant(struct run_view *v, const struct train_start *s)
{
    const struct train_config *c = s->config;
    char a[TEXT_NBYTES], b[TEXT_NBYTES], dtype[TRAIN_WORD_NBYTES], done[60] = "";
    if (v->ntenants++ == 0) {
        put_row("model", "%.1000s (%s, %s): %s parameters frozen", c->model, s->family,
                train_config_word("dtype.param", c->dtype.param, dtype), grouped(s->plan.nfrozen, b));
        put_row("ranks", "%u, with %s each; parameters %s", s->nranks, text_count(s->nthreads, "thread", a),
                s->copies ? "gathered by copying" : "mapped and not copied");
    }
    if (s->step)
        snprintf(done, sizeof done, ", %" PRIu64 " of them done", s->step);
    put_row("tenant", "%s: %s parameters trained; %" PRIu64 " step%s%s, learning rate %g; %.1000s, %s tokens",
            s->tenant, grouped(s->plan.ntrained, a), s->plan.nsteps, fsdpck_plural(s->plan.nsteps), done,
            c->train.learning_rate, c->data.nfiles > 1 ? "data.train" : c->data.train, grouped(s->data.ntok, b));
}

void run_view_start(struct run_view *v, const struct train_start *s)
{
    const struct train_config *c = s->config;
    char a[TEXT_NBYTES], b[TEXT_NBYTES], dtype[TRAIN_WORD_NBYTES];
    if (v->report.quiet)
        return;
    report_clear(&v->report);
    if (s->tenant) {
        show_tenant(v, s);
        return;
    }
    put_row("model", "%.1000s (%s, %s): %s parameters trained%s, %s frozen", c->model, s->family,
            train_config_word("dtype.param", c->dtype.param, dtype), grouped(s->plan.ntrained, a),
            c->lora.enabled ? " in adapters" : "", grouped(s->plan.nfrozen, b));
    put_row("ranks", "%u, with %s each; parameters %s", s->nranks, text_count(s->nthreads, "thread", a),
            s->plan.offload_params_nbytes ? "gathered from a file"
            : s->copies                   ? "gathered by copying"
                                          : "mapped and not copied");
    if (s->device)
        put_row("device", "%s", s->device);
    if (s->plan.nrecomputed)
        put_row("backward", "%" PRIu64 " block%s computed anew in it", s->plan.nrecomputed,
                s->plan.nrecomputed == 1 ? " is" : "s are");
    put_row("memory", "%s a rank, %s all ranks; the program itself comes on top", text_bytes(s->plan.peak_nbytes, a),
            text_bytes(s->plan.all_ranks_nbytes, b));
    if (s->plan.offload_file_nbytes)
        put_row("offload", "the optimizer state, %s a rank, in a file in %.1000s",
                text_bytes(s->plan.offload_file_nbytes, a), c->fsdp.offload);
    else if (s->plan.offload_host_nbytes)
        put_row("offload", "the optimizer state, %s a rank, in host memory",
                text_bytes(s->plan.offload_host_nbytes, a));
    if (s->plan.offload_rest_nbytes)
        put_row("offload", "the parameters, %s a rank, in host memory", text_bytes(s->plan.offload_rest_nbytes, a));
    if (s->plan.offload_grads_nbytes)
        put_row("offload", "sums of gradients, %s a rank, in a file there",
                text_bytes(s->plan.offload_grads_nbytes, a));
    if (s->plan.offload_params_nbytes)
        put_row("offload", "the parameters, %s, in a file there", text_bytes(s->plan.offload_params_nbytes, a));
    put_data("data", c->data.nfiles > 1 ? "data.train" : c->data.train, &s->data, s);
    if (c->data.eval)
        put_data("evaluation", c->data.neval_files > 1 ? "data.eval" : c->data.eval, &s->eval, s);
    if (s->date)
        put_row("date", "%s, which the chat template shows (data.date)", s->date);
    put_steps(s);
}

/* Writes the estimated remaining time, once two steps were shown. */
static void format_eta(struct run_view *v, const struct train_metrics *m, char *text, size_t nbytes)
{
    char clock[TEXT_NBYTES];
    text[0] = '\0';
    if (m->tenant) /* the others change its pace */
        return;
    if (!v->first_step) {
        v->first_step = m->step;
        v->first_ns = now_ns();
    } else if (m->step > v->first_step) {
        double each = 1e-9 * (double)(now_ns() - v->first_ns) / (double)(m->step - v->first_step);
        snprintf(text, nbytes, "ETA %s", text_clock(each * (double)(m->nsteps - m->step), clock));
    }
}

enum { FIELD_NBYTES = 48 };

/* A field of a step's line. On a narrow terminal, fields with higher order are dropped first. */
struct field {
    char text[FIELD_NBYTES];
    unsigned order;
};

/* Joins the fields. A field is shown whole or not at all. line: room for n * FIELD_NBYTES. */
static void join_fields(struct field *fields, size_t n, unsigned columns, char *line)
{
    unsigned length = 0;
    for (size_t i = 0; i < n; i++)
        length += *fields[i].text ? (unsigned)strlen(fields[i].text) + (length > 0) : 0;
    for (unsigned order = (unsigned)n; order-- > 1 && length > columns;)
        for (size_t i = 0; i < n; i++)
            if (fields[i].order == order && *fields[i].text) {
                length -= (unsigned)strlen(fields[i].text) + 1;
                *fields[i].text = '\0';
            }
    char *end = line;
    *end = '\0';
    for (size_t i = 0; i < n; i++)
        if (*fields[i].text)
            end = stpcpy(stpcpy(end, end > line ? " " : ""), fields[i].text);
}

static const char *tenant_of(const struct train_metrics *m)
{
    return m->tenant ? m->tenant : "";
}

static void keep_loss(struct run_view *v, double loss)
{
    enum { ROOM = sizeof v->losses / sizeof v->losses[0] };
    if (v->nlosses == ROOM)
        memmove(v->losses, v->losses + 1, (ROOM - 1) * sizeof *v->losses);
    v->nlosses -= v->nlosses == ROOM;
    v->losses[v->nlosses++] = loss;
}

static void draw_step(struct run_view *v, const struct train_metrics *m, const char *rest)
{
    enum { NFIELDS = 10 };
    char line[NFIELDS * FIELD_NBYTES], memory[TEXT_NBYTES], trend[TREND_NBYTES];
    struct field f[NFIELDS] = { { .order = 0 }, { .order = 1 }, { .order = 4 }, { .order = 5 }, { .order = 6 },
                                { .order = 3 }, { .order = 7 }, { .order = 2 }, { .order = 8 }, { .order = 9 } };
    snprintf(f[0].text, sizeof f[0].text, "%.20s%s%" PRIu64 "/%" PRIu64, tenant_of(m), m->tenant ? " " : "", m->step,
             m->nsteps);
    snprintf(f[1].text, sizeof f[1].text, "loss %.3f", m->loss);
    if (*trend_format(v->losses, v->nlosses, trend))
        snprintf(f[2].text, sizeof f[2].text, "(%s)", trend);
    snprintf(f[3].text, sizeof f[3].text, "norm %.3g", m->grad_norm);
    snprintf(f[4].text, sizeof f[4].text, "lr %.2g", m->lr);
    snprintf(f[5].text, sizeof f[5].text, "%.0f tok/s", m->tokens_per_second);
    snprintf(f[6].text, sizeof f[6].text, "%.3g s/it", m->step_seconds);
    snprintf(f[7].text, sizeof f[7].text, "%s", rest);
    snprintf(f[8].text, sizeof f[8].text, "%s", text_bytes(m->pss_nbytes, memory));
    if (m->nranks > 1) /* the share of the step that waited for communication */
        snprintf(f[9].text, sizeof f[9].text, "comm %.0f %%", 100 * m->comm_seconds / m->step_seconds);
    join_fields(f, NFIELDS, report_columns(), line);
    report_draw(&v->report, line);
}

static void print_step(struct run_view *v, const struct train_metrics *m, const char *rest)
{
    char memory[TEXT_NBYTES];
    report_clear(&v->report);
    fprintf(stderr,
            "%s%sstep %" PRIu64 " of %" PRIu64
            "  loss %.4f  grad norm %.4f  lr %.3g  %.0f tokens/s  %.3g s/it  %s%s%s\n",
            tenant_of(m), m->tenant ? "  " : "", m->step, m->nsteps, m->loss, m->grad_norm, m->lr, m->tokens_per_second,
            m->step_seconds, rest, *rest ? "  " : "", text_bytes(m->pss_nbytes, memory));
    v->kept_ns = now_ns();
}

/* On a terminal, returns true for the steps whose line stays as a history of the loss: the first, the last, every
 * twentieth part of the run, and one per minute. Elsewhere every line stays. */
static bool keeps_line(const struct run_view *v, const struct train_metrics *m)
{
    uint64_t every = m->nsteps / HISTORY_LINES > 0 ? m->nsteps / HISTORY_LINES : 1;
    return !v->report.terminal || m->step == (m->tenant ? 1 : v->first_step) || m->step >= m->nsteps ||
           m->step % every == 0 || now_ns() - v->kept_ns >= minute_ns;
}

void run_view_step(struct run_view *v, const struct train_metrics *m)
{
    char rest[TEXT_NBYTES], seconds[TEXT_NBYTES];
    if (v->report.quiet)
        return;
    format_eta(v, m, rest, sizeof rest);
    if (!m->tenant) /* the trend is of one loss */
        keep_loss(v, m->loss);
    if (keeps_line(v, m))
        print_step(v, m, rest);
    if (v->report.terminal && m->step < m->nsteps)
        draw_step(v, m, rest);
    if (!m->evaluated)
        return;
    report_clear(&v->report);
    fprintf(stderr, "%s%sstep %" PRIu64 "  eval loss %.4f over %" PRIu64 " token%s, in %s\n", tenant_of(m),
            m->tenant ? "  " : "", m->step, m->eval_loss, m->eval_nsupervised, fsdpck_plural(m->eval_nsupervised),
            text_seconds(m->eval_seconds, seconds));
}

/* ---- before the first step */

static void describe_phase(enum train_phase phase, uint64_t done, uint64_t total, double seconds, char *line,
                           size_t nbytes)
{
    static const char *const what[] = { [TRAIN_TOKENIZING] = "tokenizing",
                                        [TRAIN_ENCODING] = "encoding texts and pictures",
                                        [TRAIN_LOADING] = "loading the model",
                                        [TRAIN_FIRST_STEP] = "first step" };
    char a[TEXT_NBYTES], clock[TEXT_NBYTES];
    double part = total ? (double)done / (double)total : 1;
    int n = snprintf(line, nbytes, "%s: %.0f %%", what[phase], 100 * (part < 1 ? part : 1));
    if (phase == TRAIN_ENCODING)
        n += snprintf(line + n, nbytes - (size_t)n, ", %" PRIu64 " in all", total);
    else if (phase != TRAIN_FIRST_STEP)
        n += snprintf(line + n, nbytes - (size_t)n, ", %s in all", text_bytes(total, a));
    if (done && part < 1)
        snprintf(line + n, nbytes - (size_t)n, ", %s left", text_clock(seconds * (1 - part) / part, clock));
}

void run_view_phase(struct run_view *v, enum train_phase phase, uint64_t done, uint64_t total)
{
    const int64_t now = now_ns();
    char line[120];
    if (v->report.quiet)
        return;
    if (!v->phase_ns || v->phase != phase) {
        v->phase = phase;
        v->phase_ns = v->kept_ns = now;
    } else if (now - v->report.drawn_ns < redraw_ns) {
        return;
    }
    if (!v->report.terminal && now - v->kept_ns < plain_ns)
        return;
    describe_phase(phase, done, total, 1e-9 * (double)(now - v->phase_ns), line, sizeof line);
    v->report.drawn_ns = now;
    if (v->report.terminal) {
        report_draw(&v->report, line);
        return;
    }
    fprintf(stderr, "%s\n", line);
    v->kept_ns = now;
}
