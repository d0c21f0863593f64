/* SPDX-License-Identifier: Apache-2.0 */
/* Read descriptors of a source's files: opened on first use, a bounded number at a time, shared by threads. A file
 * whose size or identity changed since the source was opened is refused ("changed while being read"). */
#ifndef CKPT_FILES_H
#define CKPT_FILES_H

#include "engine/source_impl.h"

/* Borrows a descriptor until release. direct: one opened with FSDPCK_OPEN_DIRECT; if the file system has none, *fd is
 * -1 and 0 is returned. */
int fsdpck_files_acquire(struct fsdpck_source *src, uint32_t file, bool direct, int *fd, struct fsdpck_error *err);
void fsdpck_files_release(struct fsdpck_source *src, uint32_t file, bool direct);
/* Acquires, reads exactly, releases: for headers and tables. */
int fsdpck_files_read(struct fsdpck_source *src, uint32_t file, void *buf, uint64_t nbytes, uint64_t offset,
                      struct fsdpck_error *err);
/* Call before the source may be replaced: if the file system renames open files instead of removing them (FUSE, NFS),
 * they would keep their folder from being removed. */
void fsdpck_files_close_idle(struct fsdpck_source *src);
/* For fsdpck_source_open() and _close() only. */
int fsdpck_files_init(struct fsdpck_source *src, struct fsdpck_error *err);
void fsdpck_files_free(struct fsdpck_source *src);

#endif
