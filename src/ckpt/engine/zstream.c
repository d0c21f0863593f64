/* SPDX-License-Identifier: Apache-2.0 */
/* Decodes consecutive zstd frames. The caller limits the decoded size. */
#include "engine/zstream.h"

#include <stdlib.h>
#include <string.h>

#include <zstd.h>
#include <zstd_errors.h>

#include "engine/files.h"

#define INPUT_NBYTES (128u << 10) /* one zstd block */
#define SKIP_NBYTES  (128u << 10) /* decoded at a time while skipping */

struct fsdpck_zstream {
    struct fsdpck_source *src;
    ZSTD_DCtx *zstd;
    struct fsdpck_zstream_range range;
    bool started, failed;
    bool between;   /* one frame has ended, and the next has not begun */
    uint64_t taken; /* bytes of the stream copied to input */
    uint64_t at;    /* decoded so far */
    ZSTD_inBuffer in;
    uint8_t input[INPUT_NBYTES], skipped[SKIP_NBYTES];
};

struct fsdpck_zstream *fsdpck_zstream_new(struct fsdpck_source *src, struct fsdpck_error *err)
{
    struct fsdpck_zstream *z = calloc(1, sizeof *z);
    if (z && (z->zstd = ZSTD_createDCtx()) &&
        !ZSTD_isError(ZSTD_DCtx_setParameter(z->zstd, ZSTD_d_windowLogMax, FSDPCK_ZSTREAM_WINDOW_LOG))) {
        z->src = src;
        return z;
    }
    fsdpck_zstream_free(z);
    fsdpck_error_nomem(err, sizeof *z);
    return NULL;
}

void fsdpck_zstream_free(struct fsdpck_zstream *z)
{
    if (z)
        ZSTD_freeDCtx(z->zstd);
    free(z);
}

int fsdpck_zstream_start(struct fsdpck_zstream *z, const struct fsdpck_zstream_range *range, struct fsdpck_error *err)
{
    z->range = *range;
    z->started = true;
    z->failed = z->between = false;
    z->taken = z->at = 0;
    z->in = (ZSTD_inBuffer){ .src = z->input };
    if (ZSTD_isError(ZSTD_DCtx_reset(z->zstd, ZSTD_reset_session_only)))
        return fsdpck_error_nomem(err, sizeof *z);
    return 0;
}

#define FAIL(z, code, ...) \
    fsdpck_error_at(err, code, source_files((z)->src)[(z)->range.file].path, (z)->range.offset, __VA_ARGS__)

/* Reports zstd's error, with a clearer message if there is one. */
static int refuse(const struct fsdpck_zstream *z, size_t result, struct fsdpck_error *err)
{
    switch (ZSTD_getErrorCode(result)) {
    case ZSTD_error_memory_allocation: return fsdpck_error_nomem(err, FSDPCK_ZSTREAM_NBYTES);
    case ZSTD_error_frameParameter_windowTooLarge:
        return FAIL(
            z, FSDPCK_ERR_LIMIT,
            "the item's zstd stream needs a window of more than %u MiB; those of zstd's levels up to 19 are read",
            1u << (FSDPCK_ZSTREAM_WINDOW_LOG - 20));
    case ZSTD_error_dictionary_wrong:
        return FAIL(z, FSDPCK_ERR_UNSUPPORTED,
                    "the item's zstd stream needs a dictionary, and none comes with the checkpoint");
    case ZSTD_error_prefix_unknown:
        if (z->between)
            return FAIL(z, FSDPCK_ERR_FORMAT, "the item's zstd stream is followed by bytes that belong to no stream");
        return FAIL(z, FSDPCK_ERR_FORMAT, "the item is no zstd stream, as .metadata says");
    default:
        return FAIL(z, FSDPCK_ERR_DAMAGED, "the item's zstd stream does not decode behind byte %llu of the item: %s",
                    (unsigned long long)z->at, ZSTD_getErrorName(result));
    }
}

static int refill(struct fsdpck_zstream *z, struct fsdpck_error *err)
{
    uint64_t left = z->range.nbytes - z->taken, n = left < INPUT_NBYTES ? left : INPUT_NBYTES;
    int rc = fsdpck_files_read(z->src, z->range.file, z->input, n, z->range.offset + z->taken, err);
    if (!rc) {
        z->taken += n;
        z->in = (ZSTD_inBuffer){ .src = z->input, .size = n };
    }
    return rc;
}

/* Calls zstd once, with fresh input if the old is consumed. *end: the stream ends here, after a whole frame. */
static int step(struct fsdpck_zstream *z, ZSTD_outBuffer *out, bool *end, struct fsdpck_error *err)
{
    if (z->in.pos == z->in.size && z->taken < z->range.nbytes) {
        int rc = refill(z, err);
        if (rc)
            return rc;
    }
    *end = z->between && z->in.pos == z->in.size;
    if (*end)
        return 0;
    size_t in_before = z->in.pos, out_before = out->pos, result = ZSTD_decompressStream(z->zstd, out, &z->in);
    z->at += out->pos - out_before;
    if (ZSTD_isError(result))
        return refuse(z, result, err);
    z->between = result == 0;
    if (z->in.pos == in_before && out->pos == out_before && z->in.pos == z->in.size)
        return FAIL(z, FSDPCK_ERR_DAMAGED,
                    "the item's zstd stream of %llu bytes ends early, behind byte %llu of the item",
                    (unsigned long long)z->range.nbytes, (unsigned long long)z->at);
    return 0;
}

int fsdpck_zstream_next(struct fsdpck_zstream *z, void *buf, uint64_t nbytes, uint64_t *got, struct fsdpck_error *err)
{
    ZSTD_outBuffer out = { .dst = buf, .size = nbytes };
    bool end = false;
    int rc = 0;
    while (!rc && !end && out.pos < nbytes)
        rc = step(z, &out, &end, err);
    z->failed = rc != 0;
    *got = out.pos;
    return rc;
}

bool fsdpck_zstream_is_ahead(const struct fsdpck_zstream *z, const struct fsdpck_zstream_range *range, uint64_t at)
{
    return z->started && !z->failed && z->range.file == range->file && z->range.offset == range->offset &&
           z->range.nbytes == range->nbytes && z->at <= at;
}

int fsdpck_zstream_read(struct fsdpck_zstream *z, const struct fsdpck_zstream_range *range, uint64_t at, void *buf,
                        uint64_t nbytes, struct fsdpck_error *err)
{
    int rc = fsdpck_zstream_is_ahead(z, range, at) ? 0 : fsdpck_zstream_start(z, range, err);
    uint64_t n = 0, got = 0;
    while (!rc && z->at < at && got == n) {
        n = at - z->at < SKIP_NBYTES ? at - z->at : SKIP_NBYTES;
        rc = fsdpck_zstream_next(z, z->skipped, n, &got, err);
    }
    if (!rc && z->at == at) {
        n = nbytes;
        rc = fsdpck_zstream_next(z, buf, n, &got, err);
    }
    if (!rc && got < n)
        rc = FAIL(z, FSDPCK_ERR_DAMAGED, "the item's zstd stream decodes to %llu bytes, byte %llu is wanted",
                  (unsigned long long)z->at, (unsigned long long)(at + nbytes));
    return rc;
}
