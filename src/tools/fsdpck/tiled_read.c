/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts a box into tiles in row-major order and reads them. It must not know the use of the bytes. */
#include "tiled_read.h"

#include <stdlib.h>

struct tile_cursor {
    struct fsdpck_source *src;
    const struct fsdpck_tensor *tensor;
    const struct slice *box;
    uint32_t dim; /* the box is cut along this dimension; earlier ones are stepped through index by index, later ones
                     are whole */
    uint64_t row_nelem;                                      /* elements per index of dim */
    uint64_t rows;                                           /* indices of dim per tile */
    uint64_t offset[FSDPCK_MAX_DIMS], size[FSDPCK_MAX_DIMS]; /* the current tile */
};

static void plan_tiles(struct tile_cursor *w, uint64_t tile_nelem)
{
    const struct slice *box = w->box;
    uint32_t d = w->tensor->ndim - 1;
    w->row_nelem = 1;
    while (d > 0 && w->row_nelem * box->size[d] <= tile_nelem) {
        w->row_nelem *= box->size[d];
        d--;
    }
    w->dim = d;
    w->rows = tile_nelem / w->row_nelem;
    for (uint32_t i = 0; i < w->tensor->ndim; i++) {
        w->offset[i] = box->offset[i];
        w->size[i] = i < d ? 1 : box->size[i];
    }
}

/* Sizes the current tile along dim: the rest, or as much as fits. */
static void size_tile(struct tile_cursor *w)
{
    uint64_t left = w->box->offset[w->dim] + w->box->size[w->dim] - w->offset[w->dim];
    w->size[w->dim] = left < w->rows ? left : w->rows;
}

static bool advance(struct tile_cursor *w)
{
    const struct slice *box = w->box;
    w->offset[w->dim] += w->size[w->dim];
    for (uint32_t d = w->dim; w->offset[d] == box->offset[d] + box->size[d]; d--) {
        if (d == 0)
            return false;
        w->offset[d] = box->offset[d];
        w->offset[d - 1]++;
    }
    return true;
}

static int read_all(struct tile_cursor *w, void *buffer, tile_fn visit, void *ctx, struct fsdpck_error *err)
{
    int rc;
    do {
        size_tile(w);
        struct fsdpck_read read = { .tensor = w->tensor, .offset = w->offset, .size = w->size, .dst = buffer };
        rc = fsdpck_source_read(w->src, &read, 1, err);
        if (!rc)
            rc = visit(ctx, buffer, w->row_nelem * w->size[w->dim]);
    } while (!rc && advance(w));
    return rc;
}

int tiled_read(struct fsdpck_source *src, const struct fsdpck_tensor *t, const struct slice *box, uint64_t tile_nbytes,
               tile_fn visit, void *ctx, struct fsdpck_error *err)
{
    struct tile_cursor w = { .src = src, .tensor = t, .box = box };
    uint32_t element_nbytes = fsdpck_dtype_info(t->dtype)->nbytes;
    uint64_t tile_nelem = tile_nbytes / element_nbytes;
    if (box->nelem == 0)
        return 0;
    if (tile_nelem > box->nelem)
        tile_nelem = box->nelem;
    if (tile_nelem == 0)
        tile_nelem = 1;
    void *buffer = malloc(tile_nelem * element_nbytes);
    if (!buffer)
        return fsdpck_error_nomem(err, tile_nelem * element_nbytes);
    int rc;
    if (t->ndim == 0) {
        struct fsdpck_read read = { .tensor = t, .dst = buffer };
        rc = fsdpck_source_read(src, &read, 1, err);
        if (!rc)
            rc = visit(ctx, buffer, 1);
    } else {
        plan_tiles(&w, tile_nelem);
        rc = read_all(&w, buffer, visit, ctx, err);
    }
    free(buffer);
    return rc;
}

/* Advances to the next corner, like a binary counter: at_end[d] is true if dimension d is at its end. Only cut
 * dimensions have two ends. */
static bool next_corner(bool *at_end, const bool *cut_dims, uint32_t ndim)
{
    for (uint32_t d = 0; d < ndim; d++) {
        if (!cut_dims[d])
            continue;
        at_end[d] = !at_end[d];
        if (at_end[d])
            return true;
    }
    return false;
}

int tiled_read_edges(struct fsdpck_source *src, const struct fsdpck_tensor *t, const struct slice *box,
                     const bool *cut_dims, uint64_t edge, void *dst, struct fsdpck_error *err)
{
    uint64_t offset[FSDPCK_MAX_DIMS], size[FSDPCK_MAX_DIMS];
    int64_t strides[FSDPCK_MAX_DIMS], stride = fsdpck_dtype_info(t->dtype)->nbytes;
    bool at_end[FSDPCK_MAX_DIMS] = { false };
    for (uint32_t d = t->ndim; d-- > 0;) {
        strides[d] = stride;
        size[d] = cut_dims[d] ? edge : box->size[d];
        stride *= (int64_t)(cut_dims[d] ? 2 * edge : box->size[d]);
    }
    int rc;
    do {
        char *corner = dst;
        for (uint32_t d = 0; d < t->ndim; d++) {
            offset[d] = box->offset[d] + (at_end[d] ? box->size[d] - edge : 0);
            corner += at_end[d] ? strides[d] * (int64_t)edge : 0;
        }
        struct fsdpck_read read = { .tensor = t, .offset = offset, .size = size, .dst = corner, .strides = strides };
        rc = fsdpck_source_read(src, &read, 1, err);
    } while (!rc && next_corner(at_end, cut_dims, t->ndim));
    return rc;
}
