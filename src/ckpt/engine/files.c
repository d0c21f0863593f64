/* SPDX-License-Identifier: Apache-2.0 */
/* The read descriptors of a source, and the check that a file is still the one that was listed. It does not know the
 * files' contents. */
#include "engine/files.h"

#include <inttypes.h>
#include <stddef.h>

#include "base/fdcache.h"
#include "base/ioutil.h"

static int check_unchanged(const struct fsdpck_source *src, const struct source_file *f, int fd,
                           struct fsdpck_error *err)
{
    struct fsdpck_stat st;
    int rc = src->io->fstat(src->io->ctx, fd, &st);
    if (rc < 0)
        return fsdpck_error_sys(err, -rc, f->path, "cannot stat");
    if (st.nbytes == f->pub.nbytes && st.inode == f->inode && st.device == f->device)
        return 0;
    return fsdpck_error_set(err, FSDPCK_ERR_DAMAGED, f->path,
                            "changed while being read: it had %" PRIu64 " bytes when it was opened, now %" PRIu64 "%s",
                            f->pub.nbytes, st.nbytes, st.inode == f->inode ? "" : " and is another file");
}

static int open_file(void *ctx, uint32_t file, bool direct, int *fd, struct fsdpck_error *err)
{
    struct fsdpck_source *src = ctx;
    const struct source_file *f = &source_files(src)[file];
    *fd = -1;
    int rc = src->io->open(src->io->ctx, f->path, FSDPCK_OPEN_READ | (direct ? FSDPCK_OPEN_DIRECT : 0), 0);
    if (rc < 0)
        return direct ? 0 : fsdpck_error_sys(err, -rc, f->path, "cannot open");
    int c = check_unchanged(src, f, rc, err);
    if (c == 0)
        *fd = rc;
    else
        src->io->close(src->io->ctx, rc);
    return c;
}

int fsdpck_files_init(struct fsdpck_source *src, struct fsdpck_error *err)
{
    src->fds = fsdpck_fdcache_new(src->io, open_file, src, err);
    return src->fds ? 0 : FSDPCK_ERR_NOMEM;
}

int fsdpck_files_acquire(struct fsdpck_source *src, uint32_t file, bool direct, int *fd, struct fsdpck_error *err)
{
    return fsdpck_fdcache_acquire(src->fds, file, direct, fd, err);
}

void fsdpck_files_release(struct fsdpck_source *src, uint32_t file, bool direct)
{
    fsdpck_fdcache_release(src->fds, file, direct);
}

int fsdpck_files_read(struct fsdpck_source *src, uint32_t file, void *buf, uint64_t nbytes, uint64_t offset,
                      struct fsdpck_error *err)
{
    int fd;
    int rc = fsdpck_files_acquire(src, file, false, &fd, err);
    if (rc)
        return rc;
    rc = fsdpck_read_full(src->io, fd, source_files(src)[file].path, buf, nbytes, offset, err);
    fsdpck_files_release(src, file, false);
    return rc;
}

void fsdpck_files_close_idle(struct fsdpck_source *src)
{
    fsdpck_fdcache_close_idle(src->fds);
}

void fsdpck_files_free(struct fsdpck_source *src)
{
    fsdpck_fdcache_free(src->fds);
    src->fds = NULL;
}
