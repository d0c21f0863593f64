/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/scratch_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>

enum { NAME = 4096 };

/* For file systems without unnamed files: the name is removed at once. */
static int open_named(const struct fsdpck_io *io, const char *folder, int flags)
{
    char path[NAME];
    uint64_t token = 0;
    int rc = io->random(io->ctx, &token, sizeof token);
    if (rc < 0)
        return rc;
    if (snprintf(path, sizeof path, "%s/.fsdptrain-offload-%016llx", folder, (unsigned long long)token) >= NAME)
        return -ENAMETOOLONG;
    int fd = io->open(io->ctx, path, flags | FSDPCK_OPEN_CREATE, 0600);
    rc = fd < 0 ? 0 : io->unlink(io->ctx, path);
    if (rc < 0)
        io->close(io->ctx, fd);
    return rc < 0 ? rc : fd;
}

static int open_any(const struct fsdpck_io *io, const char *folder, int flags)
{
    int fd = io->open(io->ctx, folder, flags | FSDPCK_OPEN_UNNAMED, 0600);
    return fd == -EOPNOTSUPP || fd == -EISDIR ? open_named(io, folder, flags) : fd;
}

/* For file systems that cannot reserve room: a file with holes would end a rank by SIGBUS, or in mid-run, when the disk
 * is full. */
static int write_zeros(const struct scratch_file *f, uint64_t nbytes)
{
    enum { BLOCK = 1 << 20 };
    void *zeros = aligned_alloc(SCRATCH_ALIGNED, BLOCK);
    int rc = zeros ? 0 : -ENOMEM;
    if (zeros)
        memset(zeros, 0, BLOCK);
    for (uint64_t at = 0; at < nbytes && !rc;) {
        const uint64_t left = scratch_aligned(nbytes - at), want = left < BLOCK ? left : BLOCK;
        const int64_t n = f->io->pwrite(f->io->ctx, f->fd, zeros, want, at);
        if (n == -EINTR)
            continue;
        rc = n >= SCRATCH_ALIGNED ? 0 : n < 0 ? (int)n : -ENOSPC;
        at += rc ? 0 : (uint64_t)n / SCRATCH_ALIGNED * SCRATCH_ALIGNED;
    }
    free(zeros);
    return rc;
}

static int reserve(const struct scratch_file *f, const char *folder, const char *whose, const char *what,
                   uint64_t nbytes, struct fsdpck_error *err)
{
    struct statvfs fs;
    char room[64] = "";
    int rc = f->io->allocate(f->io->ctx, f->fd, nbytes);
    if (rc == -EOPNOTSUPP)
        rc = write_zeros(f, nbytes);
    if (rc >= 0)
        return 0;
    if (rc == -ENOSPC && statvfs(folder, &fs) == 0)
        snprintf(room, sizeof room, " (%.2f GiB are free)", (double)fs.f_bavail * (double)fs.f_frsize / 1073741824.0);
    fsdpck_error_set(err, FSDPCK_ERR_IO, folder, "%s: no room for %s, %.2f GiB, in this folder: %s%s", whose, what,
                     (double)nbytes / 1073741824.0, strerror(-rc), room);
    fsdpck_error_hint(err,
                      "fsdp.offload may name a folder on another disk; `fsdptrain plan` shows what each rank needs");
    return err->code;
}

static int open_in_memory(const char *whose, const char *what, struct scratch_file *out, struct fsdpck_error *err)
{
    *out = (struct scratch_file){ .io = &fsdpck_io_posix };
    out->fd = memfd_create("fsdp.offload", MFD_CLOEXEC);
    return out->fd >= 0 ? 0
                        : fsdpck_error_set(err, FSDPCK_ERR_IO, NULL, "%s: no host memory for %s: %s", whose, what,
                                           strerror(errno));
}

int scratch_file_open(const struct fsdpck_io *io, const char *folder, const char *whose, const char *what,
                      uint64_t nbytes, struct scratch_file *out, struct fsdpck_error *err)
{
    const int flags = FSDPCK_OPEN_READ | FSDPCK_OPEN_WRITE;
    if (!folder)
        return open_in_memory(whose, what, out, err);
    io = io ? io : &fsdpck_io_posix;
    *out = (struct scratch_file){ .io = io, .fd = open_any(io, folder, flags | FSDPCK_OPEN_DIRECT) };
    out->direct = out->fd >= 0;
    if (out->fd == -EINVAL)
        out->fd = open_any(io, folder, flags);
    if (out->fd < 0) {
        fsdpck_error_set(err, FSDPCK_ERR_IO, folder, "%s: no file for %s in this folder: %s", whose, what,
                         strerror(-out->fd));
        if (out->fd == -ENOENT)
            fsdpck_error_hint(err, "create the folder that fsdp.offload names, on every host");
        return err->code;
    }
    int rc = reserve(out, folder, whose, what, nbytes, err);
    if (rc)
        scratch_file_close(out);
    return rc;
}

int scratch_file_join(const struct fsdpck_io *io, const char *path, const char *what, struct scratch_file *out,
                      struct fsdpck_error *err)
{
    const int flags = FSDPCK_OPEN_READ | FSDPCK_OPEN_WRITE;
    io = io ? io : &fsdpck_io_posix;
    *out = (struct scratch_file){ .io = io, .fd = io->open(io->ctx, path, flags | FSDPCK_OPEN_DIRECT, 0) };
    out->direct = out->fd >= 0;
    if (out->fd == -EINVAL)
        out->fd = io->open(io->ctx, path, flags, 0);
    return out->fd >= 0
               ? 0
               : fsdpck_error_set(err, FSDPCK_ERR_IO, path, "the file for %s, of another rank of this host: %s", what,
                                  strerror(-out->fd));
}

void scratch_file_close(struct scratch_file *f)
{
    if (f->fd >= 0)
        f->io->close(f->io->ctx, f->fd);
    f->fd = -1;
}

const char *scratch_file_read(const struct scratch_file *f, void *data, uint64_t nbytes, uint64_t at)
{
    for (uint64_t done = 0; done < nbytes;) {
        int64_t n = f->io->pread(f->io->ctx, f->fd, (char *)data + done, nbytes - done, at + done);
        if (n == -EINTR)
            continue;
        if (n < SCRATCH_ALIGNED)
            return n < 0 ? strerror((int)-n) : "the file ends before";
        done += (uint64_t)n / SCRATCH_ALIGNED * SCRATCH_ALIGNED; /* a block read in part is read again */
    }
    return NULL;
}

const char *scratch_file_write(const struct scratch_file *f, const void *data, uint64_t nbytes, uint64_t at)
{
    for (uint64_t done = 0; done < nbytes;) {
        int64_t n = f->io->pwrite(f->io->ctx, f->fd, (const char *)data + done, nbytes - done, at + done);
        if (n == -EINTR)
            continue;
        if (n < SCRATCH_ALIGNED)
            return n < 0 ? strerror((int)-n) : "nothing was written";
        done += (uint64_t)n / SCRATCH_ALIGNED * SCRATCH_ALIGNED;
    }
    return NULL;
}
