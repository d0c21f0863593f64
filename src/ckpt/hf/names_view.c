/* SPDX-License-Identifier: Apache-2.0 */
/* Presents a source's Llama under the names of the other convention: the same bytes, with the rows of q and k permuted.
 * The rows of a head are stored as pairs (b, 0), (b, 1) by torchtitan and as halves (0, b), (1, b) by Hugging Face;
 * either is a strided view of the other, so nothing is copied. */
#include <fsdpck/source.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"
#include "engine/view.h"
#include "hf/config.h"
#include "hf/llama_names.h"
#include "hf/weight_names.h"
#include "tensor/box.h"

/* A tensor with permuted rows: all its extents, sorted by the first row that they present. */
struct permuted_rows {
    struct fsdpck_extent *extents;
    size_t count;
    uint64_t longest; /* maximum number of rows of an extent */
};

struct view {
    struct fsdpck_view view;
    struct fsdpck_vec tensors; /* struct view_tensor, parallel to the source's tensors */
};

struct view_tensor {
    size_t inner;                   /* ordinal in inner */
    struct permuted_rows *permuted; /* NULL: not permuted */
};

struct view_builder {
    struct fsdpck_source *src, *inner;
    struct view *view;
    bool to_hf;
    uint64_t heads, kv_heads;
    size_t *outer; /* inner ordinal -> presented ordinal; SIZE_MAX: omitted */
    size_t nleft;
    struct fsdpck_error *err;
    /* The tensor whose rows are being permuted. */
    const struct fsdpck_tensor *t;
    uint64_t half; /* rows of half a head */
    struct fsdpck_vec extents;
};

/* ---- the order of rows ---- */

static int add_extent(struct view_builder *m, const struct fsdpck_extent *e, uint64_t shown_row, uint64_t nrows,
                      uint64_t stored_row, uint64_t step)
{
    uint32_t ndim = m->t->ndim;
    uint64_t *box = fsdpck_arena_array(&m->src->arena, 3 * ndim, sizeof *box, m->err), dense = 1;
    struct fsdpck_extent *out = box ? fsdpck_vec_push(&m->extents, m->err) : NULL;
    if (!out)
        return FSDPCK_ERR_NOMEM;
    uint64_t *offset = box, *size = box + ndim, *strides = box + 2 * ndim;
    for (uint32_t d = ndim; d-- > 0; dense *= e->size[d]) {
        offset[d] = e->offset[d];
        size[d] = e->size[d];
        strides[d] = e->strides ? e->strides[d] : dense;
    }
    *out = *e;
    out->first = e->first + (stored_row - e->offset[0]) * strides[0];
    offset[0] = shown_row;
    size[0] = nrows;
    strides[0] *= step;
    out->offset = offset;
    out->size = size;
    out->strides = strides;
    return 0;
}

/* Adds the rows of one head in the chunk, one half (to Hugging Face) at a time: b is the pair, a the half. */
static int add_halves(struct view_builder *m, const struct fsdpck_extent *e, uint64_t head)
{
    uint64_t begin = e->offset[0], end = e->offset[0] + e->size[0], base = head * 2 * m->half;
    int rc = 0;
    for (uint64_t a = 0; !rc && a < 2; a++) {
        uint64_t low = begin > base + a ? (begin - base - a + 1) / 2 : 0;
        uint64_t high = end > base + a ? (end - base - a + 1) / 2 : 0;
        high = high < m->half ? high : m->half;
        if (low < high)
            rc = add_extent(m, e, base + a * m->half + low, high - low, base + 2 * low + a, 2);
    }
    return rc;
}

/* The same from Hugging Face: adjacent rows come from two halves, so each row is an extent. */
static int add_pairs(struct view_builder *m, const struct fsdpck_extent *e, uint64_t head)
{
    uint64_t base = head * 2 * m->half;
    int rc = 0;
    for (uint64_t i = 0; !rc && i < 2 * m->half; i++)
        if (base + i >= e->offset[0] && base + i < e->offset[0] + e->size[0])
            rc = add_extent(m, e, base + i % m->half * 2 + i / m->half, 1, base + i, 1);
    return rc;
}

static int permute_extent(void *ctx, const struct fsdpck_extent *e, struct fsdpck_error *err)
{
    struct view_builder *m = ctx;
    uint64_t per_head = 2 * m->half;
    int rc = 0;
    (void)err;
    for (uint64_t head = e->offset[0] / per_head; !rc && head * per_head < e->offset[0] + e->size[0]; head++)
        rc = m->to_hf ? add_halves(m, e, head) : add_pairs(m, e, head);
    return rc;
}

static int by_row(const void *a, const void *b)
{
    const struct fsdpck_extent *x = a, *y = b;
    return x->offset[0] < y->offset[0] ? -1 : x->offset[0] > y->offset[0];
}

static int refuse(struct view_builder *m, const char *name, const char *what)
{
    fsdpck_error_set(m->err, FSDPCK_ERR_UNSUPPORTED, m->src->path, "%s", what);
    fsdpck_error_tensor(m->err, name);
    return m->err->code;
}

static int permute_rows(struct view_builder *m, size_t inner, enum fsdpck_llama_role role, struct permuted_rows **out)
{
    static const uint64_t origin[FSDPCK_MAX_DIMS];
    char text[160];
    uint64_t heads = role == FSDPCK_LLAMA_Q ? m->heads : m->kv_heads;
    m->t = &source_tensors(m->inner)[inner];
    if (m->t->ndim == 0 || m->t->nelem == 0 || m->t->shape[0] % (2 * heads) != 0) {
        snprintf(text, sizeof text, "its rows cannot be those of the %" PRIu64 " heads that config.json names", heads);
        return refuse(m, m->t->name, text);
    }
    m->half = m->t->shape[0] / heads / 2;
    m->extents = (struct fsdpck_vec)FSDPCK_VEC(struct fsdpck_extent);
    int rc = m->inner->ops->extents(m->inner, inner, origin, m->t->shape, permute_extent, m, m->err);
    struct permuted_rows *permuted = rc ? NULL : fsdpck_arena_alloc(&m->src->arena, sizeof *permuted, m->err);
    struct fsdpck_extent *copy =
        permuted ? fsdpck_arena_array(&m->src->arena, m->extents.count, sizeof *copy, m->err) : NULL;
    if (copy && m->extents.count) {
        qsort(m->extents.data, m->extents.count, sizeof *copy, by_row);
        memcpy(copy, m->extents.data, m->extents.count * sizeof *copy);
        *permuted = (struct permuted_rows){ copy, m->extents.count, 0 };
        for (size_t i = 0; i < permuted->count; i++)
            permuted->longest = copy[i].size[0] > permuted->longest ? copy[i].size[0] : permuted->longest;
    }
    fsdpck_vec_free(&m->extents);
    *out = permuted;
    return rc ? rc : copy ? 0 : FSDPCK_ERR_NOMEM;
}

/* ---- the source that presents the view ---- */

static int extents(struct fsdpck_source *src, size_t ordinal, const uint64_t *offset, const uint64_t *size,
                   fsdpck_extent_fn visit, void *ctx, struct fsdpck_error *err)
{
    struct view *v = src->impl;
    const struct view_tensor *s = (const struct view_tensor *)v->tensors.data + ordinal;
    uint32_t ndim = source_tensors(src)[ordinal].ndim;
    uint64_t o[FSDPCK_MAX_DIMS], n[FSDPCK_MAX_DIMS];
    if (!s->permuted)
        return v->view.inner.ops->extents(&v->view.inner, s->inner, offset, size, visit, ctx, err);
    size_t low = 0, high = s->permuted->count;
    while (low < high) { /* the first extent that may reach the box */
        size_t middle = low + (high - low) / 2;
        if (s->permuted->extents[middle].offset[0] + s->permuted->longest <= offset[0])
            low = middle + 1;
        else
            high = middle;
    }
    for (size_t i = low; i < s->permuted->count && s->permuted->extents[i].offset[0] < offset[0] + size[0]; i++) {
        const struct fsdpck_extent *e = &s->permuted->extents[i];
        int rc = fsdpck_box_intersect(ndim, e->offset, e->size, offset, size, o, n) ? visit(ctx, e, err) : 0;
        if (rc)
            return rc;
    }
    return 0;
}

static void close_view(struct fsdpck_source *src)
{
    struct view *v = src->impl;
    fsdpck_vec_free(&v->view.inner.items);
    fsdpck_vec_free(&v->tensors);
    fsdpck_view_close(src);
}

static const struct fsdpck_source_ops ops = { .extents = extents, .close = close_view };

static struct view *make_view(struct fsdpck_source *src)
{
    struct view *v = calloc(1, sizeof *v);
    if (!v)
        return NULL;
    v->tensors = (struct fsdpck_vec)FSDPCK_VEC(struct view_tensor);
    fsdpck_view_install(&v->view, src, &ops);
    src->items = (struct fsdpck_vec){ NULL, 0, 0, v->view.inner.items.item_nbytes };
    return v;
}

/* ---- names ---- */

static int add_view_tensor(struct view_builder *m, size_t inner)
{
    const struct fsdpck_tensor *t = &source_tensors(m->inner)[inner];
    char name[512];
    enum fsdpck_llama_role role;
    struct permuted_rows *permuted = NULL;
    m->outer[inner] = SIZE_MAX;
    if (!fsdpck_llama_rename(fsdpck_weight_name(t), m->to_hf, name, sizeof name, &role)) {
        m->nleft++;
        return fsdpck_weight_is_state(t)
                   ? 0
                   : refuse(m, t->name, "is no weight of a Llama, and only those have both names of --names");
    }
    m->outer[inner] = m->src->tensors.count;
    struct view_tensor *s = fsdpck_vec_push(&m->view->tensors, m->err);
    if (!s)
        return FSDPCK_ERR_NOMEM;
    s->inner = inner;
    if (t->alias_of >= 0 && m->outer[t->alias_of] != SIZE_MAX)
        return fsdpck_source_add_alias(m->src, m->src->path, name, NULL, 0, m->outer[t->alias_of], m->err);
    int rc = role == FSDPCK_LLAMA_PLAIN ? 0 : permute_rows(m, inner, role, &permuted);
    if (rc)
        return rc;
    s->permuted = permuted;
    if (!permuted)
        return fsdpck_view_show(m->src, t, name, m->err);
    return fsdpck_source_add_tensor(m->src, m->src->path, name, NULL, 0, t->dtype, t->ndim, t->shape, m->err)
               ? 0
               : m->err->code;
}

static int show_all(struct view_builder *m)
{
    size_t count = m->inner->tensors.count;
    int rc = 0;
    m->outer = calloc(count + 1, sizeof *m->outer);
    if (!m->outer)
        return fsdpck_error_nomem(m->err, count * sizeof *m->outer);
    for (size_t i = 0; !rc && i < count; i++)
        rc = add_view_tensor(m, i);
    free(m->outer);
    return rc;
}

/* ---- config.json ---- */

static int read_heads(struct view_builder *m, const char *folder)
{
    char *path = fsdpck_weight_config(m->src, folder), *text = NULL;
    uint64_t nbytes;
    if (!path) {
        fsdpck_error_set(m->err, FSDPCK_ERR_MISSING, m->src->path,
                         "has no config.json, which says how many heads share the rows of q and k, as --names needs");
        fsdpck_error_hint(m->err, "give the model's Hugging Face folder: --assets FOLDER");
        return m->err->code;
    }
    int rc = fsdpck_read_file(m->src->io, path, FSDPCK_CONFIG_MAX_NBYTES, &text, &nbytes, m->err);
    if (!rc)
        rc = fsdpck_config_heads(path, text, nbytes, &m->heads, &m->kv_heads, m->err);
    free(text);
    free(path);
    return rc;
}

/* ---- the view ---- */

/* Counts the source's tensors with names of one convention. */
static size_t count_names(const struct fsdpck_source *src, bool to_hf, bool permuted)
{
    char name[512];
    enum fsdpck_llama_role role;
    size_t n = 0;
    for (size_t i = 0; i < src->tensors.count; i++)
        n += fsdpck_llama_rename(fsdpck_weight_name(&source_tensors(src)[i]), to_hf, name, sizeof name, &role) &&
             (!permuted || role != FSDPCK_LLAMA_PLAIN);
    return n;
}

bool fsdpck_source_is_torchtitan(const struct fsdpck_source *src)
{
    return !src->names_chosen && count_names(src, true, true) > 0;
}

int fsdpck_llama_set_names(struct fsdpck_source *src, const char *names, const char *folder, struct fsdpck_error *err)
{
    struct view_builder m = { .src = src, .to_hf = strcmp(names, "torchtitan") != 0, .err = err };
    src->names_chosen = true;
    if (count_names(src, !m.to_hf, false)) {
        fsdpck_weight_note_unchanged(src, names);
        return 0;
    }
    if (src->ops->values)
        return fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, src->path,
                                "--names %s reorders stored rows, and dequantized weights have none: dequantize to a "
                                "folder first",
                                names);
    if (!count_names(src, m.to_hf, false))
        return fsdpck_error_set(
            m.err, FSDPCK_ERR_UNSUPPORTED, src->path,
            "--names: found no weight that is called as a Llama's, by Hugging Face or by torchtitan");
    int rc = read_heads(&m, folder);
    if (rc)
        return rc;
    if (!(m.view = make_view(src)))
        return fsdpck_error_nomem(m.err, sizeof *m.view);
    m.inner = &m.view->view.inner;
    if (!(rc = show_all(&m)))
        fsdpck_weight_note_left_out(src, m.nleft, m.inner->items.count);
    return rc;
}
