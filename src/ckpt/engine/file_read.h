/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a byte range of a source's file as fast as the machine allows: cached pages from the page cache, the rest past
 * it. */
#ifndef CKPT_FILE_READ_H
#define CKPT_FILE_READ_H

#include "base/buffer.h"
#include "engine/source_impl.h"

/* Reads bytes [offset, offset + nbytes) of a file. buf: page aligned, nbytes + 2 pages long; *data points at the first
 * of them in buf. */
int fsdpck_file_read(struct fsdpck_source *src, uint32_t file, uint64_t offset, uint64_t nbytes, uint8_t *buf,
                     uint8_t **data, struct fsdpck_error *err);

/* Reads the same directly into dst, any alignment, if the page cache has all of it. False: nothing was read; call
 * fsdpck_file_read(), which also reports errors. */
bool fsdpck_file_read_cached(struct fsdpck_source *src, uint32_t file, uint64_t offset, uint64_t nbytes, uint8_t *dst);

#endif
