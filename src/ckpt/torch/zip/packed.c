/* SPDX-License-Identifier: Apache-2.0 */
/* Random access to a decoded item. It is efficient for the access pattern of zips: both ends first, then front to
 * back. */
#include "torch/zip/packed.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define PIECE_NBYTES FSDPCK_PACKED_PIECE_NBYTES

/* Returns the cache slot of piece k: the first piece has its own slot, the others share two slots in turn. */
static uint8_t *slot(uint8_t *cache, uint64_t k)
{
    return cache + (k ? 1 + k % 2 : 0) * PIECE_NBYTES;
}

int fsdpck_packed_measure(struct fsdpck_zstream *z, struct fsdpck_source *src, const struct fsdpck_zstream_range *range,
                          uint64_t max_nbytes, uint8_t *cache, uint64_t *nbytes, struct fsdpck_error *err)
{
    uint64_t got = PIECE_NBYTES;
    int rc = fsdpck_zstream_start(z, range, err);
    *nbytes = 0;
    for (uint64_t k = 0; !rc && got == PIECE_NBYTES; k++) {
        rc = fsdpck_zstream_next(z, slot(cache, k), PIECE_NBYTES, &got, err);
        *nbytes += got;
        if (!rc && *nbytes > max_nbytes)
            rc = fsdpck_error_at(err, FSDPCK_ERR_LIMIT, source_files(src)[range->file].path, range->offset,
                                 "the item's zstd stream decodes to more than %" PRIu64
                                 " bytes, all that the item may have",
                                 max_nbytes);
    }
    return rc;
}

/* Returns the number of cached bytes at `offset`, within one piece; 0: not cached. */
static uint64_t cached_at(const struct fsdpck_packed *p, uint64_t offset, const uint8_t **data)
{
    uint64_t k = offset / PIECE_NBYTES, last = p->nbytes / PIECE_NBYTES, end = (k + 1) * PIECE_NBYTES;
    if (k && k + 1 < last)
        return 0;
    *data = slot(p->cache, k) + offset % PIECE_NBYTES;
    return (end < p->nbytes ? end : p->nbytes) - offset;
}

static int64_t read_packed(void *ctx, int fd, void *buf, uint64_t nbytes, uint64_t offset)
{
    struct fsdpck_packed *p = ctx;
    const uint8_t *data;
    (void)fd;
    if (offset >= p->nbytes)
        return 0;
    uint64_t left = p->nbytes - offset, n = cached_at(p, offset, &data);
    if (n) {
        n = n < nbytes ? n : nbytes;
        memcpy(buf, data, n);
        return (int64_t)n;
    }
    /* It was decoded once without error, so a failure now is a system error. */
    n = nbytes < left ? nbytes : left;
    return fsdpck_zstream_read(p->stream, &p->range, offset, buf, n, NULL) == 0 ? (int64_t)n : -EIO;
}

int fsdpck_packed_open(struct fsdpck_source *src, const struct fsdpck_zstream_range *range, uint64_t max_nbytes,
                       struct fsdpck_packed *out, struct fsdpck_error *err)
{
    *out = (struct fsdpck_packed){ .range = *range, .io = { .ctx = out, .pread = read_packed } };
    out->stream = fsdpck_zstream_new(src, err);
    if (!out->stream)
        return FSDPCK_ERR_NOMEM;
    out->cache = malloc(FSDPCK_PACKED_CACHE_NBYTES);
    if (!out->cache)
        return fsdpck_error_nomem(err, FSDPCK_PACKED_CACHE_NBYTES);
    return fsdpck_packed_measure(out->stream, src, range, max_nbytes, out->cache, &out->nbytes, err);
}

void fsdpck_packed_free(struct fsdpck_packed *p)
{
    fsdpck_zstream_free(p->stream);
    free(p->cache);
    *p = (struct fsdpck_packed){ 0 };
}
