/* SPDX-License-Identifier: Apache-2.0 */
/* Reads bytes of one chunk's payload: reads and verifies whole hashed blocks, and decodes compressed ones. */
#ifndef CKPT_PAYLOAD_H
#define CKPT_PAYLOAD_H

#include "engine/workspace.h"

/* Most that may be asked for at a time by whoever wants it in the fetch's own memory. */
uint64_t fsdpck_payload_window(const struct fsdpck_extent *e);
/* Bytes [begin, end) of the elements of tensor `ordinal` in a chunk, at most a window; *data points at byte `begin`, in
 * memory of the fetch, until the next read. A dry fetch counts, and reads nothing. */
int fsdpck_payload_read(struct fsdpck_fetch *f, size_t ordinal, const struct fsdpck_extent *e, uint64_t begin,
                        uint64_t end, uint8_t **data, struct fsdpck_error *err);
/* The same to dst, where that saves a copy: whole blocks that are cached, and compressed ones. *done: whether it was
 * done; else nothing is read. */
int fsdpck_payload_read_straight(struct fsdpck_fetch *f, size_t ordinal, const struct fsdpck_extent *e, uint64_t begin,
                                 uint64_t end, uint8_t *dst, bool *done, struct fsdpck_error *err);

#endif
