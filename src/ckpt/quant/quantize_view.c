/* SPDX-License-Identifier: Apache-2.0 */
/* Presents a source with its weights quantized: a value view (engine/value_view.h) that lists several tensors for each
 * weight. Tensors that stay are passed on. */
#include "quant/quantized_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fsdpck/source.h>

#include "base/suffix.h"
#include "engine/fetch.h"
#include "engine/view.h"
#include "quant/encode.h"

/* A tensor as it is presented. */
struct shown {
    size_t inner; /* ordinal in the source: of the tensor, or of the weight */
    enum fsdpck_quant_output output;
};

struct view {
    struct fsdpck_view view;
    struct fsdpck_quant_targets targets;
    struct shown *shown; /* (tensors) */
};

/* ---- the ops ---- */

static bool has(const struct fsdpck_source *src, size_t ordinal)
{
    const struct view *v = src->impl;
    const struct shown *s = &v->shown[ordinal];
    return s->output != FSDPCK_OUT_PLAIN || fsdpck_is_computed(&v->view.inner, s->inner);
}

static int extents(struct fsdpck_source *src, size_t ordinal, const uint64_t *offset, const uint64_t *size,
                   fsdpck_extent_fn visit, void *ctx, struct fsdpck_error *err)
{
    struct view *v = src->impl;
    if (has(src, ordinal))
        return fsdpck_view_no_extents(src, ordinal, "is computed", err);
    return v->view.inner.ops->extents(&v->view.inner, v->shown[ordinal].inner, offset, size, visit, ctx, err);
}

static int inputs(struct fsdpck_source *src, size_t ordinal, fsdpck_input_fn visit, void *ctx, struct fsdpck_error *err)
{
    struct view *v = src->impl;
    const struct shown *s = &v->shown[ordinal];
    const bool constant = s->output == FSDPCK_OUT_MAP || s->output == FSDPCK_OUT_STATE;
    return constant ? 0 : visit(ctx, &v->view.inner, s->inner, err);
}

static int begin(struct fsdpck_source *src, void **state, struct fsdpck_error *err)
{
    struct view *v = src->impl;
    struct fsdpck_quant_encoder *e = malloc(sizeof *e);
    if (!e)
        return fsdpck_error_nomem(err, sizeof *e);
    int rc = fsdpck_quant_encoder_init(e, &v->view.inner, &v->targets, err);
    *state = e;
    return rc;
}

static void end(void *state)
{
    if (state)
        fsdpck_quant_encoder_free(state);
    free(state);
}

static int compute(struct fsdpck_fetch *f, void *state, size_t ordinal, const struct fsdpck_matrix_box *box, void *dst,
                   uint64_t stride, struct fsdpck_error *err)
{
    struct view *v = f->src->impl;
    const struct shown *s = &v->shown[ordinal];
    struct fsdpck_quant_encoder *e = state;
    if (s->output == FSDPCK_OUT_PLAIN)
        return fsdpck_values_pass(f, &e->fetch, s->inner, box, dst, stride, err);
    return fsdpck_quant_encode(e, f, &v->targets.list[v->targets.of[s->inner]], s->output, box, dst, stride, err);
}

/* Scales are kept when codes are computed. */
static bool late(const struct fsdpck_source *src, size_t ordinal)
{
    return ((const struct view *)src->impl)->shown[ordinal].output == FSDPCK_OUT_SCALES;
}

static void close_view(struct fsdpck_source *src)
{
    struct view *v = src->impl;
    fsdpck_quant_targets_free(&v->targets);
    fsdpck_view_close(src);
}

static const struct fsdpck_values values = { .has = has,
                                             .inputs = inputs,
                                             .begin = begin,
                                             .end = end,
                                             .nbytes = fsdpck_view_state_nbytes,
                                             .compute = compute,
                                             .late = late,
                                             .finish = fsdpck_view_finish };

static const struct fsdpck_source_ops ops = { .extents = extents, .close = close_view, .values = &values };

/* ---- the catalogue ---- */

struct listing {
    struct fsdpck_source *src;
    struct view *v;
    size_t *outer; /* (tensors of inner) ordinal of the first tensor that it became */
    size_t capacity;
    struct fsdpck_error *err;
};

static const struct fsdpck_tensor *inner_tensor(const struct view *v, size_t ordinal)
{
    return (const struct fsdpck_tensor *)v->view.inner.tensors.data + ordinal;
}

static bool stays(const struct view *v, size_t inner)
{
    return v->targets.of[inner] == UINT32_MAX;
}

/* The path of a name with a suffix: the last key has it too. */
static const struct fsdpck_key *suffixed_path(const struct listing *l, const struct fsdpck_tensor *t,
                                              const char *suffix)
{
    if (t->npath <= 1 || !*suffix)
        return t->path;
    struct fsdpck_key *path = fsdpck_arena_array(&l->src->arena, t->npath, sizeof *path, l->err);
    if (!path)
        return NULL;
    memcpy(path, t->path, t->npath * sizeof *path);
    const char *last = path[t->npath - 1].str ? path[t->npath - 1].str : "";
    char *longer = fsdpck_arena_alloc(&l->src->arena, strlen(last) + strlen(suffix) + 1, l->err);
    if (!longer)
        return NULL;
    strcpy(longer, last);
    strcat(longer, suffix);
    path[t->npath - 1].str = longer;
    return path;
}

static int suffixed_name(const struct listing *l, const struct fsdpck_tensor *t, const char *suffix, char **out)
{
    *out = fsdpck_arena_alloc(&l->src->arena, strlen(t->name) + strlen(suffix) + 1, l->err);
    if (!*out)
        return FSDPCK_ERR_NOMEM;
    strcpy(*out, t->name);
    strcat(*out, suffix);
    return 0;
}

/* Lists output k of a weight, under one of its names. alias: it is the second name of tensor `target`. */
static int show_output(const struct listing *l, size_t inner, const struct fsdpck_tensor *named, int k, bool alias,
                       size_t target)
{
    const struct fsdpck_quant_targets *targets = &l->v->targets;
    const struct fsdpck_quant_target *q = &targets->list[targets->of[inner]];
    const enum fsdpck_quant_output output = targets->form->outputs[k].output;
    uint64_t shape[2];
    char *name;
    int rc = suffixed_name(l, named, targets->form->outputs[k].suffix, &name);
    const struct fsdpck_key *path = rc ? NULL : suffixed_path(l, named, targets->form->outputs[k].suffix);
    const bool flat = named->npath <= 1;
    if (rc || (!path && l->err->code))
        return l->err->code;
    if (alias)
        return fsdpck_source_add_alias(l->src, l->src->path, name, flat ? NULL : path, flat ? 0 : named->npath, target,
                                       l->err);
    l->v->shown[l->src->tensors.count] = (struct shown){ inner, output };
    uint32_t ndim = fsdpck_quant_target_shape(targets->form, q, output, shape);
    return fsdpck_source_add_tensor(l->src, l->src->path, name, flat ? NULL : path, flat ? 0 : named->npath,
                                    targets->form->outputs[k].dtype, ndim, shape, l->err)
               ? 0
               : l->err->code;
}

static int show_weight(const struct listing *l, size_t inner, const struct fsdpck_tensor *named, bool alias)
{
    const struct fsdpck_quant_target_form *form = l->v->targets.form;
    int rc = 0;
    for (int k = 0; k < FSDPCK_QUANT_MAX_OUTPUTS && form->outputs[k].output != FSDPCK_OUT_PLAIN && !rc; k++)
        rc = show_output(l, inner, named, k, alias, l->outer[inner] + (size_t)k);
    return rc;
}

static int show_plain(const struct listing *l, size_t inner)
{
    const struct fsdpck_tensor *t = inner_tensor(l->v, inner);
    l->v->shown[l->src->tensors.count] = (struct shown){ inner, FSDPCK_OUT_PLAIN };
    return fsdpck_view_show(l->src, t, NULL, l->err);
}

static int show(const struct listing *l, size_t inner)
{
    const struct fsdpck_tensor *t = inner_tensor(l->v, inner);
    const size_t stored = t->alias_of < 0 ? inner : (size_t)t->alias_of;
    if (t->alias_of < 0)
        l->outer[inner] = l->src->tensors.count;
    if (!stays(l->v, stored))
        return show_weight(l, stored, t, t->alias_of >= 0);
    return t->alias_of < 0
               ? show_plain(l, inner)
               : fsdpck_source_add_alias(l->src, l->src->path, t->name, t->path, t->npath, l->outer[stored], l->err);
}

static int show_all(struct fsdpck_source *src, struct view *v, struct fsdpck_error *err)
{
    const size_t n = v->view.inner.tensors.count;
    struct listing l = { .src = src, .v = v, .outer = calloc(n + 1, sizeof(size_t)), .err = err };
    v->shown = fsdpck_arena_array(&src->arena, n * FSDPCK_QUANT_MAX_OUTPUTS + 1, sizeof *v->shown, err);
    int rc = !l.outer ? fsdpck_error_nomem(err, n * sizeof *l.outer) : v->shown ? 0 : FSDPCK_ERR_NOMEM;
    for (size_t i = 0; i < n && !rc; i++)
        rc = show(&l, i);
    free(l.outer);
    return rc;
}

/* ---- what is said ---- */

/* A matrix that a loader would take for a quantized one, unless the config names it. */
static bool is_kept_linear(const struct view *v, size_t inner)
{
    const struct fsdpck_tensor *t = inner_tensor(v, inner);
    return stays(v, inner) && t->ndim == 2 && fsdpck_dtype_info(t->dtype)->kind == FSDPCK_KIND_FLOAT &&
           ends_with(t->name, ".weight");
}

static void say(const struct fsdpck_source *src, const struct view *v)
{
    char line[600];
    size_t nkept = 0, at = 0;
    if (!src->opt.note)
        return;
    at += (size_t)snprintf(line, sizeof line, "quantizes %zu weight%s (%s)", v->targets.count,
                           fsdpck_plural(v->targets.count), v->targets.form->what);
    for (size_t i = 0; i < v->view.inner.tensors.count; i++) {
        const struct fsdpck_tensor *t = inner_tensor(v, i);
        if (t->alias_of >= 0 || !is_kept_linear(v, i) || ++nkept > 3)
            continue;
        if (at < sizeof line)
            at += (size_t)snprintf(line + at, sizeof line - at, "%s '%.120s'",
                                   nkept == 1 ? ", and leaves these matrices as they are:" : ",", t->name);
    }
    if (nkept > 3 && at < sizeof line)
        snprintf(line + at, sizeof line - at, " and %zu more", nkept - 3);
    src->opt.note(src->opt.ctx, line);
}

/* Says which readers do not take the first weight that needs it: transformers 5 derives the size of blocks from the
 * grid of scales, and holds the experts of a mixture in one tensor. */
static void say_limits(const struct fsdpck_source *src, const struct view *v)
{
    const struct fsdpck_quant_target_form *form = v->targets.form;
    const bool blocks = form->to == FSDPCK_TO_FP8_BLOCK;
    const bool apart = form->to == FSDPCK_TO_NVFP4 || form->to == FSDPCK_TO_NF4;
    char line[500];
    for (size_t i = 0; i < v->targets.count && src->opt.note; i++) {
        const struct fsdpck_quant_target *t = &v->targets.list[i];
        const char *name = inner_tensor(v, t->inner)->name;
        if (blocks && (t->rows % form->group_rows != 0 || t->cols % form->group_cols != 0))
            snprintf(
                line, sizeof line,
                "'%.200s' ends in a partial block: vLLM, DeepSeek and torch read it, transformers may not (--keep)",
                name);
        else if (apart && strstr(name, ".experts."))
            snprintf(line, sizeof line,
                     "transformers 5 misreads experts in this form ('%.200s'): --keep '*.experts.*' leaves them as "
                     "they are",
                     name);
        else
            continue;
        src->opt.note(src->opt.ctx, line);
        return;
    }
}

int fsdpck_source_quantize(struct fsdpck_source *src, const char *form, const char *const *keep, size_t nkeep,
                           struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    const struct fsdpck_quant_target_form *to = fsdpck_quant_target_form(form);
    err = err ? err : &own;
    if (!to)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                                "weights are quantized to fp8-block, mxfp4, nvfp4 or nf4, not to '%s'", form);
    struct view *v = calloc(1, sizeof *v);
    if (!v)
        return fsdpck_error_nomem(err, sizeof *v);
    int rc = fsdpck_quant_targets_choose(src, to, keep, nkeep, &src->arena, &v->targets, err);
    if (rc) {
        free(v);
        return rc;
    }
    fsdpck_view_install(&v->view, src, &ops);
    v->view.state_nbytes = fsdpck_quant_encoder_nbytes(&v->targets) + fsdpck_fetch_nbytes(&v->view.inner);
    rc = show_all(src, v, err);
    if (!rc) {
        say(src, v);
        say_limits(src, v);
    }
    return rc;
}

/* ---- config.json ---- */

bool fsdpck_quantized_by_view(const struct fsdpck_source *src)
{
    return src->ops->values == &values;
}

const struct fsdpck_quant_target_form *fsdpck_quantized_form(const struct fsdpck_source *src)
{
    return ((const struct view *)src->impl)->targets.form;
}

bool fsdpck_quantized_is_kept(const struct fsdpck_source *src, size_t ordinal)
{
    const struct view *v = src->impl;
    const struct shown *s = &v->shown[ordinal];
    return s->output == FSDPCK_OUT_PLAIN && is_kept_linear(v, s->inner);
}
