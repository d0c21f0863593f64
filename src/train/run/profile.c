/* SPDX-License-Identifier: Apache-2.0 */
/* A device that wraps the kernels of another one and times each call. */
#include "run/profile.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/stream_timer.h"
#include "rank/files.h"
#include "rank/gather.h"
#include "run/plan_groups.h"

enum kind {
    GEMM,
    LORA,
    ATTENTION,
    ATTENTION_GRAD,
    NORM,
    ROPE,
    SWIGLU,
    LOSS,
    EMBEDDING,
    OPTIMIZER,
    DEQUANTIZE,
    EXPERTS,
    OTHER,
    NKINDS
};
static const char *const kind_names[NKINDS] = {
    "matrix products", "adapters", "attention", "attention backward", "norms",        "rope",
    "swiglu",          "loss",     "embedding", "optimizer and norm", "dequantizing", "experts",
    "other kernels"
};

enum { NINTERVALS = 4096 };

/* Times of kernels and waits. */
struct totals {
    uint64_t kernels_ns[NKINDS];
    uint64_t *gather_ns, *exchange_ns; /* (layout.ngroups) at the first group of those that are gathered together */
};

struct profile {
    struct stream_timer *timer; /* times of kernels, by kind */
    struct rank *rank;
    const struct kern_device *inner;
    struct kern_device device;
    struct kern_ops ops;
    struct totals sums; /* of the steps */
    uint64_t nsteps;
    double step, data, exposed, gathers, exchanges, hidden, save_stall, offload_wait;
};

/* Kernels take no context argument. */
static _Thread_local struct profile *active;

#define TIMED(name, kind, params, args) \
    static void timed_##name params \
    { \
        stream_timer_begin(active->timer, kind, s); \
        active->inner->ops->name args; \
        stream_timer_end(active->timer, s); \
    }
#define STREAM struct kern_stream *s
/* Size queries: no stream runs them. */
#define UNTIMED(name) \
    static size_t timed_##name(const struct kern_stream *s, const struct kern_attention_shape *a) \
    { \
        return active->inner->ops->name(s, a); \
    }

TIMED(gemm, GEMM, (STREAM, const struct kern_gemm *a), (s, a))
TIMED(rmsnorm, NORM, (STREAM, const struct kern_rmsnorm *a), (s, a))
TIMED(rmsnorm_grad, NORM, (STREAM, const struct kern_rmsnorm_grad *a), (s, a))
UNTIMED(attention_table_bytes)
UNTIMED(attention_scratch)
UNTIMED(attention_grad_scratch)
TIMED(rope, ROPE, (STREAM, const struct kern_rope_apply *a), (s, a))
TIMED(attention_table, ATTENTION, (STREAM, struct kern_attention_shape *a), (s, a))
TIMED(attention, ATTENTION, (STREAM, const struct kern_attention *a), (s, a))
TIMED(attention_grad, ATTENTION_GRAD, (STREAM, const struct kern_attention_grad *a), (s, a))
TIMED(swiglu, SWIGLU, (STREAM, struct kern_mat y, struct kern_cmat g, struct kern_cmat u, int64_t m, int64_t n),
      (s, y, g, u, m, n))
TIMED(swiglu_grad, SWIGLU, (STREAM, const struct kern_swiglu_grad *a), (s, a))
TIMED(cast, OTHER, (STREAM, struct kern_mat d, struct kern_cmat x, int64_t m, int64_t n), (s, d, x, m, n))
TIMED(add, OTHER, (STREAM, struct kern_mat d, struct kern_cmat a, struct kern_cmat b, int64_t m, int64_t n),
      (s, d, a, b, m, n))
TIMED(scale, OTHER, (STREAM, struct kern_mat d, struct kern_cmat x, float f, int64_t m, int64_t n), (s, d, x, f, m, n))
TIMED(sum_rows, OTHER, (STREAM, float *d, struct kern_cmat x, int64_t m, int64_t n, float *scratch),
      (s, d, x, m, n, scratch))
TIMED(sum, LOSS, (STREAM, double *d, const float *x, int64_t n), (s, d, x, n))
TIMED(gather_rows, EMBEDDING,
      (STREAM, struct kern_mat d, struct kern_cmat x, const int32_t *i, int64_t m, int64_t n, int64_t k),
      (s, d, x, i, m, n, k))
TIMED(scatter_rows, EMBEDDING,
      (STREAM, struct kern_mat d, struct kern_cmat x, const int32_t *i, int64_t m, int64_t n, int64_t k),
      (s, d, x, i, m, n, k))
TIMED(scatter_add, EMBEDDING,
      (STREAM, struct kern_mat d, struct kern_cmat x, const int32_t *i, int64_t m, int64_t n, int64_t k),
      (s, d, x, i, m, n, k))
TIMED(gather_cols, EMBEDDING,
      (STREAM, struct kern_mat d, struct kern_cmat x, const int32_t *i, int64_t m, int64_t n, int64_t k),
      (s, d, x, i, m, n, k))
TIMED(scatter_add_cols, EMBEDDING,
      (STREAM, struct kern_mat d, struct kern_cmat x, const int32_t *i, int64_t m, int64_t n, int64_t k),
      (s, d, x, i, m, n, k))
TIMED(cross_entropy, LOSS, (STREAM, const struct kern_cross_entropy *a), (s, a))
TIMED(lora_down, LORA, (STREAM, const struct kern_lora *a), (s, a))
TIMED(lora_up_grad, LORA, (STREAM, const struct kern_lora *a), (s, a))
TIMED(lora_grad_a, LORA, (STREAM, const struct kern_lora *a), (s, a))
TIMED(lora_grad_b, LORA, (STREAM, const struct kern_lora *a), (s, a))
TIMED(dora_norm, LORA, (STREAM, const struct kern_dora_norm *a), (s, a))
TIMED(dora_scale, LORA, (STREAM, const struct kern_dora_scale *a), (s, a))
TIMED(dora_grad, LORA, (STREAM, const struct kern_dora_grad *a), (s, a))
TIMED(uniform, OTHER, (STREAM, float *d, int64_t n, struct kern_philox rng, uint64_t i, float low, float high),
      (s, d, n, rng, i, low, high))
TIMED(dropout, OTHER,
      (STREAM, struct kern_mat y, struct kern_cmat x, int64_t m, int64_t n, const struct kern_dropout *a),
      (s, y, x, m, n, a))
TIMED(dequantize, DEQUANTIZE, (STREAM, const struct kern_dequantize *a), (s, a))
TIMED(gemv, GEMM, (STREAM, const struct kern_gemv *a), (s, a))
TIMED(attention_one, ATTENTION, (STREAM, const struct kern_attention_one *a), (s, a))
TIMED(adamw, OPTIMIZER, (STREAM, const struct kern_adamw *a), (s, a))
TIMED(sum_squares, OPTIMIZER, (STREAM, double *d, const struct kern_rows *x, size_t n), (s, d, x, n))

#define TIMED_EXPERTS(name, type) \
    static void timed_expert_##name(STREAM, const struct kern_##type *a) \
    { \
        stream_timer_begin(active->timer, EXPERTS, s); \
        active->inner->experts->name(s, a); \
        stream_timer_end(active->timer, s); \
    }
KERN_EXPERT_OPS(TIMED_EXPERTS)

#define ROW(name, type) .name = timed_expert_##name,
static const struct kern_expert_ops timed_experts = { KERN_EXPERT_OPS(ROW) };
#undef ROW

#define TIMED_IMAGES(name, kind, params, args) \
    static void timed_image_##name params \
    { \
        stream_timer_begin(active->timer, kind, s); \
        active->inner->images->name args; \
        stream_timer_end(active->timer, s); \
    }
#define PICTURE STREAM, struct kern_mat y, struct kern_cmat x
TIMED_IMAGES(modulate, NORM, (STREAM, const struct kern_modulate *a), (s, a))
TIMED_IMAGES(modulate_grad, NORM, (STREAM, const struct kern_modulate_grad *a), (s, a))
TIMED_IMAGES(gate, OTHER, (STREAM, const struct kern_gate *a), (s, a))
TIMED_IMAGES(square_error, LOSS, (STREAM, const struct kern_square_error *a), (s, a))
TIMED_IMAGES(silu, OTHER, (PICTURE, int64_t m, int64_t n), (s, y, x, m, n))
TIMED_IMAGES(conv, GEMM, (STREAM, const struct kern_conv *a), (s, a))
TIMED_IMAGES(group_norm, NORM, (STREAM, const struct kern_group_norm *a), (s, a))
TIMED_IMAGES(enlarge, OTHER, (PICTURE, int64_t h, int64_t w, int64_t n), (s, y, x, h, w, n))

/* A size query. */
static size_t timed_image_conv_scratch(struct kern_stream *s, const struct kern_conv *c)
{
    return active->inner->images->conv_scratch(s, c);
}

#define ROW(name, type) .name = timed_image_##name,
static const struct kern_image_ops timed_images = { KERN_IMAGE_OPS(ROW) };
#undef ROW

static int totals_new(struct totals *t, uint32_t ngroups, struct fsdpck_error *err)
{
    t->gather_ns = calloc(ngroups, sizeof *t->gather_ns);
    t->exchange_ns = calloc(ngroups, sizeof *t->exchange_ns);
    return t->gather_ns && t->exchange_ns ? 0 : fsdpck_error_nomem(err, ngroups * sizeof *t->gather_ns);
}

static void totals_free(struct totals *t)
{
    free(t->gather_ns);
    free(t->exchange_ns);
}

/* Adds sign times the totals of now. */
static void totals_add(const struct profile *p, struct totals *t, int sign)
{
    const uint64_t factor = (uint64_t)(int64_t)sign; /* modulo 2^64 */
    for (unsigned k = 0; k < NKINDS; k++)
        t->kernels_ns[k] += factor * stream_timer_ns(p->timer, k);
    for (uint32_t first = 0, last; first < p->rank->job->layout.ngroups; first = last + 1) {
        uint64_t gather_ns, exchange_ns;
        last = gather_last_of_unit(p->rank->gather, first);
        rank_group_times(p->rank, first, last, &gather_ns, &exchange_ns);
        t->gather_ns[first] += factor * gather_ns;
        t->exchange_ns[first] += factor * exchange_ns;
    }
}

int profile_new(struct rank *r, struct profile **out, struct fsdpck_error *err)
{
    struct profile *p = calloc(1, sizeof *p);
    *out = p;
    if (!p)
        return fsdpck_error_nomem(err, sizeof *p);
    p->rank = r;
    p->inner = r->compute->device;
    int rc = totals_new(&p->sums, r->job->layout.ngroups, err);
    if (!rc)
        rc = stream_timer_new(p->inner, r->compute->index, NKINDS, NINTERVALS, &p->timer, err);
    if (rc)
        return rc;
    p->device = *p->inner;
    p->ops = *p->inner->ops;
    p->device.ops = &p->ops;
    p->device.experts = &timed_experts;
    p->device.images = p->inner->images ? &timed_images : NULL;
    p->device.record = NULL; /* kernels in a recorded graph cannot be timed */
#define TAKE(name, type) p->ops.name = timed_##name;
    KERN_OPS(TAKE)
#undef TAKE
    r->compute->device = &p->device;
    active = p;
    return 0;
}

void profile_free(struct profile *p)
{
    if (!p)
        return;
    p->rank->compute->device = p->inner;
    active = NULL;
    totals_free(&p->sums);
    stream_timer_free(p->timer);
    free(p);
}

void profile_begin(struct profile *p)
{
    totals_add(p, &p->sums, -1);
}

void profile_end(struct profile *p)
{
    totals_add(p, &p->sums, 1);
}

void profile_step(struct profile *p, const struct train_metrics *m)
{
    p->nsteps++;
    p->step += m->step_seconds + m->save_stall_seconds;
    p->data += m->data_wait_seconds;
    p->exposed += m->comm_seconds;
    p->gathers += m->comm_gather_seconds;
    p->exchanges += m->comm_exchange_seconds;
    p->save_stall += m->save_stall_seconds;
    p->hidden += m->comm_hidden_seconds;
    p->offload_wait += m->offload_wait_seconds;
}

static void put_row(const struct profile *p, json_t *rows, const char *name, double seconds)
{
    const struct train_options *opt = p->rank->job->opt;
    char line[160];
    double share = p->step > 0 ? seconds / p->step : 0;
    json_array_append_new(rows, json_pack("{s:s, s:f, s:f}", "what", name, "seconds_per_step",
                                          seconds / (double)p->nsteps, "share", share));
    snprintf(line, sizeof line, "profile: %-28s %9.3f ms a step  %5.1f %%", name, 1e3 * seconds / (double)p->nsteps,
             100 * share);
    if (opt->note)
        opt->note(opt->ctx, line);
}

static json_t *make_rows(const struct profile *p)
{
    json_t *rows = json_array();
    double rest = p->step - p->exposed - p->data - p->save_stall - p->offload_wait;
    for (int k = 0; k < NKINDS; k++) {
        rest -= 1e-9 * (double)p->sums.kernels_ns[k];
        put_row(p, rows, kind_names[k], 1e-9 * (double)p->sums.kernels_ns[k]);
    }
    put_row(p, rows, "waiting for parameters", p->gathers);
    put_row(p, rows, "waiting for gradients", p->exchanges);
    put_row(p, rows, "waiting for other ranks", p->exposed - p->gathers - p->exchanges);
    put_row(p, rows, "communication, hidden", p->hidden);
    put_row(p, rows, "waiting for data", p->data);
    put_row(p, rows, "waiting for a save", p->save_stall);
    if (p->rank->offload)
        put_row(p, rows, "waiting for fsdp.offload", p->offload_wait);
    put_row(p, rows, "the rest of the step", rest > 0 ? rest : 0);
    return rows;
}

struct group_wait {
    char name[64];
    uint64_t gather_ns, exchange_ns;
};

static void note_group(const struct profile *p, const struct group_wait *w)
{
    const struct train_options *opt = p->rank->job->opt;
    const double ms = 1e-6 / (double)p->nsteps;
    char line[200];
    snprintf(line, sizeof line, "profile: most was waited for %s: %.3f ms a step for parameters, %.3f for gradients",
             w->name, ms * (double)w->gather_ns, ms * (double)w->exchange_ns);
    if (opt->note && w->gather_ns + w->exchange_ns > 0)
        opt->note(opt->ctx, line);
}

/* Waits for the threads that communicate, by groups that are gathered together. */
static json_t *make_groups(const struct profile *p)
{
    const struct layout *l = &p->rank->job->layout;
    const double seconds = 1e-9 / (double)p->nsteps;
    struct group_wait most = { 0 };
    json_t *groups = json_array();
    for (uint32_t first = 0, last; first < l->ngroups; first = last + 1) {
        struct group_wait w = { .gather_ns = p->sums.gather_ns[first], .exchange_ns = p->sums.exchange_ns[first] };
        last = gather_last_of_unit(p->rank->gather, first);
        plan_groups_name(l, first, last, w.name);
        json_array_append_new(groups, json_pack("{s:s, s:f, s:f}", "parameters", w.name, "gather_seconds_per_step",
                                                seconds * (double)w.gather_ns, "exchange_seconds_per_step",
                                                seconds * (double)w.exchange_ns));
        most = w.gather_ns + w.exchange_ns > most.gather_ns + most.exchange_ns ? w : most;
    }
    note_group(p, &most);
    return groups;
}

static json_t *make_load(const struct rank *r)
{
    const struct train_options *opt = r->job->opt;
    const double seconds = 1e-9 * (double)r->load_ns, rate = r->load_ns ? (double)r->load_nbytes / seconds : 0;
    char line[160];
    snprintf(line, sizeof line, "profile: loaded %.2f GB in %.3f s, %.2f GB/s", 1e-9 * (double)r->load_nbytes, seconds,
             1e-9 * rate);
    if (opt->note)
        opt->note(opt->ctx, line);
    return json_pack("{s:I, s:f}", "bytes", (json_int_t)r->load_nbytes, "seconds", seconds);
}

int profile_report(const struct profile *p, struct fsdpck_error *err)
{
    char path[FILES_PATH];
    int rc = files_join(path, p->rank->job->config->output_dir, "profile.json", err);
    if (rc || p->nsteps == 0)
        return rc;
    json_t *rows = make_rows(p), *groups = make_groups(p);
    json_t *o = json_pack("{s:i, s:o, s:I, s:f, s:o, s:o}", "rank", (int)p->rank->comm->rank, "load",
                          make_load(p->rank), "steps", (json_int_t)p->nsteps, "step_seconds",
                          p->step / (double)p->nsteps, "rows", rows, "groups", groups);
    if (!o || json_dump_file(o, path, JSON_INDENT(2)))
        rc = fsdpck_error_set(err, FSDPCK_ERR_IO, path, "could not be written");
    json_decref(o);
    return rc;
}
