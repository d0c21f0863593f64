/* SPDX-License-Identifier: Apache-2.0 */
/* Reads bytes of a zstd stream in a file of a source. A stream has no index: to reach a later byte, the reader decodes
 * up to it; to reach an earlier one, it starts again. zstd's window bounds the memory, whatever the stream's length.
 * Does not interpret the bytes. */
#ifndef CKPT_ZSTREAM_H
#define CKPT_ZSTREAM_H

#include "engine/source_impl.h"

#define FSDPCK_ZSTREAM_WINDOW_LOG 23 /* the largest accepted window: 8 MiB, the limit of zstd's levels up to 19 */
#define FSDPCK_ZSTREAM_NBYTES     ((1u << FSDPCK_ZSTREAM_WINDOW_LOG) + (1u << 20)) /* maximum memory of a reader */

/* The range of a stream: one or more frames, and nothing after them. */
struct fsdpck_zstream_range {
    uint32_t file;
    uint64_t offset, nbytes;
};

struct fsdpck_zstream; /* not thread-safe */
struct fsdpck_zstream *fsdpck_zstream_new(struct fsdpck_source *src,
                                          struct fsdpck_error *err); /* src must outlive it */
void fsdpck_zstream_free(struct fsdpck_zstream *z);                  /* does nothing for NULL */

/* Goes to the first byte of a stream. */
int fsdpck_zstream_start(struct fsdpck_zstream *z, const struct fsdpck_zstream_range *range, struct fsdpck_error *err);
/* Reads the next nbytes; *got is less only at the end of a complete stream. */
int fsdpck_zstream_next(struct fsdpck_zstream *z, void *buf, uint64_t nbytes, uint64_t *got, struct fsdpck_error *err);
/* Returns whether bytes from `at` on can be reached without restarting the stream. */
bool fsdpck_zstream_is_ahead(const struct fsdpck_zstream *z, const struct fsdpck_zstream_range *range, uint64_t at);
/* Reads bytes [at, at + nbytes) of the decoded stream: all of them, or an error. Cheapest if calls go forward in one
 * stream. */
int fsdpck_zstream_read(struct fsdpck_zstream *z, const struct fsdpck_zstream_range *range, uint64_t at, void *buf,
                        uint64_t nbytes, struct fsdpck_error *err);

#endif
