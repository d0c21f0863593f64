/* SPDX-License-Identifier: Apache-2.0 */
/* A bounded number of open descriptors for a numbered set of files. Each file may have a second one that bypasses the
 * page cache. Thread-safe. */
#ifndef CKPT_FDCACHE_H
#define CKPT_FDCACHE_H

#include <fsdpck/io.h>

struct fsdpck_fdcache;

/* Opens file number `file`. If a direct descriptor is not available, sets *fd to -1 and returns 0. */
typedef int (*fsdpck_fd_open_fn)(void *ctx, uint32_t file, bool direct, int *fd, struct fsdpck_error *err);

struct fsdpck_fdcache *fsdpck_fdcache_new(const struct fsdpck_io *io, fsdpck_fd_open_fn open, void *ctx,
                                          struct fsdpck_error *err);
/* Borrows a descriptor until release; *fd is -1 if a direct one is not available. */
int fsdpck_fdcache_acquire(struct fsdpck_fdcache *c, uint32_t file, bool direct, int *fd, struct fsdpck_error *err);
void fsdpck_fdcache_release(struct fsdpck_fdcache *c, uint32_t file, bool direct);
/* Closes the descriptors that are not borrowed; they are reopened on demand. */
void fsdpck_fdcache_close_idle(struct fsdpck_fdcache *c);
void fsdpck_fdcache_free(struct fsdpck_fdcache *c); /* closes all; does nothing for NULL */

#endif
