/* SPDX-License-Identifier: Apache-2.0 */
/* A thread's workspace for reads: buffers and decoders, reused from read to read, and counts of bytes read. */
#ifndef CKPT_WORKSPACE_H
#define CKPT_WORKSPACE_H

#include "base/hash.h"
#include "engine/source_impl.h"
#include "engine/zstream.h"

#define FSDPCK_FETCH_WINDOW_NBYTES  (4u << 20) /* most bytes of one read: a multiple of the hash block */
#define FSDPCK_FETCH_DECODED_NBYTES (1u << 20) /* decoded at a time, where the elements go on to many places */
#define FSDPCK_FETCH_BLOCKS         (FSDPCK_FETCH_WINDOW_NBYTES / FSDPCK_BLOCK_NBYTES + 2) /* that one touches, at most */

/* One thread's workspace, reused from read to read. */
struct fsdpck_fetch {
    struct fsdpck_source *src;
    uint8_t *scratch;     /* page aligned; one window and what alignment adds on both sides */
    uint64_t read_nbytes; /* read so far, padding included */
    uint64_t needed_nbytes;
    uint64_t nruns;
    bool dry; /* count, read nothing: for plans */
    /* For compressed payloads, made when the first is met: */
    struct fsdpck_decoder *decoder;
    uint8_t *block;                        /* one, of which a part is wanted */
    uint8_t *decoded;                      /* what goes from there to many places */
    struct fsdpck_zstream *stream;         /* for payloads in one, likewise: it stands where the last read ended */
    struct fsdpck_zstream_range dry_range; /* where it would stand, in a dry fetch */
    uint64_t dry_at;
};

int fsdpck_fetch_init(struct fsdpck_fetch *f, struct fsdpck_source *src, struct fsdpck_error *err);
void fsdpck_fetch_free(struct fsdpck_fetch *f);
/* Memory that one takes for this source, at most. */
uint64_t fsdpck_fetch_nbytes(const struct fsdpck_source *src);
/* The part of it that zstd streams take; 0 where there are none. */
uint64_t fsdpck_fetch_stream_nbytes(const struct fsdpck_source *src);

/* The error: bytes [begin, end) of the elements of a chunk are under a hash that does not match. */
int fsdpck_fetch_damaged(const struct fsdpck_fetch *f, size_t ordinal, const struct fsdpck_extent *e, uint64_t begin,
                         uint64_t end, struct fsdpck_error *err);

#endif
