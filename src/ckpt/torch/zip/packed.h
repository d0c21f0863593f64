/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a torch.save zip that is one zstd stream (DCP's `stream.zstd` extension) like an uncompressed one: the zip
 * reader gets an I/O table whose only file is the decoded item. Caches both ends, where a zip has its directory and its
 * small records; decodes the bytes between them again for each read. */
#ifndef CKPT_PACKED_H
#define CKPT_PACKED_H

#include "engine/zstream.h"

/* Limit for the bytes of an item beyond its payload: names, pickle, padding and directory. */
#define FSDPCK_PACKED_ENVELOPE_NBYTES (2u << 20)

struct fsdpck_packed {
    struct fsdpck_io io; /* has only pread, and ignores the descriptor */
    uint64_t nbytes;     /* of the decoded item */
    struct fsdpck_zstream_range range;
    struct fsdpck_zstream *stream;
    uint8_t *cache; /* the first piece, and two slots for the others */
};

/* Decodes the whole stream once; refuses more than max_nbytes. Must be freed even after failure. Not thread-safe. *out
 * must not move, because io points to it. */
int fsdpck_packed_open(struct fsdpck_source *src, const struct fsdpck_zstream_range *range, uint64_t max_nbytes,
                       struct fsdpck_packed *out, struct fsdpck_error *err);
void fsdpck_packed_free(struct fsdpck_packed *p);
/* Counts the decoded bytes of a stream, with the caller's workspace; refuses more than max_nbytes. */
int fsdpck_packed_measure(struct fsdpck_zstream *z, struct fsdpck_source *src, const struct fsdpck_zstream_range *range,
                          uint64_t max_nbytes, uint8_t *cache, uint64_t *nbytes, struct fsdpck_error *err);
#define FSDPCK_PACKED_PIECE_NBYTES (64u << 10)
#define FSDPCK_PACKED_CACHE_NBYTES (3 * FSDPCK_PACKED_PIECE_NBYTES) /* of `cache` */

#endif
