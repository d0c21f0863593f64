/* SPDX-License-Identifier: Apache-2.0 */
/* Reads elements of one tensor from the files of a source into memory. Reads and verifies whole hashed blocks, reads
 * gaps that are cheaper to read than to skip, copies cached pages, and reads the rest past the page cache. */
#ifndef CKPT_FETCH_H
#define CKPT_FETCH_H

#include "engine/workspace.h"

/* Elements [begin, end) of tensor `ordinal` (no alias), in row-major order, dense, to dst. Error when the source's
 * chunks do not cover them. */
int fsdpck_fetch_range(struct fsdpck_fetch *f, size_t ordinal, uint64_t begin, uint64_t end, void *dst,
                       struct fsdpck_error *err);

/* Part of a box read: what of `extent` goes to a strided place. dst: address of the box's first element, offset: of the
 * box, strides: bytes. */
struct fsdpck_fetch_target {
    size_t ordinal;
    const uint64_t *offset;
    uint8_t *dst;
    const int64_t *strides;
};
/* Whether the box (o, s) lies in one run in the chunk's payload; *first is then the chunk element it begins with. */
bool fsdpck_fetch_is_run(const struct fsdpck_extent *e, uint32_t ndim, const uint64_t *o, const uint64_t *s,
                         uint64_t *first);
/* The box (o, s), inside the extent's, to its place in the target. Only its elements [begin, end) in row-major order,
 * where it is a run; any other box goes whole. */
int fsdpck_fetch_box(struct fsdpck_fetch *f, const struct fsdpck_extent *e, const uint64_t *o, const uint64_t *s,
                     uint64_t begin, uint64_t end, const struct fsdpck_fetch_target *to, struct fsdpck_error *err);

#endif
