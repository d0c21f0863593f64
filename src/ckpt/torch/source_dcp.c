/* A PyTorch DCP directory as a source: opens .metadata, and answers where the bytes of a box lie. Items are looked into at their first use,
 * since a checkpoint may have millions of them. */
#include "torch/dcp.h"

#include <stdlib.h>

#include "tensor/box.h"
#include "base/ioutil.h"

#define MAX_METADATA_NBYTES (4ull << 30)

/* Keeps what was found in an item. Another thread may have done so before: then it found the same. */
static int publish(struct dcp *dcp, struct dcp_chunk *c, uint32_t ndim, const struct dcp_place *found, struct fsdpck_error *err)
{
    int r = 0;
    pthread_mutex_lock(&dcp->lock);
    if (!atomic_load(&c->state)) {
        uint32_t state = DCP_FOUND | (found->swap ? DCP_SWAPPED : 0u) | (found->dense ? 0u : DCP_STRIDED);
        c->place.payload = found->payload;
        if (!found->dense) {
            struct dcp_layout *layout = fsdpck_arena_alloc(&dcp->layouts, sizeof *layout + ndim * sizeof *layout->strides, err);
            if (layout) {
                layout->payload = found->payload;
                for (uint32_t d = 0; d < ndim; d++)
                    layout->strides[d] = found->strides[d];
            }
            c->place.layout = layout;
            r = layout ? 0 : FSDPCK_ERR_NOMEM;
        }
        if (!r)
            atomic_store(&c->state, state);
    }
    pthread_mutex_unlock(&dcp->lock);
    return r;
}

int fsdpck_dcp_extent(struct fsdpck_source *src, size_t ordinal, uint64_t chunk, struct fsdpck_extent *out, struct fsdpck_error *err)
{
    struct dcp *dcp = src->impl;
    const struct fsdpck_tensor *t = &source_tensors(src)[ordinal];
    const struct dcp_tensor *d = &dcp->tensors[ordinal];
    const uint64_t *box = dcp_box(d, t->ndim, chunk);
    struct dcp_chunk *c = &d->chunks[chunk];
    uint32_t state = atomic_load(&c->state);
    if (!state) {
        struct dcp_place found;
        int r = fsdpck_dcp_find_place(src, t, c, box + t->ndim, &found, err);
        if (r || (r = publish(dcp, c, t->ndim, &found, err)))
            return r;
        state = atomic_load(&c->state);
    }
    bool strided = state & DCP_STRIDED;
    uint64_t last = strided ? 0 : fsdpck_box_nelem(box + t->ndim, t->ndim) - 1;
    for (uint32_t k = 0; strided && k < t->ndim; k++)
        last += (box[t->ndim + k] - 1) * c->place.layout->strides[k];
    *out = (struct fsdpck_extent){ .file = c->file, .offset = box, .size = box + t->ndim, .swap = state & DCP_SWAPPED,
                                   .payload = strided ? c->place.layout->payload : c->place.payload,
                                   .payload_nbytes = (last + 1) * fsdpck_dtype_info(t->dtype)->nbytes,
                                   .strides = strided ? c->place.layout->strides : NULL };
    return 0;
}

/* The first chunk that begins at or behind `row`; chunks are sorted. */
static uint64_t first_from(const struct dcp_tensor *d, uint32_t ndim, uint64_t row)
{
    uint64_t low = 0, high = d->nchunks;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (dcp_box(d, ndim, middle)[0] < row)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

int fsdpck_dcp_extents(struct fsdpck_source *src, size_t ordinal, const uint64_t *offset, const uint64_t *size, fsdpck_extent_fn visit, void *ctx,
                       struct fsdpck_error *err)
{
    const struct dcp_tensor *d = &((const struct dcp *)src->impl)->tensors[ordinal];
    uint32_t ndim = source_tensors(src)[ordinal].ndim;
    uint64_t first = 0, end = d->nchunks, o[FSDPCK_MAX_DIMS], s[FSDPCK_MAX_DIMS];
    if (ndim) {
        first = offset[0] >= d->longest ? first_from(d, ndim, offset[0] - d->longest + 1) : 0;
        end = first_from(d, ndim, offset[0] + size[0]);
    }
    for (uint64_t i = first; i < end; i++) {
        const uint64_t *box = dcp_box(d, ndim, i);
        struct fsdpck_extent e;
        int r = 0;
        if (fsdpck_box_intersect(ndim, box, box + ndim, offset, size, o, s) && !(r = fsdpck_dcp_extent(src, ordinal, i, &e, err)))
            r = visit(ctx, &e, err);
        if (r)
            return r;
    }
    return 0;
}

void fsdpck_dcp_close(struct fsdpck_source *src)
{
    struct dcp *dcp = src->impl;
    if (!dcp)
        return;
    fsdpck_arena_free(&dcp->layouts);
    pthread_mutex_destroy(&dcp->lock);
    free(dcp);
}

static const struct fsdpck_source_ops ops = {
    .kind = "dcp",
    .extents = fsdpck_dcp_extents,
    .verify = fsdpck_dcp_verify,
    .close = fsdpck_dcp_close,
};

/* Saves without coordination leave one .metadata a rank. */
static bool is_rank_local(const struct fsdpck_source *src)
{
    char *common = fsdpck_path_join(src->path, ".metadata", NULL), *first = fsdpck_path_join(src->path, "__0.metadata", NULL);
    bool local = common && first && !fsdpck_is_file(src->io, common) && fsdpck_is_file(src->io, first);
    free(common);
    free(first);
    return local;
}

static int read_metadata(struct fsdpck_source *src, const char *file, struct fsdpck_error *err)
{
    struct fsdpck_pickle *p = NULL;
    char *data = NULL;
    uint64_t nbytes = 0;
    int r = fsdpck_read_file(src->io, file, MAX_METADATA_NBYTES, &data, &nbytes, err);
    if (!r)
        r = fsdpck_pickle_parse(file, 0, data, nbytes, fsdpck_dcp_metadata_names, &p, err);
    free(data); /* before the catalogue is made: both grow with the model */
    if (!r)
        r = fsdpck_dcp_read(src, src->impl, file, p, nbytes, err);
    fsdpck_pickle_free(p);
    return r;
}

int fsdpck_open_dcp(struct fsdpck_source *src, struct fsdpck_error *err)
{
    if (is_rank_local(src)) {
        int r = fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, src->path,
                                 "is a rank-local PyTorch save (__0.metadata and no .metadata), which this version does not read");
        fsdpck_error_hint(err, "save with use_collectives=True");
        return r;
    }
    struct dcp *dcp = calloc(1, sizeof *dcp);
    char *file = fsdpck_path_join(src->path, ".metadata", err);
    int r = FSDPCK_ERR_NOMEM;
    src->ops = &ops;
    src->impl = dcp;
    if (!dcp)
        r = fsdpck_error_nomem(err, sizeof *dcp);
    else
        pthread_mutex_init(&dcp->lock, NULL);
    if (dcp && file)
        r = read_metadata(src, file, err);
    free(file);
    return r;
}
