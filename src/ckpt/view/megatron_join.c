/* SPDX-License-Identifier: Apache-2.0 */
#include "view/megatron_join.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/shape_text.h"

enum { MAX_NDIM = 4 };

struct box { /* rows of a weight, and where they go */
    size_t inner;
    uint64_t offset[MAX_NDIM], size[MAX_NDIM], from[2];
};

void fsdpck_megatron_join_begin(struct fsdpck_megatron_join *j, struct fsdpck_layout *layout,
                                const struct fsdpck_megatron_config *config)
{
    *j = (struct fsdpck_megatron_join){ .layout = layout, .config = config, .boxes = FSDPCK_VEC(struct box) };
}

void fsdpck_megatron_join_free(struct fsdpck_megatron_join *j)
{
    fsdpck_vec_free(&j->boxes);
}

static const struct fsdpck_tensor *tensor_at(const struct fsdpck_megatron_join *j, size_t ordinal)
{
    return &source_tensors(fsdpck_layout_inner(j->layout))[ordinal];
}

static int refuse(const struct fsdpck_megatron_join *j, const struct fsdpck_tensor *t, const char *what,
                  struct fsdpck_error *err)
{
    char shape[240];
    fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, fsdpck_layout_inner(j->layout)->path, "%s %s %s",
                     fsdpck_dtype_info(t->dtype)->name, fsdpck_shape_text(t, shape, sizeof shape), what);
    fsdpck_error_tensor(err, t->name);
    return err->code;
}

static int add_box(struct fsdpck_megatron_join *j, size_t ordinal, uint64_t from, uint64_t count, uint64_t to,
                   struct fsdpck_error *err)
{
    const struct fsdpck_tensor *t = tensor_at(j, ordinal);
    struct box *b = fsdpck_vec_push(&j->boxes, err);
    if (!b)
        return FSDPCK_ERR_NOMEM;
    *b = (struct box){ .inner = t->alias_of >= 0 ? (size_t)t->alias_of : ordinal, .from = { from, 0 } };
    for (uint32_t i = 0; i < j->nlead; i++) {
        b->offset[i] = j->lead[i];
        b->size[i] = 1;
    }
    b->offset[j->nlead] = to;
    b->size[j->nlead] = count;
    if (t->ndim == 2)
        b->size[j->nlead + 1] = t->shape[1];
    return 0;
}

/* ---- parts ---- */

static int check_part(struct fsdpck_megatron_join *j, const struct fsdpck_tensor *t, struct fsdpck_error *err)
{
    const struct fsdpck_tensor *first = j->first ? j->first : t;
    if (t->ndim < 1 || t->ndim > 2)
        return refuse(j, t, "is no matrix and no vector, as Megatron has them", err);
    if (!t->nelem) /* a few bytes could stand for a box for each of many heads */
        return refuse(j, t, "has no elements", err);
    if (t->dtype != first->dtype || t->ndim != first->ndim || (t->ndim == 2 && t->shape[1] != first->shape[1]))
        return refuse(j, t, "cannot be joined with the weights of the same kind: its dtype or its columns differ", err);
    j->first = first;
    return 0;
}

/* By groups of heads: those of q, then k, then v. */
static int add_qkv(struct fsdpck_megatron_join *j, const size_t *ordinals, struct fsdpck_error *err)
{
    const uint64_t groups = j->config->kv_heads, each = j->config->heads / groups;
    const uint64_t kv = tensor_at(j, ordinals[1])->shape[0], dim = kv / groups;
    const uint64_t count[3] = { each * dim, dim, dim };
    uint64_t to = 0;
    int rc = 0;
    if (j->config->heads % groups != 0 || kv % groups != 0 || tensor_at(j, ordinals[2])->shape[0] != kv ||
        tensor_at(j, ordinals[0])->shape[0] != groups * each * dim)
        return refuse(j, tensor_at(j, ordinals[0]), "and k and v have no rows for the heads that config.json states",
                      err);
    for (uint64_t g = 0; g < groups && !rc; g++)
        for (int p = 0; p < 3 && !rc; to += count[p++])
            rc = add_box(j, ordinals[p], g * count[p], count[p], to, err);
    return rc;
}

int fsdpck_megatron_join_parts(struct fsdpck_megatron_join *j, const size_t *ordinals, int nparts,
                               struct fsdpck_error *err)
{
    uint64_t nrows = 0;
    int rc = 0;
    for (int p = 0; p < nparts && !rc; p++) {
        const struct fsdpck_tensor *t = tensor_at(j, ordinals[p]);
        rc = check_part(j, t, err);
        if (!rc && nparts == 2 && t->shape[0] != tensor_at(j, ordinals[0])->shape[0])
            rc = refuse(j, t, "has not as many rows as the gate beside it", err);
        if (!rc && nparts < 3)
            rc = add_box(j, ordinals[p], 0, t->shape[0], nrows, err);
        nrows += rc ? 0 : t->shape[0];
    }
    if (!rc && nparts == 3)
        rc = add_qkv(j, ordinals, err);
    if (!rc && j->nrows && nrows != j->nrows)
        rc = refuse(j, tensor_at(j, ordinals[0]), "differs from the weights of other layers or experts", err);
    j->nrows = nrows;
    return rc;
}

/* ---- the tensor ---- */

int fsdpck_megatron_join_end(struct fsdpck_megatron_join *j, const char *name, struct fsdpck_error *err)
{
    static const uint32_t dims_of[3][MAX_NDIM] = { { 0, 1 },
                                                   { FSDPCK_LAYOUT_NO_DIM, 0, 1 },
                                                   { FSDPCK_LAYOUT_NO_DIM, FSDPCK_LAYOUT_NO_DIM, 0, 1 } };
    const uint32_t ndim = j->nlead + j->first->ndim;
    const struct box *boxes = j->boxes.data;
    uint64_t shape[MAX_NDIM] = { j->lead_shape[0], j->lead_shape[1] };
    struct fsdpck_layout_piece *pieces = calloc(j->boxes.count, sizeof *pieces);
    if (!pieces)
        return fsdpck_error_nomem(err, j->boxes.count * sizeof *pieces);
    shape[j->nlead] = j->nrows;
    if (j->first->ndim == 2)
        shape[j->nlead + 1] = j->first->shape[1];
    for (size_t i = 0; i < j->boxes.count; i++)
        pieces[i] = (struct fsdpck_layout_piece){ boxes[i].inner, boxes[i].offset, boxes[i].size, boxes[i].from,
                                                  dims_of[j->nlead] };
    int rc = fsdpck_layout_add(j->layout, name, j->first->dtype, ndim, shape, pieces, j->boxes.count, err);
    free(pieces);
    return rc;
}
