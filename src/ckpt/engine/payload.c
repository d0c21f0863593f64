/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a chunk's payload into memory and verifies it: widens reads to whole hash blocks, and reports the rows of a
 * block whose hash does not match. Knows chunks and their blocks, no boxes. */
#include "engine/payload.h"

#include <stdlib.h>

#include "engine/checks.h"
#include "engine/decode.h"
#include "engine/file_read.h"
#include "engine/files.h"

/* Checks payload bytes [begin, end), whole blocks (the last one may be short), against the stored hashes. */
static int verify_blocks(struct fsdpck_fetch *f, size_t ordinal, const struct fsdpck_extent *e, const uint8_t *data,
                         uint64_t begin, uint64_t end, struct fsdpck_error *err)
{
    struct fsdpck_hash128 want[FSDPCK_FETCH_WINDOW_NBYTES / FSDPCK_BLOCK_NBYTES + 2], got;
    uint64_t first = begin / FSDPCK_BLOCK_NBYTES, count = (end - begin + FSDPCK_BLOCK_NBYTES - 1) / FSDPCK_BLOCK_NBYTES;
    int rc = fsdpck_files_read(f->src, e->file, want, count * sizeof *want, e->hashes + first * sizeof *want, err);
    for (uint64_t i = 0; !rc && i < count; i++) {
        uint64_t at = begin + i * FSDPCK_BLOCK_NBYTES,
                 stop = at + FSDPCK_BLOCK_NBYTES < end ? at + FSDPCK_BLOCK_NBYTES : end;
        fsdpck_hash(data + (at - begin), stop - at, &got);
        if (!fsdpck_hash_equal(&got, &want[i]))
            rc = fsdpck_fetch_damaged(f, ordinal, e, at, stop, err);
    }
    return rc;
}

/* To read more of a compressed chunk at once, a caller supplies its own buffer. */
uint64_t fsdpck_payload_window(const struct fsdpck_extent *e)
{
    return e->compressed || e->streamed ? FSDPCK_FETCH_DECODED_NBYTES : FSDPCK_FETCH_WINDOW_NBYTES;
}

static bool is_hashed(const struct fsdpck_fetch *f, const struct fsdpck_extent *e)
{
    return e->hashes && !f->src->opt.no_verify;
}

/* Checks bytes of a payload by its hashes or its CRC-32, if it has either. */
static int verify(struct fsdpck_fetch *f, size_t ordinal, const struct fsdpck_extent *e, const uint8_t *data,
                  uint64_t begin, uint64_t end, struct fsdpck_error *err)
{
    return is_hashed(f, e) ? verify_blocks(f, ordinal, e, data, begin, end, err)
                           : fsdpck_checks_bytes(f->src, ordinal, e, begin, data, end - begin, err);
}

static int read_decoded(struct fsdpck_fetch *f, size_t ordinal, const struct fsdpck_extent *e, uint64_t begin,
                        uint64_t end, uint8_t **data, struct fsdpck_error *err)
{
    if (!f->dry && !f->decoded && !(f->decoded = malloc(FSDPCK_FETCH_DECODED_NBYTES)))
        return fsdpck_error_nomem(err, FSDPCK_FETCH_DECODED_NBYTES);
    *data = f->decoded;
    return fsdpck_decode_range(f, ordinal, e, begin, end, f->decoded, err);
}

int fsdpck_payload_read(struct fsdpck_fetch *f, size_t ordinal, const struct fsdpck_extent *e, uint64_t begin,
                        uint64_t end, uint8_t **data, struct fsdpck_error *err)
{
    uint64_t first = begin, last = end;
    if (e->compressed || e->streamed)
        return read_decoded(f, ordinal, e, begin, end, data, err);
    if (is_hashed(f, e)) {
        first = begin / FSDPCK_BLOCK_NBYTES * FSDPCK_BLOCK_NBYTES;
        last = (end + FSDPCK_BLOCK_NBYTES - 1) / FSDPCK_BLOCK_NBYTES * FSDPCK_BLOCK_NBYTES;
        last = last < e->payload_nbytes ? last : e->payload_nbytes;
    }
    f->read_nbytes += last - first;
    if (f->dry)
        return 0;
    uint8_t *bytes;
    int rc = fsdpck_file_read(f->src, e->file, e->payload + first, last - first, f->scratch, &bytes, err);
    if (!rc)
        rc = verify(f, ordinal, e, bytes, first, last, err);
    if (rc)
        fsdpck_error_tensor(err, source_tensors(f->src)[ordinal].name);
    *data = bytes + (begin - first);
    return rc;
}

int fsdpck_payload_read_straight(struct fsdpck_fetch *f, size_t ordinal, const struct fsdpck_extent *e, uint64_t begin,
                                 uint64_t end, uint8_t *dst, bool *done, struct fsdpck_error *err)
{
    if ((e->compressed || e->streamed) && !f->dry) {
        *done = true;
        return fsdpck_decode_range(f, ordinal, e, begin, end, dst, err);
    }
    bool whole = begin % FSDPCK_BLOCK_NBYTES == 0 && (end % FSDPCK_BLOCK_NBYTES == 0 || end == e->payload_nbytes);
    *done = !f->dry && (whole || !is_hashed(f, e)) &&
            fsdpck_file_read_cached(f->src, e->file, e->payload + begin, end - begin, dst);
    f->read_nbytes += *done ? end - begin : 0;
    return *done ? verify(f, ordinal, e, dst, begin, end, err) : 0;
}
