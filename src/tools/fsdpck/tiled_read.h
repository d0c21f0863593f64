/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a box of a tensor in tiles of bounded size, in row-major order. */
#ifndef TOOLS_TILED_READ_H
#define TOOLS_TILED_READ_H

#include <fsdpck/source.h>

#include "slice.h"

/* Returns 0 to continue. Any other value ends the reading and is returned. */
typedef int (*tile_fn)(void *ctx, const void *data, uint64_t nelem);

int tiled_read(struct fsdpck_source *src, const struct fsdpck_tensor *t, const struct slice *box, uint64_t tile_nbytes,
               tile_fn visit, void *ctx, struct fsdpck_error *err);

/* Reads the first and last `edge` elements of every dimension in cut, and the others whole, into dst without gaps. */
int tiled_read_edges(struct fsdpck_source *src, const struct fsdpck_tensor *t, const struct slice *box, const bool *cut,
                     uint64_t edge, void *dst, struct fsdpck_error *err);

#endif
