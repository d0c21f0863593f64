/* SPDX-License-Identifier: Apache-2.0 */
/* Presents a quantized base merged: a value view (engine/value_view.h) that computes the codes and scales of the
 * weights that the adapter changes from their merged values. */
#include "lora/requantize.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/checks.h"
#include "lora/adapter.h"
#include "lora/merged_view.h"
#include "lora/requantize_impl.h"
#include "quant/again.h"
#include "quant/config_find.h"

static const struct fsdpck_tensor *weight_of(const struct requantize_view *v, const struct fsdpck_quant_target *t)
{
    return &source_tensors(v->merged)[t->inner];
}

/* ---- the ops ---- */

static bool has(const struct fsdpck_source *src, size_t ordinal)
{
    return ((const struct requantize_view *)src->impl)->shown[ordinal].from != STORED;
}

static int extents(struct fsdpck_source *src, size_t ordinal, const uint64_t *offset, const uint64_t *size,
                   fsdpck_extent_fn visit, void *ctx, struct fsdpck_error *err)
{
    struct requantize_view *v = src->impl;
    if (has(src, ordinal))
        return fsdpck_view_no_extents(src, ordinal, "is merged", err);
    return v->view.inner.ops->extents(&v->view.inner, ordinal, offset, size, visit, ctx, err);
}

static int inputs(struct fsdpck_source *src, size_t ordinal, fsdpck_input_fn visit, void *ctx, struct fsdpck_error *err)
{
    struct requantize_view *v = src->impl;
    const struct requantize_shown *s = &v->shown[ordinal];
    if (s->from == STORED)
        return visit(ctx, &v->view.inner, ordinal, err);
    return visit(ctx, v->merged, s->from == MERGED ? s->merged : v->targets.list[s->merged].inner, err);
}

static void end(void *state)
{
    struct requantize_state *s = state;
    if (s) {
        fsdpck_quant_encoder_free(&s->encoder);
        fsdpck_fetch_free(&s->before);
        fsdpck_fetch_free(&s->merged);
        free(s->scales.data);
        free(s->turned.data);
        free(s->room);
    }
    free(s);
}

static int begin(struct fsdpck_source *src, void **state, struct fsdpck_error *err)
{
    struct requantize_view *v = src->impl;
    const uint64_t nbytes = REQUANTIZE_ROOM * REQUANTIZE_PIECE_NELEM * sizeof(float);
    struct requantize_state *s = calloc(1, sizeof *s);
    if (!s || !(s->room = malloc(nbytes))) {
        free(s);
        return fsdpck_error_nomem(err, nbytes);
    }
    *state = s;
    s->view = v;
    int rc = fsdpck_fetch_init(&s->before, fsdpck_lora_merged_base(v->merged), err);
    if (!rc)
        rc = fsdpck_fetch_init(&s->merged, v->merged, err);
    if (!rc && v->targets.count)
        rc = fsdpck_quant_encoder_init(&s->encoder, v->merged, &v->targets, err);
    s->encoder.watch = fsdpck_lora_requantize_measure_turned;
    s->encoder.watch_ctx = s;
    return rc;
}

static int compute(struct fsdpck_fetch *f, void *state, size_t ordinal, const struct fsdpck_matrix_box *box, void *dst,
                   uint64_t stride, struct fsdpck_error *err)
{
    struct requantize_view *v = f->src->impl;
    const struct requantize_shown *shown = &v->shown[ordinal];
    struct requantize_state *s = state;
    if (shown->from == MERGED)
        return fsdpck_values_pass(f, &s->merged, shown->merged, box, dst, stride, err);
    struct fsdpck_quant_target *t = &v->targets.list[shown->merged];
    int rc = fsdpck_quant_encode(&s->encoder, f, t, shown->output, box, dst, stride, err);
    if (rc || f->dry || shown->output != FSDPCK_OUT_CODES || t->turned_rows)
        return rc;
    return fsdpck_lora_requantize_measure(v, s, t, box, dst, stride, err);
}

/* Scales are kept when codes are computed. */
static bool late(const struct fsdpck_source *src, size_t ordinal)
{
    const struct requantize_shown *s = &((const struct requantize_view *)src->impl)->shown[ordinal];
    return s->from == QUANTIZED && (s->output == FSDPCK_OUT_SCALES || s->output == FSDPCK_OUT_NESTED);
}

static int finish(struct fsdpck_source *src, uint64_t *read_nbytes, struct fsdpck_error *err)
{
    struct requantize_view *v = src->impl;
    int rc = fsdpck_view_finish(src, read_nbytes, err);
    if (!rc)
        rc = fsdpck_checks_finish(v->merged, read_nbytes, err);
    return rc ? rc : fsdpck_checks_finish(v->adapter, read_nbytes, err);
}

static void free_own(struct requantize_view *v)
{
    for (size_t i = 0; i < v->targets.count; i++)
        pthread_mutex_destroy(&v->rounding[i].lock);
    fsdpck_quant_targets_free(&v->targets);
    fsdpck_source_close(v->merged);
}

static void close_view(struct fsdpck_source *src)
{
    free_own(src->impl);
    fsdpck_view_close(src);
}

void fsdpck_lora_requantize_end(struct fsdpck_source *base)
{
    free_own(base->impl);
    fsdpck_view_remove(base);
}

static const struct fsdpck_values values = { .has = has,
                                             .inputs = inputs,
                                             .begin = begin,
                                             .end = end,
                                             .nbytes = fsdpck_view_state_nbytes,
                                             .compute = compute,
                                             .late = late,
                                             .finish = finish };

static const struct fsdpck_source_ops ops = { .extents = extents, .close = close_view, .values = &values };

/* ---- the catalogue ---- */

/* Reads how a weight's scales are quantized. */
static int read_nested(struct fsdpck_source *base, const struct fsdpck_quant_weight *w,
                       const struct fsdpck_quant_nested **out, struct fsdpck_error *err)
{
    if (w->rule != FSDPCK_SCALE_NESTED)
        return 0;
    struct fsdpck_quant_nested *q = fsdpck_arena_array(&base->arena, 1, sizeof *q, err);
    if (!q)
        return FSDPCK_ERR_NOMEM;
    const struct fsdpck_read read = { .tensor = quant_part(base, w, FSDPCK_QUANT_NESTED_MAP), .dst = q->map };
    q->offset = w->nested_offset;
    q->block = w->nested_block;
    *out = q;
    return fsdpck_source_read(base, &read, 1, err);
}

static int add_target(struct fsdpck_source *base, struct requantize_view *v, const struct fsdpck_quant_weight *w,
                      size_t merged, struct fsdpck_error *err)
{
    struct fsdpck_quant_target *t = &v->targets.list[v->targets.count];
    struct fsdpck_rounding *sum = &v->rounding[v->targets.count];
    const struct fsdpck_quant_target_form *form = &v->forms[v->targets.count];
    const struct fsdpck_tensor *codes = quant_part(base, w, FSDPCK_QUANT_CODES);
    *t = (struct fsdpck_quant_target){ .form = form,
                                       .inner = merged,
                                       .rows = w->nmat * w->rows,
                                       .cols = w->cols,
                                       .turned_rows = w->transposed ? w->rows : 0,
                                       .unit_nbytes = codes->ndim == 4 ? codes->shape[3] : 0,
                                       .scales_in_line = !form->flat && form->to == FSDPCK_TO_FP8_SCALED &&
                                                         quant_part(base, w, FSDPCK_QUANT_SCALE)->ndim == 1 };
    int rc = read_nested(base, w, &t->nested, err);
    if (rc)
        return rc;
    if (pthread_mutex_init(&t->lock, NULL) != 0)
        return fsdpck_error_nomem(err, sizeof t->lock);
    if (pthread_mutex_init(&sum->lock, NULL) != 0) {
        pthread_mutex_destroy(&t->lock);
        return fsdpck_error_nomem(err, sizeof sum->lock);
    }
    for (int p = 0; p < FSDPCK_QUANT_NPARTS; p++) {
        const enum fsdpck_quant_output output = fsdpck_quant_output_of((enum fsdpck_quant_part)p);
        if (w->part[p] != SIZE_MAX && output != FSDPCK_OUT_PLAIN)
            v->shown[w->part[p]] = (struct requantize_shown){ QUANTIZED, output, v->targets.count };
    }
    v->targets.count++;
    return 0;
}

/* Adds a quantized weight of the base, if the adapter changes it. */
static int add_weight(struct fsdpck_source *base, struct requantize_view *v, const struct fsdpck_quant_weight *w,
                      const struct fsdpck_quant_config *config, struct fsdpck_error *err)
{
    const size_t merged = fsdpck_names_find(&v->merged->names, w->name);
    if (merged == SIZE_MAX || source_tensors(v->merged)[merged].alias_of >= 0 ||
        !fsdpck_lora_merged_has(v->merged, merged))
        return 0;
    int rc = fsdpck_quant_form_again(base, w, config, &v->forms[v->targets.count], err);
    return rc ? rc : add_target(base, v, w, merged, err);
}

/* Tensors outside quantized weights have the same names in both. Returns how many the adapter changes. */
static size_t add_others(const struct fsdpck_source *base, struct requantize_view *v,
                         const struct fsdpck_quant_weights *weights)
{
    size_t n = 0;
    for (size_t i = 0; i < base->tensors.count; i++) {
        const size_t merged = fsdpck_names_find(&v->merged->names, source_tensors(base)[i].name);
        if (weights->role[i] != FSDPCK_QUANT_PLAIN || source_tensors(base)[i].alias_of >= 0 || merged == SIZE_MAX ||
            !fsdpck_lora_merged_has(v->merged, merged))
            continue;
        v->shown[i] = (struct requantize_shown){ MERGED, FSDPCK_OUT_PLAIN, merged };
        n++;
    }
    return n;
}

/* Refuses a base that does not show everything that the adapter changes under the names of its files. */
static int check_all_found(const struct fsdpck_source *base, const struct requantize_view *v, size_t nfound,
                           struct fsdpck_error *err)
{
    size_t nchanged = 0;
    for (size_t i = 0; i < v->merged->tensors.count; i++)
        nchanged += fsdpck_lora_merged_has(v->merged, i);
    if (nfound == nchanged)
        return 0;
    fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, base->path,
                     "has, under the names it was opened with, %zu of the %zu tensors that the adapter changes", nfound,
                     nchanged);
    fsdpck_error_hint(err, "open the base under its own names, or merge into the dequantized weights");
    return err->code;
}

static int find_changes(struct fsdpck_source *base, struct requantize_view *v, struct fsdpck_error *err)
{
    struct fsdpck_quant_config config;
    struct fsdpck_quant_weights weights;
    int rc = fsdpck_quant_config_find(base, NULL, &config, err);
    if (!rc)
        rc = fsdpck_quant_find(base, &config, &base->arena, &weights, err);
    if (rc)
        return rc;
    v->shown = fsdpck_arena_array(&base->arena, base->tensors.count + 1, sizeof *v->shown, err);
    v->targets.list = fsdpck_arena_array(&base->arena, weights.count + 1, sizeof *v->targets.list, err);
    v->rounding = fsdpck_arena_array(&base->arena, weights.count + 1, sizeof *v->rounding, err);
    v->forms = fsdpck_arena_array(&base->arena, weights.count + 1, sizeof *v->forms, err);
    if (!v->shown || !v->targets.list || !v->rounding || !v->forms)
        return FSDPCK_ERR_NOMEM;
    for (size_t i = 0; i < weights.count && !rc; i++)
        rc = add_weight(base, v, &weights.list[i], &config, err);
    const size_t nothers = add_others(base, v, &weights);
    return rc ? rc : check_all_found(base, v, v->targets.count + nothers, err);
}

/* Values of a piece that is measured whole. */
static uint64_t turned_nelem(const struct requantize_view *v)
{
    for (size_t i = 0; i < v->targets.count; i++)
        if (v->targets.list[i].turned_rows)
            return 2 * FSDPCK_QUANT_MAX_GROUP;
    return 0;
}

int fsdpck_lora_requantize(struct fsdpck_source *base, struct fsdpck_source *merged, struct fsdpck_source *adapter,
                           struct fsdpck_error *err)
{
    struct requantize_view *v = calloc(1, sizeof *v);
    if (!v) {
        fsdpck_source_close(merged);
        return fsdpck_error_nomem(err, sizeof *v);
    }
    v->merged = merged;
    v->adapter = adapter;
    int rc = find_changes(base, v, err);
    fsdpck_view_install(&v->view, base, &ops); /* from here on, closing the base frees all */
    v->view.state_nbytes = 2 * fsdpck_fetch_nbytes(merged) + fsdpck_fetch_nbytes(fsdpck_lora_merged_base(merged)) +
                           (REQUANTIZE_ROOM * REQUANTIZE_PIECE_NELEM + turned_nelem(v)) * sizeof(float) +
                           (v->targets.count ? fsdpck_quant_encoder_nbytes(&v->targets) : 0);
    if (!rc)
        rc = fsdpck_view_show_all(base, err);
    if (rc)
        fsdpck_lora_requantize_end(base);
    return rc;
}

/* ---- what is said ---- */

void fsdpck_lora_requantize_note(const struct fsdpck_source *base, const struct fsdpck_options *opt)
{
    const struct requantize_view *v = base->impl;
    double sum = 0, most = 0;
    size_t n = 0, worst = 0;
    for (size_t i = 0; i < v->targets.count; i++) {
        const struct fsdpck_rounding *r = &v->rounding[i];
        const double lost = r->change > 0 ? sqrt(r->error / r->change) : 0;
        n += r->change > 0;
        sum += lost;
        worst = lost > most ? i : worst;
        most = lost > most ? lost : most;
    }
    if (n)
        fsdpck_lora_note(opt,
                         "%zu merged weight%s quantized again (%s): the rounding errors have %.3g %% of the norm of "
                         "what the adapter adds, on average, and %.3g %% at most ('%s')",
                         v->targets.count, v->targets.count == 1 ? " is" : "s are", v->forms->what,
                         100 * sum / (double)n, 100 * most, weight_of(v, &v->targets.list[worst])->name);
}
