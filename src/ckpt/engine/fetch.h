/* SPDX-License-Identifier: Apache-2.0 */
/* Reads elements of one tensor from the files of a source into memory. Reads and verifies whole hashed blocks, reads
 * gaps that are cheaper to read than to skip, copies cached pages, and reads the rest past the page cache. */
#ifndef CKPT_FETCH_H
#define CKPT_FETCH_H

#include "engine/workspace.h"

#define FSDPCK_READ_APART_NBYTES (16u << 10) /* runs of this size or more are read one by one if gaps are as long */

/* Fetches elements [begin, end) of tensor `ordinal` (not an alias), in row-major order, dense, to dst. Fails if the
 * source's chunks do not cover them. */
int fsdpck_fetch_range(struct fsdpck_fetch *f, size_t ordinal, uint64_t begin, uint64_t end, void *dst,
                       struct fsdpck_error *err);

/* Destination of a box read: the part of `extent` inside the box goes to strided memory. dst: address of the box's
 * first element, offset: of the box, strides: bytes. */
struct fsdpck_fetch_target {
    size_t ordinal;
    const uint64_t *offset;
    uint8_t *dst;
    const int64_t *strides;
};
/* Returns whether the box (o, s) is one run in the chunk's payload; *first is then its first chunk element. */
bool fsdpck_fetch_is_run(const struct fsdpck_extent *e, uint32_t ndim, const uint64_t *o, const uint64_t *s,
                         uint64_t *first);
/* Fetches the box (o, s), inside the extent's, to its position in the target. If the box is a run, only its elements
 * [begin, end) in row-major order; any other box is fetched whole. */
int fsdpck_fetch_box(struct fsdpck_fetch *f, const struct fsdpck_extent *e, const uint64_t *o, const uint64_t *s,
                     uint64_t begin, uint64_t end, const struct fsdpck_fetch_target *to, struct fsdpck_error *err);

#endif
