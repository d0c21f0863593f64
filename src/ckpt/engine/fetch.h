/* Brings elements of one tensor from the files of a source into memory: whole hashed blocks are read and verified, gaps that are cheaper to
 * read through than to seek over are read through, cached pages are copied and the rest comes past the page cache. */
#ifndef CKPT_FETCH_H
#define CKPT_FETCH_H

#include "base/hash.h"
#include "engine/source_impl.h"
#include "engine/zstream.h"

#define FSDPCK_FETCH_WINDOW_NBYTES (4u << 20) /* most bytes of one read: a multiple of the hash block */
#define FSDPCK_FETCH_DECODED_NBYTES (1u << 20) /* decoded at a time, where the elements go on to many places */
#define FSDPCK_FETCH_BLOCKS (FSDPCK_FETCH_WINDOW_NBYTES / FSDPCK_BLOCK_NBYTES + 2) /* that one touches, at most */

/* One thread's workspace, reused from read to read. */
struct fsdpck_fetch {
    struct fsdpck_source *src;
    uint8_t *scratch;      /* page aligned; one window and what alignment adds on both sides */
    uint64_t read_nbytes;  /* read so far, padding included */
    uint64_t needed_nbytes;
    uint64_t nruns;
    bool dry; /* count, read nothing: for plans */
    /* For compressed payloads, made when the first is met: */
    struct fsdpck_decoder *decoder;
    uint8_t *block;   /* one, of which a part is wanted */
    uint8_t *decoded; /* what goes from there to many places */
    struct fsdpck_zstream *stream; /* for payloads in one, likewise: it stands where the last read ended */
    struct fsdpck_zplace dry_place; /* where it would stand, in a dry fetch */
    uint64_t dry_at;
};

int fsdpck_fetch_init(struct fsdpck_fetch *f, struct fsdpck_source *src, struct fsdpck_error *err);
void fsdpck_fetch_free(struct fsdpck_fetch *f);
/* Memory that one takes for this source, at most. */
uint64_t fsdpck_fetch_nbytes(const struct fsdpck_source *src);
/* The part of it that zstd streams take; 0 where there are none. */
uint64_t fsdpck_fetch_stream_nbytes(const struct fsdpck_source *src);
/* The error: bytes [begin, end) of the elements of a chunk are under a hash that does not match. */
int fsdpck_fetch_damaged(const struct fsdpck_fetch *f, size_t ordinal, const struct fsdpck_extent *e, uint64_t begin, uint64_t end,
                         struct fsdpck_error *err);

/* Elements [begin, end) of tensor `ordinal` (no alias), in row-major order, dense, to dst. Error when the source's chunks do not cover them. */
int fsdpck_fetch_range(struct fsdpck_fetch *f, size_t ordinal, uint64_t begin, uint64_t end, void *dst, struct fsdpck_error *err);

/* Part of a box read: what of `extent` goes to a strided place. dst: address of the box's first element, offset: of the box, strides: bytes. */
struct fsdpck_fetch_target {
    size_t ordinal;
    const uint64_t *offset;
    uint8_t *dst;
    const int64_t *strides;
};
/* Whether the box (o, s) lies in one run in the chunk's payload; *first is then the chunk element it begins with. */
bool fsdpck_fetch_is_run(const struct fsdpck_extent *e, uint32_t ndim, const uint64_t *o, const uint64_t *s, uint64_t *first);
/* The box (o, s), inside the extent's, to its place in the target. Only its elements [begin, end) in row-major order, where it is a run;
 * any other box goes whole. */
int fsdpck_fetch_box(struct fsdpck_fetch *f, const struct fsdpck_extent *e, const uint64_t *o, const uint64_t *s, uint64_t begin, uint64_t end,
                     const struct fsdpck_fetch_target *to, struct fsdpck_error *err);

#endif
