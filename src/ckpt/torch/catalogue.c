/* SPDX-License-Identifier: Apache-2.0 */
/* Collects tensors and their stored boxes, and joins them. */
#include "torch/catalogue.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "tensor/box.h"
#include "tensor/cover.h"
#include "torch/pickle/tensor_node.h"

struct catalogue_entry {
    const char *name;
    const struct fsdpck_key *path;
    uint32_t npath;
    enum fsdpck_dtype dtype;
    uint32_t ndim;
    const uint64_t *shape;
    uint32_t nranks;                /* number of ranks that list it */
    uint32_t last_rank;             /* the latest rank that lists it */
    uint32_t gap;                   /* first rank, in order, that does not list it; UINT32_MAX: none so far */
    const struct fsdpck_mesh *mesh; /* NULL: no rank states its sharding */
    const struct fsdpck_placement *placements;
};

void fsdpck_catalogue_begin(struct fsdpck_catalogue *c, struct fsdpck_source *src, struct dcp *dcp,
                            struct fsdpck_error *err)
{
    *c = (struct fsdpck_catalogue){ .src = src,
                                    .dcp = dcp,
                                    .err = err,
                                    .entries = FSDPCK_VEC(struct catalogue_entry),
                                    .pieces = FSDPCK_VEC(struct fsdpck_stored_box) };
}

void fsdpck_catalogue_free(struct fsdpck_catalogue *c)
{
    fsdpck_names_free(&c->names);
    fsdpck_names_free(&c->items);
    fsdpck_names_free(&c->locations);
    fsdpck_vec_free(&c->entries);
    fsdpck_vec_free(&c->pieces);
    fsdpck_arena_free(&c->scratch);
}

static struct catalogue_entry *entries(const struct fsdpck_catalogue *c)
{
    return c->entries.data;
}

static int fail(struct fsdpck_catalogue *c, int code, const char *file, const char *name, const char *what)
{
    int rc = fsdpck_error_set(c->err, code, file, "%s", what);
    fsdpck_error_tensor(c->err, name);
    return rc;
}

/* ---- collecting ---- */

static int new_entry(struct fsdpck_catalogue *c, const char *name, const struct fsdpck_key *path, uint32_t npath,
                     struct catalogue_entry *like, uint32_t *ordinal)
{
    struct fsdpck_arena *a = &c->src->arena;
    size_t old;
    uint64_t *shape = fsdpck_arena_array(a, like->ndim, sizeof *shape, c->err);
    struct catalogue_entry *e = shape ? fsdpck_vec_push(&c->entries, c->err) : NULL;
    if (!e)
        return FSDPCK_ERR_NOMEM;
    if (like->ndim)
        memcpy(shape, like->shape, like->ndim * sizeof *shape);
    *e = *like;
    e->shape = shape;
    e->npath = npath;
    e->name = fsdpck_arena_strndup(a, name, strlen(name), c->err);
    if (!e->name || (path && !(e->path = fsdpck_source_copy_path(c->src, path, npath, c->err))))
        return FSDPCK_ERR_NOMEM;
    *ordinal = (uint32_t)(c->entries.count - 1);
    return fsdpck_names_add(&c->names, e->name, *ordinal, &old, c->err);
}

static int join_entry(struct fsdpck_catalogue *c, const char *file, uint32_t rank, const struct catalogue_entry *like,
                      struct catalogue_entry *e)
{
    char text[256], have[96], want[96];
    if (e->last_rank == rank)
        return fail(c, FSDPCK_ERR_FORMAT, file, e->name, "is listed twice");
    if (e->dtype != like->dtype || e->ndim != like->ndim ||
        (e->ndim && memcmp(e->shape, like->shape, e->ndim * sizeof *e->shape) != 0)) {
        snprintf(text, sizeof text, "has dtype %s and shape %s here, %s and %s in the files before",
                 fsdpck_dtype_info(like->dtype)->name, fsdpck_format_dims(have, sizeof have, like->shape, like->ndim),
                 fsdpck_dtype_info(e->dtype)->name, fsdpck_format_dims(want, sizeof want, e->shape, e->ndim));
        return fail(c, FSDPCK_ERR_FORMAT, file, e->name, text);
    }
    if (rank != e->last_rank + 1 && e->gap == UINT32_MAX)
        e->gap = e->last_rank + 1;
    e->last_rank = rank;
    e->nranks++;
    return 0;
}

int fsdpck_catalogue_tensor(struct fsdpck_catalogue *c, const char *file, uint32_t rank, const char *name,
                            const struct fsdpck_key *path, uint32_t npath, enum fsdpck_dtype dtype, uint32_t ndim,
                            const uint64_t *shape, uint32_t *ordinal)
{
    struct catalogue_entry like = {
        .dtype = dtype, .ndim = ndim, .shape = shape, .nranks = 1, .last_rank = rank, .gap = rank ? 0 : UINT32_MAX
    };
    uint64_t nelem, nbytes;
    size_t old = fsdpck_names_find(&c->names, name);
    if (old != SIZE_MAX) {
        *ordinal = (uint32_t)old;
        return join_entry(c, file, rank, &like, &entries(c)[old]);
    }
    if (!checked_shape(shape, ndim, fsdpck_dtype_info(dtype)->nbytes, &nelem, &nbytes))
        return fail(c, FSDPCK_ERR_FORMAT, file, name, "the product of its shape overflows");
    return new_entry(c, name, path, npath, &like, ordinal);
}

const char *fsdpck_catalogue_name(const struct fsdpck_catalogue *c, size_t ordinal)
{
    return entries(c)[ordinal].name;
}

static bool same_mesh(const struct fsdpck_mesh *a, const struct fsdpck_mesh *b)
{
    bool same = a->ndim == b->ndim;
    for (uint32_t d = 0; same && d < a->ndim; d++)
        same = a->sizes[d] == b->sizes[d] && strcmp(a->names[d], b->names[d]) == 0;
    return same;
}

/* Copies the mesh if it is new. NULL: out of memory, or too many meshes. */
static const struct fsdpck_mesh *keep_mesh(struct fsdpck_catalogue *c, const struct fsdpck_mesh *mesh)
{
    for (size_t i = 0; i < c->nmeshes; i++)
        if (same_mesh(c->meshes[i], mesh))
            return c->meshes[i];
    struct fsdpck_mesh *m =
        c->nmeshes < FSDPCK_CATALOGUE_MESHES ? fsdpck_arena_alloc(&c->src->arena, sizeof *m, c->err) : NULL;
    if (!m)
        return NULL;
    *m = *mesh;
    for (uint32_t d = 0; d < m->ndim; d++)
        if (!(m->names[d] = fsdpck_arena_strndup(&c->src->arena, mesh->names[d], strlen(mesh->names[d]), c->err)))
            return NULL;
    return c->meshes[c->nmeshes++] = m;
}

int fsdpck_catalogue_set_placements(struct fsdpck_catalogue *c, size_t ordinal, const struct fsdpck_mesh *mesh,
                                    const struct fsdpck_placement *placements)
{
    struct catalogue_entry *e = &entries(c)[ordinal];
    const struct fsdpck_mesh *kept = e->mesh ? NULL : keep_mesh(c, mesh);
    if (!kept)
        return c->err->code;
    struct fsdpck_placement *copy = fsdpck_arena_array(&c->src->arena, mesh->ndim, sizeof *copy, c->err);
    if (!copy)
        return FSDPCK_ERR_NOMEM;
    memcpy(copy, placements, mesh->ndim * sizeof *copy);
    e->mesh = kept;
    e->placements = copy;
    return 0;
}

int fsdpck_catalogue_add_box(struct fsdpck_catalogue *c, const struct fsdpck_stored_box *piece)
{
    uint32_t ndim = entries(c)[piece->tensor].ndim;
    if (!fsdpck_box_nelem(piece->box + ndim, ndim))
        return 0;
    uint64_t *box = fsdpck_arena_array(&c->src->arena, 2 * ndim, sizeof *box, c->err);
    uint64_t *strides = piece->strides ? fsdpck_arena_array(&c->scratch, ndim, sizeof *strides, c->err) : NULL;
    struct fsdpck_stored_box *p = fsdpck_vec_push(&c->pieces, c->err);
    if (!box || (piece->strides && !strides) || !p)
        return FSDPCK_ERR_NOMEM;
    *p = *piece;
    p->box = box;
    p->strides = strides;
    if (ndim)
        memcpy(box, piece->box, 2 * ndim * sizeof *box);
    if (ndim && strides)
        memcpy(strides, piece->strides, ndim * sizeof *strides);
    return 0;
}

const char *fsdpck_catalogue_incomplete(const struct fsdpck_catalogue *c, uint32_t nranks, uint32_t *rank)
{
    for (size_t i = 0; i < c->entries.count; i++) {
        const struct catalogue_entry *e = &entries(c)[i];
        if (e->nranks == nranks)
            continue;
        *rank = e->gap != UINT32_MAX ? e->gap : e->last_rank + 1;
        return e->name;
    }
    return NULL;
}

/* ---- joining ---- */

static int compare_boxes(const struct fsdpck_stored_box *a, const struct fsdpck_stored_box *b, uint32_t ndim)
{
    for (uint32_t d = 0; d < 2 * ndim; d++)
        if (a->box[d] != b->box[d])
            return a->box[d] < b->box[d] ? -1 : 1;
    return 0;
}

/* By tensor, box, file. */
static int compare_pieces(const void *a, const void *b, void *ctx)
{
    const struct fsdpck_stored_box *x = a, *y = b;
    if (x->tensor != y->tensor)
        return x->tensor < y->tensor ? -1 : 1;
    int order = compare_boxes(x, y, entries(ctx)[x->tensor].ndim);
    return order ? order : x->file < y->file ? -1 : x->file > y->file;
}

static int make_chunk(struct fsdpck_catalogue *c, const struct fsdpck_stored_box *p, uint32_t ndim,
                      struct dcp_chunk *chunk)
{
    chunk->file = p->file;
    chunk->item = p->item;
    chunk->item_nbytes = p->item_nbytes;
    chunk->location.payload = p->payload;
    chunk->crc = p->crc;
    if (p->strides) {
        struct dcp_layout *layout =
            fsdpck_arena_alloc(&c->dcp->layouts, sizeof *layout + ndim * sizeof *layout->strides, c->err);
        if (!layout)
            return FSDPCK_ERR_NOMEM;
        layout->payload = p->payload;
        if (ndim)
            memcpy(layout->strides, p->strides, ndim * sizeof *layout->strides);
        chunk->location.layout = layout;
    }
    if (p->packed)
        atomic_store(&chunk->state, DCP_PACKED);
    if (p->found)
        atomic_store(&chunk->state, DCP_FOUND | (p->swap ? DCP_SWAPPED : 0u) | (p->strides ? DCP_STRIDED : 0u));
    return 0;
}

static int check_cover(struct fsdpck_catalogue *c, const char *file, const struct catalogue_entry *e,
                       const struct dcp_tensor *d)
{
    struct fsdpck_cover *cover = fsdpck_cover_new(e->ndim, e->shape, d->nchunks, c->err);
    if (!cover)
        return FSDPCK_ERR_NOMEM;
    for (uint64_t i = 0; i < d->nchunks; i++)
        fsdpck_cover_add(cover, dcp_box(d, e->ndim, i), dcp_box(d, e->ndim, i) + e->ndim);
    int rc = fsdpck_cover_check(cover, file, e->name, c->err);
    fsdpck_cover_free(cover);
    return rc;
}

/* Pieces [begin, end) belong to the tensor; the first of several equal boxes is kept. */
static int make_chunks(struct fsdpck_catalogue *c, const char *file, const struct catalogue_entry *e,
                       const struct fsdpck_stored_box *begin, const struct fsdpck_stored_box *end,
                       struct dcp_tensor *out)
{
    size_t most = (size_t)(end - begin);
    uint64_t *boxes = fsdpck_arena_array(&c->src->arena, most, 2 * e->ndim * sizeof *boxes, c->err);
    struct dcp_chunk *chunks = fsdpck_arena_array(&c->src->arena, most, sizeof *chunks, c->err);
    if (!boxes || !chunks)
        return FSDPCK_ERR_NOMEM;
    *out = (struct dcp_tensor){ .boxes = boxes, .chunks = chunks };
    for (const struct fsdpck_stored_box *p = begin; p < end; p++) {
        if (p > begin && compare_boxes(p - 1, p, e->ndim) == 0)
            continue;
        if (!fsdpck_box_inside(e->ndim, p->box, p->box + e->ndim, e->shape))
            return fail(c, FSDPCK_ERR_FORMAT, source_files(c->src)[p->file].path, e->name,
                        "a chunk of it reaches beyond its shape");
        if (e->ndim) {
            memcpy(boxes + out->nchunks * 2 * e->ndim, p->box, 2 * e->ndim * sizeof *boxes);
            out->longest = p->box[e->ndim] > out->longest ? p->box[e->ndim] : out->longest;
        }
        int rc = make_chunk(c, p, e->ndim, &chunks[out->nchunks++]);
        if (rc)
            return rc;
    }
    return check_cover(c, file, e, out);
}

/* ---- names that share their bytes ---- */

static bool same_chunks(const struct fsdpck_tensor *t, const struct dcp_tensor *a, const struct dcp_tensor *b)
{
    if (a->nchunks != b->nchunks || memcmp(a->boxes, b->boxes, a->nchunks * 2 * t->ndim * sizeof *a->boxes) != 0)
        return false;
    for (uint64_t i = 0; i < a->nchunks; i++) {
        const struct dcp_chunk *x = &a->chunks[i], *y = &b->chunks[i];
        uint32_t state = atomic_load(&x->state);
        if (x->file != y->file || x->item != y->item || state != atomic_load(&y->state))
            return false;
        if (!(state & DCP_STRIDED)
                ? x->location.payload != y->location.payload
                : x->location.layout->payload != y->location.layout->payload ||
                      memcmp(x->location.layout->strides, y->location.layout->strides, t->ndim * sizeof(uint64_t)) != 0)
            return false;
    }
    return true;
}

/* Finds the tensor that stores the same bytes as d; *target is SIZE_MAX if there is none. */
static int find_alias(struct fsdpck_catalogue *c, const struct catalogue_entry *e, const struct dcp_tensor *d,
                      const struct dcp_tensor *all, size_t *target)
{
    char key[256], shape[160];
    *target = SIZE_MAX;
    if (!d->nchunks)
        return 0;
    const struct dcp_chunk *first = &d->chunks[0];
    bool strided = atomic_load(&first->state) & DCP_STRIDED;
    snprintf(key, sizeof key, "%" PRIu32 "@%" PRIu64 "+%" PRIu64 " %s %s", first->file, first->item,
             strided ? first->location.layout->payload : first->location.payload, fsdpck_dtype_info(e->dtype)->name,
             fsdpck_format_dims(shape, sizeof shape, e->shape, e->ndim));
    size_t old = fsdpck_names_find(&c->locations, key);
    if (old != SIZE_MAX) {
        const struct fsdpck_tensor *t = &source_tensors(c->src)[old];
        bool same = t->dtype == e->dtype && t->ndim == e->ndim &&
                    (!e->ndim || !memcmp(t->shape, e->shape, e->ndim * sizeof *e->shape));
        *target = same && same_chunks(t, &all[old], d) ? old : SIZE_MAX;
        return 0;
    }
    char *copy = fsdpck_arena_strndup(&c->scratch, key, strlen(key), c->err);
    return copy ? fsdpck_names_add(&c->locations, copy, c->src->tensors.count, &old, c->err) : FSDPCK_ERR_NOMEM;
}

static int add_tensor(struct fsdpck_catalogue *c, const char *file, const struct catalogue_entry *e,
                      const struct dcp_tensor *found, struct dcp_tensor *all)
{
    size_t target;
    int rc = find_alias(c, e, found, all, &target);
    if (rc)
        return rc;
    if (target != SIZE_MAX)
        return fsdpck_source_add_alias(c->src, file, e->name, e->path, e->npath, target, c->err);
    all[c->src->tensors.count] = *found;
    struct fsdpck_tensor *t =
        fsdpck_source_add_tensor(c->src, file, e->name, e->path, e->npath, e->dtype, e->ndim, e->shape, c->err);
    if (!t)
        return c->err->code;
    t->mesh = e->mesh;
    t->placements = e->placements;
    return 0;
}

int fsdpck_catalogue_finish(struct fsdpck_catalogue *c, const char *file)
{
    size_t ntensors = c->entries.count, at = 0;
    struct fsdpck_stored_box *pieces = c->pieces.data;
    struct dcp_tensor *all = fsdpck_arena_array(&c->src->arena, ntensors, sizeof *all, c->err);
    if (!all)
        return FSDPCK_ERR_NOMEM;
    c->dcp->tensors = all;
    if (c->pieces.count)
        qsort_r(pieces, c->pieces.count, sizeof *pieces, compare_pieces, c);
    for (size_t i = 0; i < ntensors; i++) {
        const struct catalogue_entry *e = &entries(c)[i];
        struct dcp_tensor found = { 0 };
        size_t begin = at;
        while (at < c->pieces.count && pieces[at].tensor == i)
            at++;
        int rc = make_chunks(c, file, e, pieces ? pieces + begin : NULL, pieces ? pieces + at : NULL, &found);
        if (rc || (rc = add_tensor(c, file, e, &found, all)))
            return rc;
    }
    return 0;
}
