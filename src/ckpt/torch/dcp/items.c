/* SPDX-License-Identifier: Apache-2.0 */
/* The non-tensor items of a DCP directory that are zstd streams: their decoded sizes and bytes. .metadata does not
 * state the sizes, so opening the directory decodes each item. The total is limited. */
#include "torch/dcp/dcp.h"

#include <inttypes.h>
#include <stdlib.h>

#include "engine/files.h"
#include "torch/zip/packed.h"
#include "torch/zip/verify.h"

#define MAX_ITEM_NBYTES \
    (64ull << 20) /* a step number takes 1 KiB; the state of a data loader with a shuffled index takes some MiB */
#define MAX_ITEMS_NBYTES (512ull << 20) /* limit for all items together */

static struct fsdpck_zstream_range range_of(const struct source_item *item)
{
    return (struct fsdpck_zstream_range){ .file = item->file, .offset = item->offset, .nbytes = item->stream_nbytes };
}

/* Returns one stream for all items, since most are smaller than a block. */
static struct fsdpck_zstream *stream_of(struct fsdpck_source *src, struct fsdpck_error *err)
{
    struct dcp *dcp = src->impl;
    if (!dcp->items)
        dcp->items = fsdpck_zstream_new(src, err);
    return dcp->items;
}

static int measure(struct fsdpck_source *src, struct source_item *item, uint8_t *cache, uint64_t *budget,
                   struct fsdpck_error *err)
{
    const struct fsdpck_zstream_range range = range_of(item);
    struct fsdpck_zstream *z = stream_of(src, err);
    uint64_t most = *budget < MAX_ITEM_NBYTES ? *budget : MAX_ITEM_NBYTES;
    int rc = z ? fsdpck_packed_measure(z, src, &range, most, cache, &item->pub.nbytes, err) : FSDPCK_ERR_NOMEM;
    if (rc)
        fsdpck_error_tensor(err, item->pub.name);
    else
        *budget -= item->pub.nbytes;
    return rc;
}

int fsdpck_dcp_measure_items(struct fsdpck_source *src, struct fsdpck_error *err)
{
    uint64_t budget = MAX_ITEMS_NBYTES;
    uint8_t *cache = src->streamed ? malloc(FSDPCK_PACKED_CACHE_NBYTES) : NULL;
    if (src->streamed && !cache)
        return fsdpck_error_nomem(err, FSDPCK_PACKED_CACHE_NBYTES);
    int rc = 0;
    for (size_t i = 0; !rc && i < src->items.count; i++)
        if (source_items(src)[i].stream_nbytes)
            rc = measure(src, &source_items(src)[i], cache, &budget, err);
    free(cache);
    return rc;
}

int fsdpck_dcp_read_item(struct fsdpck_source *src, size_t number, void *buf, uint64_t nbytes, uint64_t at,
                         struct fsdpck_error *err)
{
    struct dcp *dcp = src->impl;
    const struct source_item *item = &source_items(src)[number];
    const struct fsdpck_zstream_range range = range_of(item);
    struct fsdpck_zip_subject zip;
    fsdpck_dcp_item_subject(item, &zip);
    int rc = at || src->opt.no_verify ? 0 : fsdpck_zip_check_one(src, &zip, err); /* verify at the first read */
    if (rc)
        return rc;
    if (!item->stream_nbytes)
        return fsdpck_files_read(src, item->file, buf, nbytes, item->offset + at, err);
    pthread_mutex_lock(&dcp->lock);
    struct fsdpck_zstream *z = stream_of(src, err);
    rc = z ? fsdpck_zstream_read(z, &range, at, buf, nbytes, err) : FSDPCK_ERR_NOMEM;
    pthread_mutex_unlock(&dcp->lock);
    if (rc)
        fsdpck_error_tensor(err, item->pub.name);
    return rc;
}
