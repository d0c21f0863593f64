/* SPDX-License-Identifier: Apache-2.0 */
/* A PyTorch DCP directory as a source: opens .metadata, and tells where the bytes of a box lie. Items are opened on
 * first use, since a checkpoint may have millions of them. */
#include "torch/dcp/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/checks.h"
#include "tensor/box.h"
#include "base/ioutil.h"
#include "hf/assets.h"
#include "torch/dcp/common.h"
#include "torch/dcp/shards.h"

#define MAX_METADATA_NBYTES (4ull << 30)

/* Publishes the location found in an item. If another thread published it earlier, both found the same. */
static int publish(struct fsdpck_source *src, struct dcp_chunk *c, uint32_t ndim, const struct dcp_payload *found,
                   struct fsdpck_error *err)
{
    struct dcp *dcp = src->impl;
    int rc = 0;
    pthread_mutex_lock(&dcp->lock);
    uint32_t before = atomic_load(&c->state);
    if (!(before & DCP_FOUND)) {
        uint32_t state = before | DCP_FOUND | (found->swap ? DCP_SWAPPED : 0u) | (found->dense ? 0u : DCP_STRIDED);
        c->location.payload = found->payload;
        if (!found->dense) {
            struct dcp_layout *layout =
                fsdpck_arena_alloc(&dcp->layouts, sizeof *layout + ndim * sizeof *layout->strides, err);
            if (layout) {
                layout->payload = found->payload;
                for (uint32_t d = 0; d < ndim; d++)
                    layout->strides[d] = found->strides[d];
            }
            c->location.layout = layout;
            rc = layout ? 0 : FSDPCK_ERR_NOMEM;
        }
        struct fsdpck_crc_record *record = rc ? NULL : fsdpck_arena_alloc(&dcp->layouts, sizeof *record, err);
        if (record)
            c->crc = fsdpck_checks_expect(src, record, found->record, found->record_nbytes, found->crc32);
        else
            rc = FSDPCK_ERR_NOMEM;
        if (!rc)
            atomic_store(&c->state, state);
    }
    pthread_mutex_unlock(&dcp->lock);
    return rc;
}

int fsdpck_dcp_extent(struct fsdpck_source *src, size_t ordinal, uint64_t chunk, struct fsdpck_extent *out,
                      struct fsdpck_error *err)
{
    struct dcp *dcp = src->impl;
    const struct fsdpck_tensor *t = &source_tensors(src)[ordinal];
    const struct dcp_tensor *d = &dcp->tensors[ordinal];
    const uint64_t *box = dcp_box(d, t->ndim, chunk);
    struct dcp_chunk *c = &d->chunks[chunk];
    uint32_t state = atomic_load(&c->state);
    if (!(state & DCP_FOUND)) {
        struct dcp_payload found;
        int rc = fsdpck_dcp_find_payload(src, t, c, box + t->ndim, &found, err);
        if (rc || (rc = publish(src, c, t->ndim, &found, err)))
            return rc;
        state = atomic_load(&c->state);
    }
    bool strided = state & DCP_STRIDED;
    uint64_t last = strided ? 0 : fsdpck_box_nelem(box + t->ndim, t->ndim) - 1;
    for (uint32_t k = 0; strided && k < t->ndim; k++)
        last += (box[t->ndim + k] - 1) * c->location.layout->strides[k];
    *out = (struct fsdpck_extent){ .file = c->file,
                                   .offset = box,
                                   .size = box + t->ndim,
                                   .swap = state & DCP_SWAPPED,
                                   .payload = strided ? c->location.layout->payload : c->location.payload,
                                   .payload_nbytes = (last + 1) * fsdpck_dtype_info(t->dtype)->nbytes,
                                   .strides = strided ? c->location.layout->strides : NULL,
                                   .crc = c->crc };
    if (state & DCP_PACKED) {
        out->streamed = true;
        out->stream = c->item;
        out->stream_nbytes = c->item_nbytes;
    }
    return 0;
}

/* Returns the first chunk that begins at `row` or later; chunks are sorted. */
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

int fsdpck_dcp_extents(struct fsdpck_source *src, size_t ordinal, const uint64_t *offset, const uint64_t *size,
                       fsdpck_extent_fn visit, void *ctx, struct fsdpck_error *err)
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
        int rc = 0;
        if (fsdpck_box_intersect(ndim, box, box + ndim, offset, size, o, s) &&
            !(rc = fsdpck_dcp_extent(src, ordinal, i, &e, err)))
            rc = visit(ctx, &e, err);
        if (rc)
            return rc;
    }
    return 0;
}

void fsdpck_dcp_close(struct fsdpck_source *src)
{
    struct dcp *dcp = src->impl;
    if (!dcp)
        return;
    fsdpck_arena_free(&dcp->layouts);
    fsdpck_zstream_free(dcp->items);
    pthread_mutex_destroy(&dcp->lock);
    free(dcp);
}

static const struct fsdpck_source_ops ops = {
    .kind = "dcp",
    .extents = fsdpck_dcp_extents,
    .verify = fsdpck_dcp_verify,
    .read_item = fsdpck_dcp_read_item,
    .close = fsdpck_dcp_close,
};

static const struct fsdpck_source_ops shard_ops = {
    /* safetensors form: there are no zips to verify */
    .kind = "dcp",
    .extents = fsdpck_dcp_extents,
    .close = fsdpck_dcp_close,
};

static int match_rank(void *ctx, const char *name)
{
    (void)ctx;
    return fsdpck_dcp_ranks_is(name);
}

static int match_shard(void *ctx, const char *name)
{
    (void)ctx;
    return fsdpck_dcp_shards_is(name);
}

int fsdpck_dcp_read_document(struct fsdpck_source *src, struct dcp *dcp, const char *name,
                             const struct fsdpck_dcp_document *doc, struct fsdpck_error *err)
{
    struct fsdpck_pickle *p = NULL;
    char *data = NULL, *below = fsdpck_path_join(doc->folder, name, err),
         *file = below ? fsdpck_path_join(src->path, below, err) : NULL;
    uint64_t nbytes = 0;
    int rc = file ? fsdpck_read_file(src->io, file, MAX_METADATA_NBYTES, &data, &nbytes, err) : FSDPCK_ERR_NOMEM;
    if (!rc)
        rc = fsdpck_pickle_parse(file, 0, data, nbytes, fsdpck_dcp_metadata_names, &p, err);
    free(data); /* free it before making the catalogue: both grow with the model */
    struct fsdpck_dcp_document full = *doc;
    full.file = file;
    if (!rc)
        rc = fsdpck_dcp_read(src, dcp, &full, p, nbytes, err);
    fsdpck_pickle_free(p);
    free(below);
    free(file);
    return rc;
}

static bool holds(const struct fsdpck_source *src, const char *folder, const char *name)
{
    char *below = fsdpck_path_join(folder, name, NULL), *file = below ? fsdpck_path_join(src->path, below, NULL) : NULL;
    bool there = file && fsdpck_is_file(src->io, file);
    free(below);
    free(file);
    return there;
}

/* None of the trainer's values is copied; one of them says how the norms are stored. */
static int read_common(struct fsdpck_source *src, const char *folder, struct fsdpck_error *err)
{
    struct fsdpck_megatron_common common;
    int rc = fsdpck_megatron_common_read(src, folder, &common, err);
    src->norms_plus_one = !rc && common.norms_plus_one;
    return rc;
}

/* Saves without coordination have one __R.metadata per rank. */
static int read_folder(struct fsdpck_source *src, const char *folder, struct fsdpck_error *err)
{
    struct fsdpck_dcp_document doc = { .folder = folder };
    int rc = read_common(src, folder, err);
    if (rc)
        return rc;
    if (!holds(src, folder, ".metadata") && holds(src, folder, "__0.metadata"))
        return fsdpck_dcp_read_ranks(src, src->impl, folder, err);
    return fsdpck_dcp_read_document(src, src->impl, ".metadata", &doc, err);
}

/* accelerate, and so Hugging Face's Trainer, saves model and optimizer in separate folders, each a DCP directory; the
 * names inside begin with "model" and "optimizer". */
static bool is_part(const char *name)
{
    return !strncmp(name, "pytorch_model_fsdp_", 19) || !strncmp(name, "optimizer_", 10);
}

static int read_parts(struct fsdpck_source *src, struct fsdpck_error *err)
{
    char **names;
    size_t count;
    int rc = fsdpck_list_sorted(src->io, src->path, &names, &count, err);
    if (rc)
        return rc;
    for (size_t i = count; !rc && i-- > 0;) /* the model first: 'p' comes after 'o' */
        if (is_part(names[i]) && (holds(src, names[i], ".metadata") || holds(src, names[i], "__0.metadata")))
            rc = read_folder(src, names[i], err);
    fsdpck_list_free(names, count);
    return rc ? rc : fsdpck_assets_scan(src, src->path, err);
}

static int read_any(struct fsdpck_source *src, struct dcp *dcp, struct fsdpck_error *err)
{
    if (holds(src, "", ".metadata"))
        return read_folder(src, "", err);
    if (src->io->list(src->io->ctx, src->path, match_rank, NULL) > 0)
        return fsdpck_dcp_read_ranks(src, dcp, "", err);
    char *latest = fsdpck_megatron_latest(src->io, src->path);
    const int rc = latest ? read_folder(src, latest, err) : 0;
    const bool megatron = latest != NULL;
    free(latest);
    if (megatron)
        return rc;
    if (holds(src, FSDPCK_DCP_FIRST_PART, ".metadata"))
        return read_parts(src, err);
    if (src->io->list(src->io->ctx, src->path, match_shard, NULL) > 0) {
        src->ops = &shard_ops;
        return fsdpck_dcp_read_shards(src, dcp, err);
    }
    return read_folder(src, "", err); /* fails, and names the missing file */
}

int fsdpck_open_dcp(struct fsdpck_source *src, struct fsdpck_error *err)
{
    struct dcp *dcp = calloc(1, sizeof *dcp);
    src->ops = &ops;
    src->impl = dcp;
    if (!dcp)
        return fsdpck_error_nomem(err, sizeof *dcp);
    pthread_mutex_init(&dcp->lock, NULL);
    int rc = read_any(src, dcp, err);
    return rc ? rc : fsdpck_dcp_measure_items(src, err);
}
