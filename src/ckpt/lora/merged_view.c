/* SPDX-License-Identifier: Apache-2.0 */
/* Presents a base with an adapter merged into its values: a value view (engine/value_view.h) with the base's
 * catalogue. */
#include "lora/merged_view.h"

#include <stdlib.h>
#include <string.h>

#include "engine/value_inputs.h"
#include "engine/view.h"

#define PIECE_NBYTES (4u << 20) /* of the base's values at a time */

struct view {
    struct fsdpck_view view;
    const struct fsdpck_edit *edit;
    struct fsdpck_selection selection;
    uint32_t *chosen; /* (tensors) position in the selection; UINT32_MAX: the adapter does not change it */
};

static bool has(const struct fsdpck_source *src, size_t ordinal)
{
    const struct view *v = src->impl;
    return v->chosen[ordinal] != UINT32_MAX || fsdpck_is_computed(&v->view.inner, ordinal);
}

static int extents(struct fsdpck_source *src, size_t ordinal, const uint64_t *offset, const uint64_t *size,
                   fsdpck_extent_fn visit, void *ctx, struct fsdpck_error *err)
{
    struct view *v = src->impl;
    if (has(src, ordinal))
        return fsdpck_view_no_extents(src, ordinal, "is merged", err);
    return v->view.inner.ops->extents(&v->view.inner, ordinal, offset, size, visit, ctx, err);
}

static int inputs(struct fsdpck_source *src, size_t ordinal, fsdpck_input_fn visit, void *ctx, struct fsdpck_error *err)
{
    return visit(ctx, &((struct view *)src->impl)->view.inner, ordinal, err);
}

static int begin(struct fsdpck_source *src, void **state, struct fsdpck_error *err)
{
    return fsdpck_value_piece_begin(&((struct view *)src->impl)->view.inner, PIECE_NBYTES, state, err);
}

/* Merges elements [at, at + n) of a tensor. */
static int merge_range(const struct view *v, struct fsdpck_value_piece *s, struct fsdpck_fetch *f, size_t ordinal,
                       uint64_t at, uint64_t n, uint8_t *dst, struct fsdpck_error *err)
{
    const uint64_t item = fsdpck_dtype_info(source_tensors(&v->view.inner)[ordinal].dtype)->nbytes;
    const uint64_t most = PIECE_NBYTES / item;
    int rc = 0;
    for (uint64_t done = 0, k; done < n && !rc; done += k) {
        k = n - done < most ? n - done : most;
        rc = fsdpck_values_input_range(f, &s->fetch, ordinal, at + done, at + done + k, s->piece, err);
        if (!rc && !f->dry)
            rc = v->edit->apply(v->edit->ctx, v->chosen[ordinal], at + done, k, s->piece, dst + done * item, err);
    }
    return rc;
}

static int compute(struct fsdpck_fetch *f, void *state, size_t ordinal, const struct fsdpck_matrix_box *box, void *dst,
                   uint64_t stride, struct fsdpck_error *err)
{
    const struct view *v = f->src->impl;
    const struct fsdpck_tensor *t = &source_tensors(&v->view.inner)[ordinal];
    const uint64_t ncol = t->ndim ? t->shape[t->ndim - 1] : 1, item = fsdpck_dtype_info(t->dtype)->nbytes;
    struct fsdpck_value_piece *s = state;
    if (v->chosen[ordinal] == UINT32_MAX)
        return fsdpck_values_pass(f, &s->fetch, ordinal, box, dst, stride, err);
    if (box->ncols == ncol && stride == ncol * item)
        return merge_range(v, s, f, ordinal, box->row * ncol, box->nrows * ncol, dst, err);
    int rc = 0;
    for (uint64_t i = 0; i < box->nrows && !rc; i++)
        rc = merge_range(v, s, f, ordinal, (box->row + i) * ncol + box->col, box->ncols,
                         f->dry ? NULL : (uint8_t *)dst + i * stride, err);
    return rc;
}

static void close_view(struct fsdpck_source *src)
{
    fsdpck_selection_free(&((struct view *)src->impl)->selection);
    fsdpck_view_close(src);
}

static const struct fsdpck_values values = { .has = has,
                                             .inputs = inputs,
                                             .begin = begin,
                                             .end = fsdpck_value_piece_end,
                                             .nbytes = fsdpck_view_state_nbytes,
                                             .compute = compute,
                                             .finish = fsdpck_view_finish };

static const struct fsdpck_source_ops ops = { .extents = extents, .close = close_view, .values = &values };

/* ---- the catalogue ---- */

/* Lets the merge find its targets, and lists them by the ordinals of their tensors. */
static int begin_merge(const struct fsdpck_source *src, struct view *v, struct fsdpck_error *err)
{
    static const struct fsdpck_select all;
    const size_t n = src->tensors.count;
    int rc = fsdpck_selection_make(src, &all, FSDPCK_TREE_MODEL, &v->selection, err);
    if (!rc && !(v->chosen = fsdpck_arena_array(&v->selection.arena, n + 1, sizeof *v->chosen, err)))
        rc = FSDPCK_ERR_NOMEM;
    if (!rc)
        rc = v->edit->begin(v->edit->ctx, &v->selection, err);
    for (size_t i = 0; i < n && !rc; i++)
        v->chosen[i] = UINT32_MAX;
    for (uint32_t i = 0; i < v->selection.ntensors && !rc; i++)
        if (v->selection.tensors[i].alias_of < 0 && v->edit->wants(v->edit->ctx, i))
            v->chosen[v->selection.tensors[i].source] = i;
    return rc;
}

int fsdpck_lora_merged_present(struct fsdpck_source *base, const struct fsdpck_edit *edit, struct fsdpck_error *err)
{
    struct view *v = calloc(1, sizeof *v);
    if (!v)
        return fsdpck_error_nomem(err, sizeof *v);
    v->edit = edit;
    int rc = begin_merge(base, v, err);
    if (rc) {
        fsdpck_selection_free(&v->selection);
        free(v);
        return rc;
    }
    fsdpck_view_install(&v->view, base, &ops);
    v->view.state_nbytes = fsdpck_fetch_nbytes(&v->view.inner) + PIECE_NBYTES;
    return fsdpck_view_show_all(base, err);
}

/* ---- for the measurement of what rounding does ---- */

bool fsdpck_lora_merged_has(const struct fsdpck_source *src, size_t ordinal)
{
    return ((const struct view *)src->impl)->chosen[ordinal] != UINT32_MAX;
}

struct fsdpck_source *fsdpck_lora_merged_base(struct fsdpck_source *src)
{
    return &((struct view *)src->impl)->view.inner;
}

int fsdpck_lora_merged_apply(const struct fsdpck_source *src, size_t ordinal, uint64_t begin, uint64_t nelem,
                             const void *in, void *out, struct fsdpck_error *err)
{
    const struct view *v = src->impl;
    return v->edit->apply(v->edit->ctx, v->chosen[ordinal], begin, nelem, in, out, err);
}
