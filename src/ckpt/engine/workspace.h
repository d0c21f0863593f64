/* SPDX-License-Identifier: Apache-2.0 */
/* A thread's workspace for reads: buffers and decoders, reused from read to read, and counts of bytes read. */
#ifndef CKPT_WORKSPACE_H
#define CKPT_WORKSPACE_H

#include "base/hash.h"
#include "engine/source_impl.h"
#include "engine/zstream.h"

#define FSDPCK_FETCH_WINDOW_NBYTES  (4u << 20) /* maximum bytes of one read: a multiple of the hash block */
#define FSDPCK_FETCH_DECODED_NBYTES (1u << 20) /* bytes decoded at a time if the elements are scattered */
#define FSDPCK_FETCH_BLOCKS         (FSDPCK_FETCH_WINDOW_NBYTES / FSDPCK_BLOCK_NBYTES + 2) /* most blocks in a window */

/* One thread's workspace, reused from read to read. */
struct fsdpck_fetch {
    struct fsdpck_source *src;
    uint8_t *scratch;     /* page aligned; one window plus alignment on both sides */
    bool shared;          /* it is another workspace's */
    uint64_t read_nbytes; /* bytes read so far, padding included */
    uint64_t needed_nbytes;
    uint64_t nruns;
    bool dry; /* count but do not read: for plans */
    /* For compressed payloads, made on first use: */
    struct fsdpck_decoder *decoder;
    uint8_t *block;                        /* one block, if only a part of it is requested */
    uint8_t *decoded;                      /* decoded elements to be scattered */
    struct fsdpck_zstream *stream;         /* for zstd payloads, made on first use; at the end of the last read */
    struct fsdpck_zstream_range dry_range; /* its position in a dry fetch */
    uint64_t dry_at;
    void *values; /* state of a source that computes tensors, made on first use: see value_view.h */
    void (*values_end)(void *state);
};

int fsdpck_fetch_init(struct fsdpck_fetch *f, struct fsdpck_source *src, struct fsdpck_error *err);
/* As fsdpck_fetch_init(), but reads into the scratch of `with`, which must outlive f and be used by the same thread. */
void fsdpck_fetch_init_shared(struct fsdpck_fetch *f, struct fsdpck_source *src, const struct fsdpck_fetch *with);
void fsdpck_fetch_free(struct fsdpck_fetch *f);
/* Returns the maximum memory of one workspace for this source. */
uint64_t fsdpck_fetch_nbytes(const struct fsdpck_source *src);
/* Returns the same without the scratch: what a workspace that shares it needs. */
uint64_t fsdpck_fetch_shared_nbytes(const struct fsdpck_source *src);
/* Returns the part of it for zstd streams; 0 if there are none. */
uint64_t fsdpck_fetch_stream_nbytes(const struct fsdpck_source *src);
/* Returns the part of it for computing tensors; 0 if none is computed. */
uint64_t fsdpck_fetch_values_nbytes(const struct fsdpck_source *src);

/* Fills err: bytes [begin, end) of the elements of a chunk do not match their hash. */
int fsdpck_fetch_damaged(const struct fsdpck_fetch *f, size_t ordinal, const struct fsdpck_extent *e, uint64_t begin,
                         uint64_t end, struct fsdpck_error *err);

#endif
