/* SPDX-License-Identifier: Apache-2.0 */
/* The table of all file operations that the library uses. Tests replace it to simulate kills, a full disk, short
 * transfers and power loss. */
#ifndef FSDPCK_IO_H
#define FSDPCK_IO_H

#include <fsdpck/error.h>

#ifdef __cplusplus
extern "C" {
#endif

enum fsdpck_open_flag {
    FSDPCK_OPEN_READ = 1 << 0,
    FSDPCK_OPEN_WRITE = 1 << 1,
    FSDPCK_OPEN_CREATE = 1 << 2,    /* must not exist yet */
    FSDPCK_OPEN_DIRECT = 1 << 3,    /* bypass the page cache; -EINVAL if the file system cannot */
    FSDPCK_OPEN_DIRECTORY = 1 << 4, /* for fsync of a directory */
    FSDPCK_OPEN_UNNAMED = 1 << 5    /* a file without a name in the directory `path`: it is gone when it is closed;
                                       -EOPNOTSUPP or -EISDIR if the file system cannot */
};

enum fsdpck_file_type { FSDPCK_FILE_REGULAR = 1, FSDPCK_FILE_DIRECTORY, FSDPCK_FILE_SYMLINK, FSDPCK_FILE_OTHER };

struct fsdpck_stat {
    enum fsdpck_file_type type;
    uint64_t nbytes;
    uint64_t device, inode;
    int64_t mtime_ns;
};

/* Called once for each entry except "." and "..", in no particular order. A nonzero return ends the listing and becomes
 * its result. */
typedef int (*fsdpck_list_fn)(void *visit_ctx, const char *name);

/* Every operation returns a negative errno on failure. Transfers may be short and may return -EINTR: the helpers in
 * src/ckpt/base/ioutil.h retry. Descriptors are small non-negative integers. All operations are thread-safe. */
struct fsdpck_io {
    void *ctx; /* first argument of every operation */
    int (*open)(void *ctx, const char *path, int flags, unsigned mode);
    int (*close)(void *ctx, int fd);
    int64_t (*pread)(void *ctx, int fd, void *buf, uint64_t nbytes, uint64_t offset);
    /* As pread if the page cache holds the whole range; else -EAGAIN, without read-ahead. -EOPNOTSUPP: the cache cannot
     * be queried. */
    int64_t (*pread_cached)(void *ctx, int fd, void *buf, uint64_t nbytes, uint64_t offset);
    int64_t (*pwrite)(void *ctx, int fd, const void *buf, uint64_t nbytes, uint64_t offset);
    int (*truncate)(void *ctx, int fd, uint64_t nbytes);
    int (*allocate)(void *ctx, int fd,
                    uint64_t nbytes); /* reserve blocks and set the size; callers ignore -EOPNOTSUPP */
    int (*fsync)(void *ctx, int fd);
    int (*fstat)(void *ctx, int fd, struct fsdpck_stat *out);
    int (*stat)(void *ctx, const char *path, bool follow, struct fsdpck_stat *out);
    int (*list)(void *ctx, const char *path, fsdpck_list_fn visit, void *visit_ctx);
    int (*resolve)(void *ctx, const char *path, char *out, size_t out_nbytes); /* realpath */
    int (*mkdir)(void *ctx, const char *path, unsigned mode);
    int (*rename)(void *ctx, const char *from, const char *to);
    int (*rename_new)(void *ctx, const char *from,
                      const char *to); /* -EEXIST instead of replacing; -EINVAL if the file system cannot */
    int (*exchange)(void *ctx, const char *a,
                    const char *b); /* swap two names atomically; -EINVAL if the file system cannot */
    int (*unlink)(void *ctx, const char *path);
    int (*rmdir)(void *ctx, const char *path);
    int (*lock)(void *ctx,
                int fd); /* exclusive, non-blocking, owned by the open file; -EAGAIN if another holds the lock */
    int (*lock_probe)(void *ctx, int fd); /* 1 if another holds a lock on the file, else 0; takes no lock */
    int (*random)(void *ctx, void *buf, size_t nbytes);
    int64_t (*now_ns)(void *ctx); /* wall clock, since 1970 */
    /* 1 if the file system of the path has no other place than memory (tmpfs), else 0. NULL: not known. */
    int (*in_memory)(void *ctx, const char *path);
};

/* POSIX (Linux); ctx is NULL. Changes no signal handler. A write beyond the process's file size limit (RLIMIT_FSIZE),
 * for which the kernel would send SIGXFSZ, fails with -EFBIG. */
FSDPCK_API extern const struct fsdpck_io fsdpck_io_posix;

#ifdef __cplusplus
}
#endif
#endif
