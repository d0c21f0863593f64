/* SPDX-License-Identifier: Apache-2.0 */
/* Writes output files, from several threads and in any order. A buffered write never touches a page that a direct write
 * has filled, so the two cannot conflict. Does not know the bytes. */
#include "base/out_files.h"

#include <errno.h>
#include <stdlib.h>

#include "base/buffer.h"
#include "base/fdcache.h"
#include "base/ioutil.h"
#include "base/pool.h"

#define DIRECT_MIN_NBYTES (128u << 10)

struct fsdpck_out_files {
    const struct fsdpck_io *io;
    const struct fsdpck_out_file *files;
    size_t nfiles;
    struct fsdpck_fdcache *fds;
};

static int open_out(void *ctx, uint32_t file, bool direct, int *fd, struct fsdpck_error *err)
{
    struct fsdpck_out_files *o = ctx;
    const char *path = o->files[file].path;
    *fd = o->io->open(o->io->ctx, path, FSDPCK_OPEN_READ | FSDPCK_OPEN_WRITE | (direct ? FSDPCK_OPEN_DIRECT : 0), 0);
    if (*fd >= 0)
        return 0;
    int code = -*fd;
    *fd = -1;
    return direct ? 0 : fsdpck_error_sys(err, code, path, "cannot open");
}

struct fsdpck_out_files *fsdpck_out_files_new(const struct fsdpck_io *io, const struct fsdpck_out_file *files,
                                              size_t nfiles, struct fsdpck_error *err)
{
    struct fsdpck_out_files *o = calloc(1, sizeof *o);
    if (!o) {
        fsdpck_error_nomem(err, sizeof *o);
        return NULL;
    }
    *o = (struct fsdpck_out_files){ .io = io, .files = files, .nfiles = nfiles };
    o->fds = fsdpck_fdcache_new(io, open_out, o, err);
    if (!o->fds) {
        free(o);
        return NULL;
    }
    return o;
}

static int create_one(void *ctx, size_t i, unsigned worker, struct fsdpck_error *err)
{
    const struct fsdpck_out_files *o = ctx;
    const struct fsdpck_io *io = o->io;
    const struct fsdpck_out_file *f = &o->files[i];
    (void)worker;
    int fd = io->open(io->ctx, f->path, FSDPCK_OPEN_WRITE | FSDPCK_OPEN_CREATE, 0666);
    if (fd < 0)
        return fsdpck_error_sys(err, -fd, f->path, "cannot create");
    int rc = f->nbytes ? io->allocate(io->ctx, fd, f->nbytes) : 0;
    if (rc == -EOPNOTSUPP || rc == -ENOSYS || rc == -EINTR)
        rc = io->truncate(io->ctx, fd, f->nbytes);
    if (rc < 0)
        rc = fsdpck_error_sys(err, -rc, f->path, "cannot reserve space");
    int c = io->close(io->ctx, fd);
    return !rc && c < 0 ? fsdpck_error_sys(err, -c, f->path, "cannot close") : rc;
}

/* Several at a time: a file system in memory allocates every page here, as slowly as it copies one. */
int fsdpck_out_files_create(struct fsdpck_out_files *o, unsigned nthreads, const volatile int *stop,
                            struct fsdpck_error *err)
{
    return fsdpck_pool_run(nthreads, o->nfiles, create_one, o, stop, err);
}

static int write_cached(struct fsdpck_out_files *o, uint32_t file, const uint8_t *data, uint64_t nbytes,
                        uint64_t offset, struct fsdpck_error *err)
{
    int fd;
    if (nbytes == 0)
        return 0;
    int rc = fsdpck_fdcache_acquire(o->fds, file, false, &fd, err);
    if (rc)
        return rc;
    rc = fsdpck_write_full(o->io, fd, o->files[file].path, data, nbytes, offset, err);
    fsdpck_fdcache_release(o->fds, file, false);
    return rc;
}

/* Writes whole pages; *done bytes of them. After a short transfer, only a page boundary allows another direct write.
 * Stops early if direct writes are not available or are refused (-EINVAL), and if less than a page was taken: the page
 * cache may take the rest. */
static int try_direct(struct fsdpck_out_files *o, uint32_t file, const uint8_t *data, uint64_t nbytes, uint64_t offset,
                      uint64_t *done, struct fsdpck_error *err)
{
    int fd;
    int64_t n = FSDPCK_PAGE_NBYTES;
    *done = 0;
    int rc = fsdpck_fdcache_acquire(o->fds, file, true, &fd, err);
    if (rc || fd < 0)
        return rc;
    while (*done < nbytes && (n >= FSDPCK_PAGE_NBYTES || n == -EINTR)) {
        n = o->io->pwrite(o->io->ctx, fd, data + *done, nbytes - *done, offset + *done);
        *done += n > 0 ? (uint64_t)n / FSDPCK_PAGE_NBYTES * FSDPCK_PAGE_NBYTES : 0;
    }
    fsdpck_fdcache_release(o->fds, file, true);
    return n < 0 && n != -EINVAL ? fsdpck_error_sys(err, (int)-n, o->files[file].path, "cannot write") : 0;
}

int fsdpck_out_files_write(struct fsdpck_out_files *o, uint32_t file, const void *data, uint64_t nbytes,
                           uint64_t offset, struct fsdpck_error *err)
{
    const uint8_t *p = data;
    uint64_t end = offset + nbytes, last = end / FSDPCK_PAGE_NBYTES * FSDPCK_PAGE_NBYTES;
    uint64_t first = (offset + FSDPCK_PAGE_NBYTES - 1) / FSDPCK_PAGE_NBYTES * FSDPCK_PAGE_NBYTES;
    bool congruent = (uintptr_t)p % FSDPCK_PAGE_NBYTES == offset % FSDPCK_PAGE_NBYTES;
    if (!congruent || last < first || last - first < DIRECT_MIN_NBYTES)
        return write_cached(o, file, p, nbytes, offset, err);
    uint64_t done = 0;
    int rc = write_cached(o, file, p, first - offset, offset, err);
    if (!rc)
        rc = try_direct(o, file, p + (first - offset), last - first, first, &done, err);
    uint64_t rest = first - offset + done; /* the last page, and the bytes that could not be written directly */
    return !rc ? write_cached(o, file, p + rest, nbytes - rest, offset + rest, err) : rc;
}

int fsdpck_out_files_read(struct fsdpck_out_files *o, uint32_t file, void *data, uint64_t nbytes, uint64_t offset,
                          struct fsdpck_error *err)
{
    int fd;
    int rc = fsdpck_fdcache_acquire(o->fds, file, false, &fd, err);
    if (rc)
        return rc;
    rc = fsdpck_read_full(o->io, fd, o->files[file].path, data, nbytes, offset, err);
    fsdpck_fdcache_release(o->fds, file, false);
    return rc;
}

int fsdpck_out_files_truncate(struct fsdpck_out_files *o, uint32_t file, uint64_t nbytes, struct fsdpck_error *err)
{
    int fd;
    int rc = fsdpck_fdcache_acquire(o->fds, file, false, &fd, err);
    if (rc)
        return rc;
    int s;
    do
        s = o->io->truncate(o->io->ctx, fd, nbytes);
    while (s == -EINTR);
    fsdpck_fdcache_release(o->fds, file, false);
    return s < 0 ? fsdpck_error_sys(err, -s, o->files[file].path, "cannot truncate") : 0;
}

int fsdpck_out_files_sync(struct fsdpck_out_files *o, uint32_t file, struct fsdpck_error *err)
{
    int fd;
    int rc = fsdpck_fdcache_acquire(o->fds, file, false, &fd, err);
    if (rc)
        return rc;
    int s;
    do
        s = o->io->fsync(o->io->ctx, fd);
    while (s == -EINTR);
    fsdpck_fdcache_release(o->fds, file, false);
    return s < 0 ? fsdpck_error_sys(err, -s, o->files[file].path, "cannot fsync") : 0;
}

void fsdpck_out_files_free(struct fsdpck_out_files *o)
{
    if (!o)
        return;
    fsdpck_fdcache_free(o->fds);
    free(o);
}
