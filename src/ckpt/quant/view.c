/* SPDX-License-Identifier: Apache-2.0 */
/* Presents a source with its quantized weights dequantized, or packed (fsdpck/packed.h): a value view
 * (engine/value_view.h). Tensors that are not quantized stay as they are stored; codes, scales and scales of
 * activations are no longer listed. */
#include <fsdpck/packed.h>
#include <fsdpck/select.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/view.h"
#include "hf/quantized.h"
#include "quant/compute.h"
#include "quant/config_find.h"
#include "quant/pack.h"
#include "quant/pack_view.h"

struct view {
    struct fsdpck_view view;
    struct fsdpck_quant_weights weights;
    struct fsdpck_packed *packed; /* (weights.count) rows 0: the weight is dequantized. NULL: all are */
    size_t *stored;               /* (tensors) ordinal in inner: of the tensor, or of the codes */
    enum fsdpck_dtype dtype;
};

/* ---- the ops ---- */

/* The weight whose codes a tensor of inner is; NULL: none. */
static const struct fsdpck_quant_weight *weight_at(const struct view *v, size_t inner)
{
    return v->weights.role[inner] == FSDPCK_QUANT_IS_CODES ? &v->weights.list[v->weights.weight_of[inner]] : NULL;
}

static const struct fsdpck_quant_weight *weight_of(const struct view *v, size_t ordinal)
{
    return weight_at(v, v->stored[ordinal]);
}

/* NULL: the weight is dequantized. */
static const struct fsdpck_packed *packed_of(const struct view *v, const struct fsdpck_quant_weight *w)
{
    const struct fsdpck_packed *p = v->packed ? &v->packed[w - v->weights.list] : NULL;
    return p && p->rows ? p : NULL;
}

static bool has(const struct fsdpck_source *src, size_t ordinal)
{
    const struct view *v = src->impl;
    return weight_of(v, ordinal) || fsdpck_is_computed(&v->view.inner, v->stored[ordinal]);
}

static int extents(struct fsdpck_source *src, size_t ordinal, const uint64_t *offset, const uint64_t *size,
                   fsdpck_extent_fn visit, void *ctx, struct fsdpck_error *err)
{
    struct view *v = src->impl;
    if (has(src, ordinal))
        return fsdpck_view_no_extents(src, ordinal, "is dequantized", err);
    return v->view.inner.ops->extents(&v->view.inner, v->stored[ordinal], offset, size, visit, ctx, err);
}

static int inputs(struct fsdpck_source *src, size_t ordinal, fsdpck_input_fn visit, void *ctx, struct fsdpck_error *err)
{
    struct view *v = src->impl;
    const struct fsdpck_quant_weight *w = weight_of(v, ordinal);
    int rc = w ? 0 : visit(ctx, &v->view.inner, v->stored[ordinal], err);
    for (int p = 0; w && p < FSDPCK_QUANT_NPARTS && !rc; p++)
        if (w->part[p] != SIZE_MAX)
            rc = visit(ctx, &v->view.inner, w->part[p], err);
    return rc;
}

static int begin(struct fsdpck_source *src, void **state, struct fsdpck_error *err)
{
    struct view *v = src->impl;
    struct fsdpck_quant_inputs *in = malloc(sizeof *in);
    if (!in)
        return fsdpck_error_nomem(err, sizeof *in);
    int rc = fsdpck_quant_inputs_init(in, &v->view.inner, v->dtype, err);
    if (rc)
        free(in);
    else
        *state = in;
    return rc;
}

static void end(void *state)
{
    if (state)
        fsdpck_quant_inputs_free(state);
    free(state);
}

static int compute(struct fsdpck_fetch *f, void *state, size_t ordinal, const struct fsdpck_matrix_box *box, void *dst,
                   uint64_t stride, struct fsdpck_error *err)
{
    struct view *v = f->src->impl;
    struct fsdpck_quant_inputs *in = state;
    const struct fsdpck_quant_weight *w = weight_of(v, ordinal);
    const struct fsdpck_packed *packed = w ? packed_of(v, w) : NULL;
    if (packed)
        return fsdpck_quant_pack(in, f, w, packed, box, dst, stride, err);
    return w ? fsdpck_quant_compute(in, f, w, box, dst, stride, err)
             : fsdpck_values_pass(f, &in->fetch, v->stored[ordinal], box, dst, stride, err);
}

/* ---- the catalogue ---- */

/* The path of a weight's name: that of its codes, with another last key. NULL: a flat name. */
static const struct fsdpck_key *weight_path(struct fsdpck_source *src, const struct fsdpck_tensor *codes,
                                            const char *name, struct fsdpck_error *err)
{
    if (codes->npath <= 1 || strcmp(codes->name, name) == 0)
        return codes->path;
    struct fsdpck_key *path = fsdpck_arena_array(&src->arena, codes->npath, sizeof *path, err);
    if (!path)
        return NULL;
    memcpy(path, codes->path, codes->npath * sizeof *path);
    const char *last = path[codes->npath - 1].str;
    size_t before = last ? strlen(codes->name) - strlen(last) : 0;
    path[codes->npath - 1].str = last && before < strlen(name) ? name + before : name;
    return path;
}

static int show_weight(struct fsdpck_source *src, const struct view *v, const struct fsdpck_tensor *codes,
                       const struct fsdpck_quant_weight *w, struct fsdpck_error *err)
{
    const struct fsdpck_key *path = weight_path(src, codes, w->name, err);
    const struct fsdpck_packed *packed = packed_of(v, w);
    const uint64_t rows[2] = { packed ? packed->rows : 0, packed ? packed->row_nbytes : 0 };
    bool flat = codes->npath <= 1 && strcmp(codes->name, w->name) != 0;
    if (!path && err->code)
        return err->code;
    return fsdpck_source_add_tensor(src, src->path, w->name, flat ? NULL : path, flat ? 0 : codes->npath,
                                    packed ? FSDPCK_UINT8 : v->dtype, packed ? 2 : w->ndim, packed ? rows : w->shape,
                                    err)
               ? 0
               : err->code;
}

static int show_alias(struct fsdpck_source *src, const struct fsdpck_tensor *t, const char *name, size_t target,
                      struct fsdpck_error *err)
{
    const struct fsdpck_key *path = weight_path(src, t, name, err);
    if (!path && err->code)
        return err->code;
    return fsdpck_source_add_alias(src, src->path, name, path, path ? t->npath : 0, target, err);
}

/* Codes with two names and the same scales are one weight with two names; with other scales they are two weights. */
static bool is_same(const struct fsdpck_quant_weight *a, const struct fsdpck_quant_weight *b)
{
    return a && b && memcmp(a->part, b->part, sizeof a->part) == 0;
}

static int show(struct fsdpck_source *src, struct view *v, size_t inner, size_t *outer, struct fsdpck_error *err)
{
    const struct fsdpck_tensor *t = (const struct fsdpck_tensor *)v->view.inner.tensors.data + inner;
    const enum fsdpck_quant_role role = v->weights.role[inner];
    const struct fsdpck_quant_weight *w = weight_at(v, inner);
    outer[inner] = SIZE_MAX;
    if (role == FSDPCK_QUANT_IS_PART || role == FSDPCK_QUANT_IS_ACTIVATION)
        return 0;
    if (t->alias_of >= 0 && (!w || is_same(w, weight_at(v, (size_t)t->alias_of)))) {
        size_t target = outer[t->alias_of];
        return target == SIZE_MAX ? 0 : show_alias(src, t, w ? w->name : t->name, target, err);
    }
    outer[inner] = src->tensors.count;
    v->stored[src->tensors.count] = inner;
    return w ? show_weight(src, v, t, w, err) : fsdpck_view_show(src, t, NULL, err);
}

static const struct fsdpck_values values = { .has = has,
                                             .inputs = inputs,
                                             .begin = begin,
                                             .end = end,
                                             .nbytes = fsdpck_view_state_nbytes,
                                             .compute = compute,
                                             .finish = fsdpck_view_finish };

static const struct fsdpck_source_ops ops = { .extents = extents, .close = fsdpck_view_close, .values = &values };

static uint64_t largest_state(const struct view *v)
{
    uint64_t most = 0;
    for (size_t i = 0; i < v->weights.count; i++) {
        uint64_t n = fsdpck_quant_inputs_nbytes(&v->weights.list[i]);
        most = n > most ? n : most;
    }
    return most + fsdpck_fetch_nbytes(&v->view.inner);
}

static int show_all(struct fsdpck_source *src, struct view *v, struct fsdpck_error *err)
{
    size_t n = v->view.inner.tensors.count, *outer = calloc(n + 1, sizeof *outer);
    int rc = outer ? 0 : fsdpck_error_nomem(err, n * sizeof *outer);
    v->stored = fsdpck_arena_array(&src->arena, n + 1, sizeof *v->stored, err);
    if (!rc && !v->stored)
        rc = FSDPCK_ERR_NOMEM;
    for (size_t i = 0; i < n && !rc; i++)
        rc = show(src, v, i, outer, err);
    free(outer);
    return rc;
}

/* ---- other forms ---- */

/* Codes with scales in a form that find.c does not know (quanto, HQQ) must not pass for plain integers. */
static int refuse_others(const struct fsdpck_source *src, const struct fsdpck_quant_weights *w,
                         struct fsdpck_error *err)
{
    const struct fsdpck_tensor *t = source_tensors(src);
    for (size_t i = 0; i < src->tensors.count; i++) {
        const char *beside = w->role[i] == FSDPCK_QUANT_PLAIN ? fsdpck_quantized_beside(src, &t[i]) : NULL;
        size_t other = beside ? fsdpck_names_find(&src->names, beside) : i;
        if (other == i || other == SIZE_MAX || w->role[other] != FSDPCK_QUANT_PLAIN)
            continue;
        fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, src->path,
                         "is part of a quantized weight, with '%.200s', in a form that --dequantize does not read",
                         beside);
        fsdpck_error_tensor(err, t[i].name);
        return FSDPCK_ERR_UNSUPPORTED;
    }
    return 0;
}

/* ---- the view ---- */

static void say(const struct fsdpck_source *src, const struct fsdpck_quant_weights *w, enum fsdpck_dtype dtype)
{
    size_t nactivations = 0, n = src->opt.note ? src->tensors.count : 0;
    char line[256];
    for (size_t i = 0; i < n; i++)
        nactivations += w->role[i] == FSDPCK_QUANT_IS_ACTIVATION;
    if (n && !w->count)
        src->opt.note(src->opt.ctx, "--dequantize: no weight is quantized, so all are taken as they are");
    if (!n || !w->count)
        return;
    const bool many = w->count > 1, mixed = many && strcmp(w->list[0].form, w->list[w->count - 1].form) != 0;
    snprintf(line, sizeof line, "dequantizes %zu weight%s (%s%s) to %s", w->count, many ? "s" : "", w->list[0].form,
             mixed ? " and others" : "", fsdpck_dtype_info(dtype)->name);
    src->opt.note(src->opt.ctx, line);
    if (!nactivations)
        return;
    snprintf(line, sizeof line, "leaves %zu scale%s of activations behind: no weight needs them", nactivations,
             nactivations > 1 ? "s" : "");
    src->opt.note(src->opt.ctx, line);
}

/* Finds the quantized weights. v->weights.count 0: there are none. */
static int find_weights(struct fsdpck_source *src, const char *folder, struct view *v, struct fsdpck_error *err)
{
    struct fsdpck_quant_config config;
    int rc = fsdpck_quant_config_find(src, folder, &config, err);
    if (!rc)
        rc = fsdpck_quant_find(src, &config, &src->arena, &v->weights, err);
    return rc ? rc : refuse_others(src, &v->weights, err);
}

static int install(struct fsdpck_source *src, struct view *v, struct fsdpck_error *err)
{
    fsdpck_view_install(&v->view, src, &ops);
    v->view.state_nbytes = largest_state(v);
    return show_all(src, v, err);
}

static struct view *view_new(enum fsdpck_dtype dtype, struct fsdpck_error *err)
{
    struct view *v = calloc(1, sizeof *v);
    if (!v)
        fsdpck_error_nomem(err, sizeof *v);
    else
        v->dtype = dtype;
    return v;
}

int fsdpck_source_dequantize(struct fsdpck_source *src, enum fsdpck_dtype dtype, const char *folder,
                             struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    err = err ? err : &own;
    if (dtype != FSDPCK_FLOAT32 && dtype != FSDPCK_FLOAT16 && dtype != FSDPCK_BFLOAT16)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "weights are dequantized to float32, float16 or bfloat16");
    struct view *v = view_new(dtype, err);
    if (!v)
        return FSDPCK_ERR_NOMEM;
    int rc = find_weights(src, folder, v, err);
    if (!rc)
        say(src, &v->weights, dtype);
    if (rc || !v->weights.count) {
        free(v);
        return rc;
    }
    src->dequantized = true;
    return install(src, v, err);
}

/* ---- packed ---- */

/* Rows of an embedding are looked up one by one, and a head is multiplied in pieces. */
static bool is_end(const char *name)
{
    return fsdpck_glob_match("*embed_tokens.weight", name) || fsdpck_glob_match("*lm_head.weight", name);
}

/* Chooses the weights that are packed. */
static int choose_packed(struct fsdpck_source *src, struct view *v, struct fsdpck_error *err)
{
    const struct fsdpck_quant_weight *list = v->weights.list;
    v->packed = fsdpck_arena_array(&src->arena, v->weights.count, sizeof *v->packed, err);
    if (!v->packed)
        return FSDPCK_ERR_NOMEM;
    for (size_t i = 0; i < v->weights.count; i++)
        if (is_end(list[i].name) || !fsdpck_quant_packed(src, &list[i], &v->packed[i]))
            v->packed[i].rows = 0;
    return 0;
}

int fsdpck_source_pack(struct fsdpck_source *src, bool *changed, struct fsdpck_error *err)
{
    struct view *v = view_new(FSDPCK_BFLOAT16, err);
    if (!v)
        return FSDPCK_ERR_NOMEM;
    int rc = find_weights(src, NULL, v, err);
    *changed = v->weights.count > 0;
    if (!rc && *changed)
        rc = choose_packed(src, v, err);
    if (rc || !*changed) {
        free(v);
        return rc;
    }
    return install(src, v, err);
}

int fsdpck_source_packed(struct fsdpck_source *src, const struct fsdpck_tensor *tensor, bool *is,
                         struct fsdpck_packed *out, struct fsdpck_error *err)
{
    const size_t ordinal = (size_t)(tensor->alias_of < 0 ? tensor - source_tensors(src) : tensor->alias_of);
    struct view *v = src->ops->values == &values ? src->impl : NULL;
    const struct fsdpck_quant_weight *w = v ? weight_of(v, ordinal) : NULL;
    const struct fsdpck_packed *packed = w ? packed_of(v, w) : NULL;
    *is = packed != NULL;
    if (!packed)
        return 0;
    *out = *packed;
    const struct fsdpck_read map = { .tensor = quant_part(&v->view.inner, w, FSDPCK_QUANT_MAP), .dst = out->values };
    return map.tensor ? fsdpck_source_read(&v->view.inner, &map, 1, err) : 0;
}
