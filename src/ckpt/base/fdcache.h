/* SPDX-License-Identifier: Apache-2.0 */
/* A bounded number of open descriptors for a numbered set of files, each perhaps with a second one that bypasses the
 * page cache. Thread-safe. */
#ifndef CKPT_FDCACHE_H
#define CKPT_FDCACHE_H

#include <fsdpck/io.h>

struct fsdpck_fdcache;

/* Opens file number `file`; *fd is -1, and 0 returned, where there is no direct descriptor to be had. */
typedef int (*fsdpck_fd_open_fn)(void *ctx, uint32_t file, bool direct, int *fd, struct fsdpck_error *err);

struct fsdpck_fdcache *fsdpck_fdcache_new(const struct fsdpck_io *io, fsdpck_fd_open_fn open, void *ctx,
                                          struct fsdpck_error *err);
/* Borrows a descriptor until release; *fd is -1 where direct is not to be had. */
int fsdpck_fdcache_acquire(struct fsdpck_fdcache *c, uint32_t file, bool direct, int *fd, struct fsdpck_error *err);
void fsdpck_fdcache_release(struct fsdpck_fdcache *c, uint32_t file, bool direct);
/* Closes those that nobody borrows; they are opened again when they are wanted. */
void fsdpck_fdcache_close_idle(struct fsdpck_fdcache *c);
void fsdpck_fdcache_free(struct fsdpck_fdcache *c); /* closes all; NULL does nothing */

#endif
