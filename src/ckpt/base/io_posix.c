/* SPDX-License-Identifier: Apache-2.0 */
/* The I/O table on Linux. Only this file and page_cache.c make system calls on files. It makes no decisions. */
#include <fsdpck/io.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "base/page_cache.h"

static int result(int rc)
{
    return rc < 0 ? -errno : rc;
}

static int posix_open(void *ctx, const char *path, int flags, unsigned mode)
{
    (void)ctx;
    int how = O_CLOEXEC | O_NOCTTY;
    if (flags & FSDPCK_OPEN_WRITE)
        how |= flags & FSDPCK_OPEN_READ ? O_RDWR : O_WRONLY;
    else
        how |= O_RDONLY;
    if (flags & FSDPCK_OPEN_CREATE)
        how |= O_CREAT | O_EXCL;
    if (flags & FSDPCK_OPEN_DIRECT)
        how |= O_DIRECT;
    if (flags & FSDPCK_OPEN_DIRECTORY)
        how |= O_DIRECTORY;
    if (flags & FSDPCK_OPEN_UNNAMED)
        how |= O_TMPFILE;
    return result((int)TEMP_FAILURE_RETRY(open(path, how, (mode_t)mode)));
}

static int posix_close(void *ctx, int fd)
{
    (void)ctx;
    int rc = result(close(fd));
    return rc == -EINTR ? 0 : rc; /* Linux has closed it anyway; a second close could close another thread's file */
}

static int64_t posix_pread(void *ctx, int fd, void *buf, uint64_t nbytes, uint64_t offset)
{
    (void)ctx;
    ssize_t n = pread(fd, buf, nbytes, (off_t)offset);
    return n < 0 ? -errno : n;
}

static int64_t posix_pread_cached(void *ctx, int fd, void *buf, uint64_t nbytes, uint64_t offset)
{
    (void)ctx;
    int held = fsdpck_page_cache_holds(fd, offset, nbytes);
    if (held <= 0)
        return held == 0 ? -EAGAIN : held;
    ssize_t n = pread(fd, buf, nbytes, (off_t)offset);
    return n < 0 ? -errno : n;
}

/* If a write exceeds the file size limit, the kernel sends SIGXFSZ, which by default kills the process. The library
 * leaves signals to the program, so it checks the limit first. It checks every time: another process may change the
 * limit (prlimit), and the call costs little compared with a write. */
static bool is_over_limit(uint64_t nbytes)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && nbytes > limit.rlim_cur;
}

static int64_t posix_pwrite(void *ctx, int fd, const void *buf, uint64_t nbytes, uint64_t offset)
{
    (void)ctx;
    if (is_over_limit(offset + nbytes))
        return -EFBIG;
    ssize_t n = pwrite(fd, buf, nbytes, (off_t)offset);
    return n < 0 ? -errno : n;
}

static int posix_truncate(void *ctx, int fd, uint64_t nbytes)
{
    (void)ctx;
    if (is_over_limit(nbytes))
        return -EFBIG;
    return result((int)TEMP_FAILURE_RETRY(ftruncate(fd, (off_t)nbytes)));
}

static int posix_allocate(void *ctx, int fd, uint64_t nbytes)
{
    if (nbytes == 0)
        return posix_truncate(ctx, fd, 0); /* fallocate refuses a length of 0 */
    if (is_over_limit(nbytes))
        return -EFBIG;
    int rc = result((int)TEMP_FAILURE_RETRY(fallocate(fd, 0, 0, (off_t)nbytes)));
    return rc == -ENOSYS ? -EOPNOTSUPP : rc;
}

static int posix_fsync(void *ctx, int fd)
{
    (void)ctx;
    return result((int)TEMP_FAILURE_RETRY(fsync(fd)));
}

static enum fsdpck_file_type type_of(mode_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFREG: return FSDPCK_FILE_REGULAR;
    case S_IFDIR: return FSDPCK_FILE_DIRECTORY;
    case S_IFLNK: return FSDPCK_FILE_SYMLINK;
    default: return FSDPCK_FILE_OTHER;
    }
}

static int stat_result(int rc, const struct stat *st, struct fsdpck_stat *out)
{
    if (rc < 0)
        return -errno;
    *out = (struct fsdpck_stat){
        .type = type_of(st->st_mode),
        .nbytes = (uint64_t)st->st_size,
        .device = st->st_dev,
        .inode = st->st_ino,
        .mtime_ns = (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec,
    };
    return 0;
}

static int posix_fstat(void *ctx, int fd, struct fsdpck_stat *out)
{
    (void)ctx;
    struct stat st;
    return stat_result(fstat(fd, &st), &st, out);
}

static int posix_stat(void *ctx, const char *path, bool follow, struct fsdpck_stat *out)
{
    (void)ctx;
    struct stat st;
    return stat_result(follow ? stat(path, &st) : lstat(path, &st), &st, out);
}

static int posix_list(void *ctx, const char *path, fsdpck_list_fn visit, void *visit_ctx)
{
    (void)ctx;
    DIR *dir = opendir(path);
    if (!dir)
        return -errno;
    int rc = 0;
    while (!rc) {
        errno = 0;
        const struct dirent *e = readdir(dir); /* thread-safe in glibc if each stream is used by one thread */
        if (!e) {
            rc = -errno;
            break;
        }
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            rc = visit(visit_ctx, e->d_name);
    }
    closedir(dir);
    return rc;
}

static int posix_resolve(void *ctx, const char *path, char *out, size_t out_nbytes)
{
    (void)ctx;
    char full[PATH_MAX];
    if (realpath(path, full) == NULL)
        return -errno;
    size_t nbytes = strlen(full) + 1;
    if (nbytes > out_nbytes)
        return -ENAMETOOLONG;
    memcpy(out, full, nbytes);
    return 0;
}

static int posix_mkdir(void *ctx, const char *path, unsigned mode)
{
    (void)ctx;
    return result(mkdir(path, (mode_t)mode));
}

static int posix_rename(void *ctx, const char *from, const char *to)
{
    (void)ctx;
    return result(rename(from, to));
}

static int rename_with(const char *from, const char *to, unsigned flags)
{
    int rc = result(renameat2(AT_FDCWD, from, AT_FDCWD, to, flags));
    return rc == -ENOSYS || rc == -EOPNOTSUPP ? -EINVAL : rc;
}

static int posix_rename_new(void *ctx, const char *from, const char *to)
{
    (void)ctx;
    return rename_with(from, to, RENAME_NOREPLACE);
}

static int posix_exchange(void *ctx, const char *a, const char *b)
{
    (void)ctx;
    return rename_with(a, b, RENAME_EXCHANGE);
}

static int posix_unlink(void *ctx, const char *path)
{
    (void)ctx;
    return result(unlink(path));
}

static int posix_rmdir(void *ctx, const char *path)
{
    (void)ctx;
    return result(rmdir(path));
}

static int posix_lock(void *ctx, int fd)
{
    (void)ctx;
    struct flock whole = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
    int rc = result(fcntl(fd, F_OFD_SETLK, &whole));
    return rc == -EACCES ? -EAGAIN : rc;
}

static int posix_lock_probe(void *ctx, int fd)
{
    (void)ctx;
    struct flock whole = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
    int rc = result(fcntl(fd, F_OFD_GETLK, &whole));
    return rc < 0 ? rc : whole.l_type != F_UNLCK;
}

static int posix_random(void *ctx, void *buf, size_t nbytes)
{
    (void)ctx;
    for (size_t done = 0; done < nbytes;) {
        ssize_t n = getrandom((char *)buf + done, nbytes - done, 0);
        if (n < 0 && errno != EINTR)
            return -errno;
        done += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

static int64_t posix_now_ns(void *ctx)
{
    (void)ctx;
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int posix_in_memory(void *ctx, const char *path)
{
    (void)ctx;
    struct statfs st;
    int rc = result((int)TEMP_FAILURE_RETRY(statfs(path, &st)));
    return rc < 0 ? rc : st.f_type == TMPFS_MAGIC || st.f_type == RAMFS_MAGIC;
}

const struct fsdpck_io fsdpck_io_posix = {
    .open = posix_open,
    .close = posix_close,
    .pread = posix_pread,
    .pread_cached = posix_pread_cached,
    .pwrite = posix_pwrite,
    .truncate = posix_truncate,
    .allocate = posix_allocate,
    .fsync = posix_fsync,
    .fstat = posix_fstat,
    .stat = posix_stat,
    .list = posix_list,
    .resolve = posix_resolve,
    .mkdir = posix_mkdir,
    .rename = posix_rename,
    .rename_new = posix_rename_new,
    .exchange = posix_exchange,
    .unlink = posix_unlink,
    .rmdir = posix_rmdir,
    .lock = posix_lock,
    .lock_probe = posix_lock_probe,
    .random = posix_random,
    .now_ns = posix_now_ns,
    .in_memory = posix_in_memory,
};
