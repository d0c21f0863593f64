/* SPDX-License-Identifier: Apache-2.0 */
/* Complete transfers and small conveniences on top of the I/O table: retries EINTR and short counts, turns errno into
 * sentences. */
#ifndef CKPT_IOUTIL_H
#define CKPT_IOUTIL_H

#include <fsdpck/io.h>

/* Reads exactly nbytes; an earlier end of the file is FSDPCK_ERR_MISSING ("file ends at …"). `file` is only for
 * messages. */
int fsdpck_read_full(const struct fsdpck_io *io, int fd, const char *file, void *buf, uint64_t nbytes, uint64_t offset,
                     struct fsdpck_error *err);
int fsdpck_write_full(const struct fsdpck_io *io, int fd, const char *file, const void *buf, uint64_t nbytes,
                      uint64_t offset, struct fsdpck_error *err);
/* Writes a new file with these bytes, and fsyncs it. The file must not exist. */
int fsdpck_write_file(const struct fsdpck_io *io, const char *path, const void *buf, uint64_t nbytes,
                      struct fsdpck_error *err);
/* Reads a whole regular file, malloc'ed, with a NUL after it; more than max_nbytes is FSDPCK_ERR_LIMIT. The caller
 * frees it. */
int fsdpck_read_file(const struct fsdpck_io *io, const char *path, uint64_t max_nbytes, char **out, uint64_t *nbytes,
                     struct fsdpck_error *err);
int fsdpck_fsync_path(const struct fsdpck_io *io, const char *path,
                      struct fsdpck_error *err);                   /* file or directory, by name */
bool fsdpck_is_file(const struct fsdpck_io *io, const char *path); /* follows links */
bool fsdpck_is_directory(const struct fsdpck_io *io, const char *path);
/* Returns "dir/name", malloc'ed; "name" if dir is empty. NULL if out of memory. */
char *fsdpck_path_join(const char *dir, const char *name, struct fsdpck_error *err);
/* Returns whether it is a plain relative path: no leading '/', no empty, "." or ".." part, no control character, at
 * most 4095 bytes. */
bool fsdpck_path_is_plain(const char *path);
/* Lists the names in a directory, sorted bytewise, malloc'ed (array and strings); without "." and "..". */
int fsdpck_list_sorted(const struct fsdpck_io *io, const char *path, char ***names, size_t *count,
                       struct fsdpck_error *err);
void fsdpck_list_free(char **names, size_t count);

#endif
