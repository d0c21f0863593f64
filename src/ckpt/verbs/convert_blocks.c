/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps the blocks of quantized weights whole: where a placement would cut one, ranks get whole blocks instead, by the
 * same rule applied to the grid of blocks. Scales, one for each block, are then cut at the same places. */
#include "verbs/convert_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quant/units.h"
#include "tensor/box.h"

int fsdpck_convert_find_blocks(struct conversion *c)
{
    return fsdpck_quant_units_find(c->src, &c->arena, &c->units, &c->no_units, c->err);
}

/* ---- whether a block is cut ---- */

struct cut {
    const uint64_t *unit;
    uint32_t ndim;
    bool found;
};

static int look(void *ctx, const uint64_t *offset, const uint64_t *size)
{
    struct cut *cut = ctx;
    (void)size; /* a box ends where another begins */
    for (uint32_t d = 0; d < cut->ndim; d++)
        cut->found |= offset[d] % cut->unit[d] != 0;
    return 0;
}

bool fsdpck_convert_cuts_blocks(const struct conversion *c, uint32_t tensor)
{
    const struct manifest_tensor *t = &c->tensors[tensor];
    struct cut cut = { .unit = c->units[c->selection.tensors[tensor].source], .ndim = t->ndim };
    const struct fsdpck_mesh *mesh = &c->meshes[t->mesh];
    const uint32_t nranks = (uint32_t)fsdpck_mesh_nranks(mesh);
    uint32_t coord[FSDPCK_MAX_MESH_DIMS];
    for (uint32_t i = 0; cut.unit && !cut.found && i < nranks; i++) {
        fsdpck_convert_rank(mesh, i, coord);
        if (fsdpck_placement_boxes(mesh, t->placements, t->ndim, t->shape, coord, look, &cut))
            return false; /* placing the tensor reports it */
    }
    return cut.found;
}

/* ---- whole blocks ---- */

struct placed {
    uint32_t rank, ndim;
    const uint64_t *box; /* (2, ndim) in blocks */
};

struct placing {
    struct conversion *c;
    struct fsdpck_vec list; /* struct placed */
    uint32_t rank, ndim;
};

static int keep_box(void *ctx, const uint64_t *offset, const uint64_t *size)
{
    struct placing *p = ctx;
    uint64_t *box = fsdpck_arena_array(&p->c->arena, 2 * (size_t)p->ndim, sizeof *box, p->c->err);
    struct placed *x = box ? fsdpck_vec_push(&p->list, p->c->err) : NULL;
    if (!x)
        return FSDPCK_ERR_NOMEM;
    memcpy(box, offset, p->ndim * sizeof *box);
    memcpy(box + p->ndim, size, p->ndim * sizeof *box);
    *x = (struct placed){ p->rank, p->ndim, box };
    return 0;
}

static int by_offset(const void *a, const void *b)
{
    const struct placed *x = a, *y = b;
    for (uint32_t d = 0; d < x->ndim; d++)
        if (x->box[d] != y->box[d])
            return x->box[d] < y->box[d] ? -1 : 1;
    return 0;
}

/* From blocks to elements; the last block of a dimension may be short. */
static int add_box(const struct placing *p, uint32_t tensor, const struct placed *x)
{
    const struct manifest_tensor *t = &p->c->tensors[tensor];
    const uint64_t *unit = p->c->units[p->c->selection.tensors[tensor].source];
    uint64_t offset[FSDPCK_MAX_DIMS], size[FSDPCK_MAX_DIMS];
    for (uint32_t d = 0; d < t->ndim; d++) {
        uint64_t blocks = x->box[d] + x->box[t->ndim + d];
        offset[d] = x->box[d] * unit[d];
        size[d] = (blocks > t->shape[d] / unit[d] ? t->shape[d] : blocks * unit[d]) - offset[d];
    }
    return fsdpck_convert_add_chunk(p->c, tensor, x->rank, offset, size);
}

static void note_no_units(const struct conversion *c)
{
    char text[1200], line[1300];
    snprintf(line, sizeof line, "ranks may cut blocks of quantized weights, as one is not understood: %s",
             fsdpck_error_format(&c->no_units, text, sizeof text));
    c->opt.note(c->opt.ctx, line);
}

void fsdpck_convert_note_blocks(const struct conversion *c)
{
    char line[500], dims[100] = "", others[60] = "";
    if (c->opt.note && c->no_units.code && c->nranks > 1)
        note_no_units(c);
    if (!c->nmoved || !c->opt.note)
        return;
    const struct manifest_tensor *t = &c->tensors[c->first_moved];
    const uint64_t *unit = c->units[c->selection.tensors[c->first_moved].source];
    for (uint32_t d = 0, at = 0; d < t->ndim && at < sizeof dims; d++)
        at += (uint32_t)snprintf(dims + at, sizeof dims - at, "%s%llu", d ? " x " : "", (unsigned long long)unit[d]);
    if (c->nmoved > 1)
        snprintf(others, sizeof others, " and %zu more", c->nmoved - 1);
    snprintf(line, sizeof line,
             "the placement would cut blocks of '%.200s' (%s)%s: these are cut between blocks, and their chunks listed",
             t->name, dims, others);
    c->opt.note(c->opt.ctx, line);
}

int fsdpck_convert_place_blocks(struct conversion *c, uint32_t tensor)
{
    struct manifest_tensor *t = &c->tensors[tensor];
    const uint64_t *unit = c->units[c->selection.tensors[tensor].source];
    struct placing p = { .c = c, .list = FSDPCK_VEC(struct placed), .ndim = t->ndim };
    const struct fsdpck_mesh *mesh = &c->meshes[t->mesh];
    const uint32_t nranks = (uint32_t)fsdpck_mesh_nranks(mesh);
    uint64_t grid[FSDPCK_MAX_DIMS];
    uint32_t coord[FSDPCK_MAX_MESH_DIMS];
    int rc = 0;
    for (uint32_t d = 0; d < t->ndim; d++)
        grid[d] = t->shape[d] / unit[d] + (t->shape[d] % unit[d] != 0);
    for (uint32_t i = 0; i < nranks && !rc; i++) {
        p.rank = fsdpck_convert_rank(mesh, i, coord);
        if (fsdpck_placement_owner(mesh, t->placements, tensor, coord))
            rc = fsdpck_placement_boxes(mesh, t->placements, t->ndim, grid, coord, keep_box, &p);
    }
    if (p.list.count)
        qsort(p.list.data, p.list.count, sizeof(struct placed), by_offset);
    for (size_t i = 0; i < p.list.count && !rc; i++)
        rc = add_box(&p, tensor, (const struct placed *)p.list.data + i);
    fsdpck_vec_free(&p.list);
    if (rc)
        return rc;
    if (c->nmoved++ == 0)
        c->first_moved = tensor;
    t->mesh = -1;
    t->placements = NULL;
    return 0;
}
