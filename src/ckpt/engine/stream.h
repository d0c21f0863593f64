/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the bytes of one chunk into an output file, and computes block hashes and CRC-32. */
#ifndef CKPT_STREAM_H
#define CKPT_STREAM_H

#include "base/out_files.h"
#include "engine/packer.h"
#include "engine/transfer_plan.h"

struct fsdpck_stream {
    struct fsdpck_out_files *out;
    const struct fsdpck_out_chunk *chunk;
    uint64_t at;    /* bytes of the chunk written so far */
    uint32_t crc32; /* of the bytes that this stream wrote */
    uint8_t *buf;   /* gathers small pieces; NULL: pieces arrive whole */
    uint64_t capacity, fill;
    struct fsdpck_packer *packer; /* for compressed chunks; set by the caller that began the stream */
};

/* `at`: first byte of the chunk, a multiple of the block if the chunk is hashed. buf: page aligned, at least capacity +
 * one page; capacity a multiple of the block. */
void fsdpck_stream_begin(struct fsdpck_stream *s, struct fsdpck_out_files *out, const struct fsdpck_out_chunk *chunk,
                         uint64_t at, uint8_t *buf, uint64_t capacity);
/* Writes the next bytes at once: whole blocks if the chunk is hashed, except for the last piece of the chunk. For
 * direct writes, data's address should be congruent to fsdpck_stream_position() modulo the page. */
int fsdpck_stream_write(struct fsdpck_stream *s, const uint8_t *data, uint64_t nbytes, struct fsdpck_error *err);
/* Gathers the next bytes, any number of them, in buf. */
int fsdpck_stream_gather(struct fsdpck_stream *s, const uint8_t *data, uint64_t nbytes, struct fsdpck_error *err);
/* Writes the bytes left in buf. */
int fsdpck_stream_end(struct fsdpck_stream *s, struct fsdpck_error *err);
static inline uint64_t fsdpck_stream_position(const struct fsdpck_stream *s)
{
    return s->chunk->payload + s->at;
}

#endif
