/* SPDX-License-Identifier: Apache-2.0 */
/* The files that a transfer or a save writes: created on first use, with a bounded number open; large aligned pieces
 * bypass the page cache. */
#ifndef CKPT_OUT_FILES_H
#define CKPT_OUT_FILES_H

#include <fsdpck/io.h>

struct fsdpck_out_file {
    const char *path; /* full path, in the staging directory */
    uint64_t nbytes;  /* final size, set at creation */
};

struct fsdpck_out_files; /* opaque */

/* files[] must outlive it. Creates no file yet. */
struct fsdpck_out_files *fsdpck_out_files_new(const struct fsdpck_io *io, const struct fsdpck_out_file *files,
                                              size_t nfiles, struct fsdpck_error *err);
/* Creates every file with its size, up to nthreads at a time. Reserves blocks if the file system can, so that a full
 * disk is detected here. stop: see fsdpck_options. */
int fsdpck_out_files_create(struct fsdpck_out_files *o, unsigned nthreads, const volatile int *stop,
                            struct fsdpck_error *err);
/* Writes all of data. If address and offset are congruent modulo 4096, writes whole pages of large writes directly.
 * Thread-safe for ranges that do not overlap. */
int fsdpck_out_files_write(struct fsdpck_out_files *o, uint32_t file, const void *data, uint64_t nbytes,
                           uint64_t offset, struct fsdpck_error *err);
int fsdpck_out_files_read(struct fsdpck_out_files *o, uint32_t file, void *data, uint64_t nbytes, uint64_t offset,
                          struct fsdpck_error *err);
/* Truncates a file to its final size. */
int fsdpck_out_files_truncate(struct fsdpck_out_files *o, uint32_t file, uint64_t nbytes, struct fsdpck_error *err);
int fsdpck_out_files_sync(struct fsdpck_out_files *o, uint32_t file, struct fsdpck_error *err);
void fsdpck_out_files_free(struct fsdpck_out_files *o); /* closes; does nothing for NULL */

#endif
