/* SPDX-License-Identifier: Apache-2.0 */
/* Decodes compressed payloads: reads the records of their blocks (FORMAT.md section 8), and elements from blocks or a
 * zstd stream. */
#ifndef CKPT_DECODE_H
#define CKPT_DECODE_H

#include "base/hash.h"
#include "engine/workspace.h"

#define FSDPCK_RECORD_NBYTES 32u

struct fsdpck_record { /* of a stored block, instead of a bare hash */
    struct fsdpck_hash128 hash;
    uint64_t begin;  /* in the payload; while a shard is being written: in the file */
    uint32_t nbytes; /* equal to the decoded size: stored uncompressed */
};
void fsdpck_record_store(const struct fsdpck_record *r, uint8_t out[FSDPCK_RECORD_NBYTES]);
bool fsdpck_record_load(struct fsdpck_record *r,
                        const uint8_t in[FSDPCK_RECORD_NBYTES]); /* false: reserved bytes are not zero */

/* Returns the number of bytes that block `number` decodes to. */
static inline uint32_t fsdpck_block_decoded(const struct fsdpck_extent *e, uint64_t number)
{
    uint64_t left = e->payload_nbytes - number * FSDPCK_BLOCK_NBYTES;
    return left < FSDPCK_BLOCK_NBYTES ? (uint32_t)left : FSDPCK_BLOCK_NBYTES;
}

/* Reads the records of blocks [first, first + count), count at most FSDPCK_FETCH_BLOCKS. Checks that they are
 * contiguous and end with the payload. */
int fsdpck_records_read(struct fsdpck_source *src, const struct fsdpck_extent *e, uint64_t first, uint64_t count,
                        struct fsdpck_record *out, struct fsdpck_error *err);
/* Decodes the elements' bytes [begin, end), at most a window, to dst, and verifies them. A dry fetch reads no payload
 * and only counts. */
int fsdpck_decode_range(struct fsdpck_fetch *f, size_t ordinal, const struct fsdpck_extent *e, uint64_t begin,
                        uint64_t end, uint8_t *dst, struct fsdpck_error *err);

#endif
