/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of one chunk on their way into an output file: hashed in blocks, CRC-32 kept, written where they belong. */
#ifndef CKPT_STREAM_H
#define CKPT_STREAM_H

#include "base/out_files.h"
#include "engine/packer.h"
#include "engine/transfer_plan.h"

struct fsdpck_stream {
    struct fsdpck_out_files *out;
    const struct fsdpck_out_chunk *chunk;
    uint64_t at;    /* bytes of the chunk that were written */
    uint32_t crc32; /* of what this stream wrote */
    uint8_t *buf;   /* gathers small pieces; NULL: pieces come whole */
    uint64_t capacity, fill;
    struct fsdpck_packer *packer; /* for compressed chunks; set by whoever began the stream */
};

/* `at`: byte of the chunk to begin with, a multiple of the block where the chunk is hashed. buf: page aligned, at least
 * capacity + one page; capacity a multiple of the block. */
void fsdpck_stream_begin(struct fsdpck_stream *s, struct fsdpck_out_files *out, const struct fsdpck_out_chunk *chunk,
                         uint64_t at, uint8_t *buf, uint64_t capacity);
/* Bytes that follow, written at once: whole blocks where the chunk is hashed, but for the last piece of the chunk. For
 * direct writes, data's address should be congruent to fsdpck_stream_position() modulo the page. */
int fsdpck_stream_write(struct fsdpck_stream *s, const uint8_t *data, uint64_t nbytes, struct fsdpck_error *err);
/* Bytes that follow, any number of them, gathered in buf. */
int fsdpck_stream_gather(struct fsdpck_stream *s, const uint8_t *data, uint64_t nbytes, struct fsdpck_error *err);
/* Writes what is still in buf. */
int fsdpck_stream_end(struct fsdpck_stream *s, struct fsdpck_error *err);
static inline uint64_t fsdpck_stream_position(const struct fsdpck_stream *s)
{
    return s->chunk->payload + s->at;
}

#endif
