/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a torch.save zip that is one zstd stream (DCP's `stream.zstd` extension) like an uncompressed one: the zip
 * reader gets an I/O table whose only file is the decoded item. Caches both ends, where a zip has its directory and its
 * small records; decodes the bytes between them again for each read. */
#ifndef CKPT_PACKED_H
#define CKPT_PACKED_H

#include "engine/zstream.h"

/* More than a payload that an item may decode to: names, pickle, padding and directory. */
#define FSDPCK_PACKED_ENVELOPE_NBYTES (2u << 20)

struct fsdpck_packed {
    struct fsdpck_io io; /* pread alone, of any descriptor */
    uint64_t nbytes;     /* of the decoded item */
    struct fsdpck_zstream_range range;
    struct fsdpck_zstream *stream;
    uint8_t *cache; /* the first piece, and the last two in turn */
};

/* Decodes all of the stream once; more than max_nbytes is refused. Free in any case. One thread's. The place must not
 * move: io points to out. */
int fsdpck_packed_open(struct fsdpck_source *src, const struct fsdpck_zstream_range *range, uint64_t max_nbytes,
                       struct fsdpck_packed *out, struct fsdpck_error *err);
void fsdpck_packed_free(struct fsdpck_packed *p);
/* The decoded bytes of a stream, counted with the caller's workspace; more than max_nbytes is refused. */
int fsdpck_packed_measure(struct fsdpck_zstream *z, struct fsdpck_source *src, const struct fsdpck_zstream_range *range,
                          uint64_t max_nbytes, uint8_t *cache, uint64_t *nbytes, struct fsdpck_error *err);
#define FSDPCK_PACKED_PIECE_NBYTES (64u << 10)
#define FSDPCK_PACKED_CACHE_NBYTES (3 * FSDPCK_PACKED_PIECE_NBYTES) /* of `kept` */

#endif
