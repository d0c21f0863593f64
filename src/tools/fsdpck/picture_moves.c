/* SPDX-License-Identifier: Apache-2.0 */
/* What goes from which rank of the source to which rank of the plan. A replicated part counts as of the rank that
 * stores it. */
#include <stdlib.h>

#include "common/json_out.h"
#include "picture.h"

/* MOST_PAIRS: of boxes of both sides, and ranks that are looked at, over all groups; some seconds. */
enum { BLOCKS = 64, MOST_PAIRS = 500000000, BOX_DIMS = 8, MOST_BOXES = 1 << 20 };

struct box {
    uint64_t begin[BOX_DIMS], end[BOX_DIMS];
    uint32_t rank;
};

/* The boxes of all ranks of one side. */
struct side {
    struct box *boxes; /* (count) */
    size_t count, capacity;
    uint32_t nranks, ndim;
    uint32_t rank; /* whose boxes are being added */
};

static int add_box(void *ctx, const uint64_t *offset, const uint64_t *size)
{
    struct side *s = ctx;
    if (s->count == MOST_BOXES)
        return FSDPCK_ERR_LIMIT;
    if (s->count == s->capacity) {
        const size_t capacity = 2 * s->capacity + 16;
        struct box *boxes = realloc(s->boxes, capacity * sizeof *boxes);
        if (!boxes)
            return FSDPCK_ERR_NOMEM;
        s->boxes = boxes;
        s->capacity = capacity;
    }
    struct box *b = &s->boxes[s->count++];
    b->rank = s->rank;
    for (uint32_t d = 0; d < s->ndim; d++) {
        b->begin[d] = offset[d];
        b->end[d] = offset[d] + size[d];
    }
    return 0;
}

static int fill_side(struct side *s, const struct fsdpck_mesh *mesh, const struct fsdpck_placement *on,
                     const struct fsdpck_convert_place *place, const struct fsdpck_tensor *t)
{
    uint32_t coord[FSDPCK_MAX_MESH_DIMS];
    int rc = 0;
    s->count = 0;
    s->ndim = t->ndim;
    for (uint32_t q = 0; q < s->nranks && !rc; q++) {
        s->rank = q;
        const bool holds = fsdpck_mesh_coordinate(mesh, q, coord) &&
                           (!place || place->only_dim == mesh->ndim || coord[place->only_dim] == place->only_at);
        if (holds)
            rc = fsdpck_placement_boxes(mesh, on, t->ndim, t->shape, coord, add_box, s);
    }
    return rc;
}

static uint64_t overlap(const struct box *a, const struct box *b, uint32_t ndim)
{
    uint64_t nelem = 1;
    for (uint32_t d = 0; d < ndim; d++) {
        const uint64_t begin = a->begin[d] > b->begin[d] ? a->begin[d] : b->begin[d],
                       end = a->end[d] < b->end[d] ? a->end[d] : b->end[d];
        if (begin >= end)
            return 0;
        nelem *= end - begin;
    }
    return nelem;
}

/* How many tensors of the layout the rank stores its part of. */
static uint64_t stored_count(const struct picture_layout *l, uint32_t rank)
{
    const struct fsdpck_tensor *t = l->tensor;
    uint32_t coord[FSDPCK_MAX_MESH_DIMS];
    uint64_t replica = 0, shard = 0;
    if (!l->by_owner || !fsdpck_mesh_coordinate(t->mesh, rank, coord))
        return l->count;
    for (uint32_t m = 0; m < t->mesh->ndim; m++) {
        if (t->placements[m].kind == FSDPCK_REPLICATE)
            replica = replica * t->mesh->sizes[m] + coord[m];
        else
            shard = shard * t->mesh->sizes[m] + coord[m];
    }
    return l->by_owner[(replica + l->nreplicas - shard % l->nreplicas) % l->nreplicas];
}

struct moves {
    double cells[BLOCKS][BLOCKS]; /* from, to */
    double stays, moves;
    uint32_t from_each, to_each; /* ranks of a block */
    uint64_t npairs;
};

static void add_layout(struct moves *m, const struct picture_layout *l, const struct side *from, const struct side *to)
{
    const double each = (double)fsdpck_dtype_info(l->tensor->dtype)->nbytes;
    for (size_t i = 0; i < from->count; i++) {
        const uint32_t a = from->boxes[i].rank;
        const double weight = each * (double)stored_count(l, a);
        for (size_t j = 0; j < to->count && weight > 0; j++) {
            const uint32_t b = to->boxes[j].rank;
            const double nbytes = weight * (double)overlap(&from->boxes[i], &to->boxes[j], l->tensor->ndim);
            m->cells[a / m->from_each][b / m->to_each] += nbytes;
            *(a == b ? &m->stays : &m->moves) += nbytes;
        }
    }
}

/* Shapes that nothing backs may be of any size. */
static json_t *whole(double value)
{
    return value < 9e18 ? json_integer((json_int_t)value) : json_real(value);
}

static json_t *moves_json(const struct moves *m, uint32_t nfrom, uint32_t nto)
{
    json_t *cells = json_array();
    for (uint32_t a = 0; a * m->from_each < nfrom; a++)
        for (uint32_t b = 0; b * m->to_each < nto; b++)
            json_out_append(cells, whole(m->cells[a][b]));
    return json_pack("{s:i, s:i, s:i, s:i, s:o, s:o, s:o}", "from", (int)nfrom, "to", (int)nto, "from_each",
                     (int)m->from_each, "to_each", (int)m->to_each, "stays", whole(m->stays), "moves", whole(m->moves),
                     "cells", cells);
}

/* The ranks of the source's meshes; 0: a tensor has none, or has too many dimensions. */
static uint64_t source_ranks(const struct picture_layout *layouts, size_t count)
{
    uint64_t most = 0;
    for (size_t i = 0; i < count; i++) {
        const struct fsdpck_tensor *t = layouts[i].tensor;
        if (!t->mesh || !t->placements || t->ndim > BOX_DIMS || layouts[i].nreplicas > PICTURE_REPLICAS)
            return 0;
        for (uint64_t q = 0; q < fsdpck_mesh_nranks(t->mesh); q++) {
            const uint64_t rank = t->mesh->ranks ? t->mesh->ranks[q] : q;
            most = rank >= most ? rank + 1 : most;
        }
    }
    return most;
}

json_t *picture_moves(const struct picture *picture, const struct picture_layout *layouts, size_t count)
{
    const uint64_t nfrom = source_ranks(layouts, count), nto = fsdpck_mesh_nranks(picture->mesh);
    if (!nfrom || nfrom > FSDPCK_MAX_RANKS)
        return json_null();
    struct moves *m = calloc(1, sizeof *m);
    struct side from = { .nranks = (uint32_t)nfrom }, to = { .nranks = (uint32_t)nto };
    json_t *out = NULL;
    int rc = m ? 0 : FSDPCK_ERR_NOMEM;
    for (size_t i = 0; i < count && !rc; i++) {
        const struct picture_layout *l = &layouts[i];
        m->from_each = (uint32_t)((nfrom + BLOCKS - 1) / BLOCKS);
        m->to_each = (uint32_t)((nto + BLOCKS - 1) / BLOCKS);
        rc = fill_side(&from, l->tensor->mesh, l->tensor->placements, NULL, l->tensor);
        if (!rc)
            rc = fill_side(&to, picture->mesh, l->place->on, l->place, l->tensor);
        m->npairs += from.count * (uint64_t)to.count + nfrom + nto;
        if (!rc && m->npairs > MOST_PAIRS)
            rc = FSDPCK_ERR_LIMIT;
        if (!rc)
            add_layout(m, l, &from, &to);
    }
    if (rc == FSDPCK_ERR_LIMIT)
        out = json_null();
    if (!rc)
        out = count ? moves_json(m, (uint32_t)nfrom, (uint32_t)nto) : json_null();
    free(from.boxes);
    free(to.boxes);
    free(m);
    return out;
}
