/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a byte range of a source's file as fast as the machine allows: cached pages from the page cache, the rest past
 * it. */
#ifndef CKPT_FILE_READ_H
#define CKPT_FILE_READ_H

#include "base/buffer.h"
#include "engine/source_impl.h"

/* Bytes [offset, offset + nbytes) of a file. buf: page aligned, nbytes + 2 pages long; *data gets where in it they
 * begin. */
int fsdpck_file_read(struct fsdpck_source *src, uint32_t file, uint64_t offset, uint64_t nbytes, uint8_t *buf,
                     uint8_t **data, struct fsdpck_error *err);

/* The same straight into dst, any alignment, if the page cache holds all of it; false: nothing is read, the other way
 * may (and tells what is wrong). */
bool fsdpck_file_read_cached(struct fsdpck_source *src, uint32_t file, uint64_t offset, uint64_t nbytes, uint8_t *dst);

#endif
