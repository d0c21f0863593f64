/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a box of a tensor in pieces of bounded size, in row-major order. */
#ifndef TOOLS_PIECES_H
#define TOOLS_PIECES_H

#include <fsdpck/source.h>

#include "slice.h"

/* Returns 0 to continue. Any other value ends the walk and is returned. */
typedef int (*piece_fn)(void *ctx, const void *data, uint64_t nelem);

int pieces_read(struct fsdpck_source *src, const struct fsdpck_tensor *t, const struct slice *box,
                uint64_t piece_nbytes, piece_fn visit, void *ctx, struct fsdpck_error *err);

/* Reads the first and last `edge` elements of every dimension in cut, and the others whole, into dst without gaps. */
int pieces_read_edges(struct fsdpck_source *src, const struct fsdpck_tensor *t, const struct slice *box,
                      const bool *cut, uint64_t edge, void *dst, struct fsdpck_error *err);

#endif
