/* SPDX-License-Identifier: Apache-2.0 */
/* Hashes, checksums and writes one chunk's bytes, in order. Knows files and blocks, not the origin of the bytes. */
#include "engine/stream.h"
#include "base/buffer.h"

#include <string.h>

#define HASHES_AT_ONCE 128u

void fsdpck_stream_begin(struct fsdpck_stream *s, struct fsdpck_out_files *out, const struct fsdpck_out_chunk *chunk,
                         uint64_t at, uint8_t *buf, uint64_t capacity)
{
    *s = (struct fsdpck_stream){ .out = out, .chunk = chunk, .at = at, .buf = buf, .capacity = capacity };
}

static int write_hashes(struct fsdpck_stream *s, const uint8_t *data, uint64_t nbytes, struct fsdpck_error *err)
{
    struct fsdpck_hash128 hashes[HASHES_AT_ONCE];
    uint64_t block = s->at / FSDPCK_BLOCK_NBYTES;
    for (uint64_t at = 0; at < nbytes;) {
        uint64_t n = 0, first = block;
        for (; n < HASHES_AT_ONCE && at < nbytes; n++, block++) {
            uint64_t k = nbytes - at < FSDPCK_BLOCK_NBYTES ? nbytes - at : FSDPCK_BLOCK_NBYTES;
            fsdpck_hash(data + at, k, &hashes[n]);
            at += k;
        }
        int rc = fsdpck_out_files_write(s->out, s->chunk->file, hashes, n * sizeof *hashes,
                                        s->chunk->hashes + first * sizeof *hashes, err);
        if (rc)
            return rc;
    }
    return 0;
}

static int write_plain(struct fsdpck_stream *s, const uint8_t *data, uint64_t nbytes, struct fsdpck_error *err)
{
    int rc = s->chunk->hashes ? write_hashes(s, data, nbytes, err) : 0;
    return !rc ? fsdpck_out_files_write(s->out, s->chunk->file, data, nbytes, fsdpck_stream_position(s), err) : rc;
}

static struct fsdpck_packing packing_of(const struct fsdpck_stream *s)
{
    return (struct fsdpck_packing){
        .out = s->out, .file = s->chunk->file, .planes = s->chunk->planes, .records = s->chunk->hashes
    };
}

static int write_packed(struct fsdpck_stream *s, const uint8_t *data, uint64_t nbytes, struct fsdpck_error *err)
{
    const struct fsdpck_packing to = packing_of(s);
    return fsdpck_packer_write(s->packer, &to, s->at / FSDPCK_BLOCK_NBYTES, fsdpck_stream_position(s), data, nbytes,
                               err);
}

int fsdpck_stream_write(struct fsdpck_stream *s, const uint8_t *data, uint64_t nbytes, struct fsdpck_error *err)
{
    int rc = s->chunk->compressed ? write_packed(s, data, nbytes, err) : write_plain(s, data, nbytes, err);
    if (s->chunk->hashes)
        s->crc32 = fsdpck_crc32(s->crc32, data, nbytes);
    s->at += nbytes;
    return rc;
}

/* Returns the position in buf for the next byte: at the same offset in a page as in the file, so that whole pages can
 * be written directly. */
static uint8_t *base(const struct fsdpck_stream *s)
{
    return s->buf + fsdpck_stream_position(s) % FSDPCK_PAGE_NBYTES;
}

static int flush(struct fsdpck_stream *s, struct fsdpck_error *err)
{
    uint64_t n = s->fill;
    s->fill = 0;
    return n ? fsdpck_stream_write(s, base(s), n, err) : 0;
}

int fsdpck_stream_gather(struct fsdpck_stream *s, const uint8_t *data, uint64_t nbytes, struct fsdpck_error *err)
{
    while (nbytes) {
        uint64_t room = s->capacity - s->fill, n = nbytes < room ? nbytes : room;
        memcpy(base(s) + s->fill, data, n);
        s->fill += n;
        data += n;
        nbytes -= n;
        int rc = s->fill == s->capacity ? flush(s, err) : 0;
        if (rc)
            return rc;
    }
    return 0;
}

int fsdpck_stream_end(struct fsdpck_stream *s, struct fsdpck_error *err)
{
    const struct fsdpck_packing to = packing_of(s);
    int rc = flush(s, err);
    return !rc && s->chunk->compressed ? fsdpck_packer_end(s->packer, &to, err) : rc;
}
