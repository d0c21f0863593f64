/* SPDX-License-Identifier: Apache-2.0 */
/* Reads bytes of one chunk's payload: reads and verifies whole hashed blocks, and decodes compressed ones. */
#ifndef CKPT_PAYLOAD_H
#define CKPT_PAYLOAD_H

#include "engine/workspace.h"

/* Returns the maximum number of bytes of one read into the fetch's own memory. */
uint64_t fsdpck_payload_window(const struct fsdpck_extent *e);
/* Reads bytes [begin, end) of the elements of tensor `ordinal` in a chunk, at most a window. *data points at byte
 * `begin`, in the fetch's memory, until the next read. A dry fetch only counts. */
int fsdpck_payload_read(struct fsdpck_fetch *f, size_t ordinal, const struct fsdpck_extent *e, uint64_t begin,
                        uint64_t end, uint8_t **data, struct fsdpck_error *err);
/* Reads the same to dst, if that saves a copy: whole cached blocks, and compressed ones. *done: whether it read; if
 * not, nothing was read. */
int fsdpck_payload_read_straight(struct fsdpck_fetch *f, size_t ordinal, const struct fsdpck_extent *e, uint64_t begin,
                                 uint64_t end, uint8_t *dst, bool *done, struct fsdpck_error *err);

#endif
