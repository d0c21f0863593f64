/* SPDX-License-Identifier: Apache-2.0 */
/* Reads payload bytes. Copies cached pages (a direct read would read them from the disk) and reads the rest with
 * O_DIRECT, which bypasses the page cache and halves the time on many machines. Knows files and bytes, no tensors. */
#include "engine/file_read.h"

#include <errno.h>

#include "engine/files.h"
#include "base/ioutil.h"

#define DIRECT_MIN_NBYTES (256u << 10) /* below this size, the page cache's readahead helps neighbouring reads more */

/* Reads whole pages around the range into buf; *got bytes of them. Stops early if a transfer ends inside a page: at the
 * end of the file, or after a short transfer, from which no direct read can continue. */
static int read_direct(struct fsdpck_source *src, int fd, const char *path, uint8_t *buf, uint64_t begin, uint64_t end,
                       uint64_t *got, struct fsdpck_error *err)
{
    *got = 0;
    fsdpck_buffer_uncache(buf, end - begin);
    while (*got < end - begin && *got % FSDPCK_PAGE_NBYTES == 0) {
        int64_t r = src->io->pread(src->io->ctx, fd, buf + *got, end - begin - *got, begin + *got);
        if (r == -EINTR)
            continue;
        if (r == 0 || r == -EINVAL) /* O_DIRECT opened, but reading is refused */
            break;
        if (r < 0)
            return fsdpck_error_sys(err, (int)-r, path, "cannot read");
        *got += (uint64_t)r;
    }
    return 0;
}

/* Reads past the page cache, if the file system supports it. *done tells whether it did; if not, the caller may still
 * read the bytes in the ordinary way. */
static int try_direct(struct fsdpck_source *src, uint32_t file, uint64_t offset, uint64_t nbytes, uint8_t *buf,
                      uint8_t **data, bool *done, struct fsdpck_error *err)
{
    uint64_t begin = offset & ~(uint64_t)(FSDPCK_PAGE_NBYTES - 1);
    uint64_t end = (offset + nbytes + FSDPCK_PAGE_NBYTES - 1) & ~(uint64_t)(FSDPCK_PAGE_NBYTES - 1);
    uint64_t got;
    int fd;
    *done = false;
    int rc = fsdpck_files_acquire(src, file, true, &fd, err);
    if (rc || fd < 0)
        return rc;
    rc = read_direct(src, fd, source_files(src)[file].path, buf, begin, end, &got, err);
    fsdpck_files_release(src, file, true);
    *done = !rc && got >= offset - begin + nbytes; /* the last page of a file is short */
    if (*done)
        *data = buf + (offset - begin);
    return rc;
}

int fsdpck_file_read(struct fsdpck_source *src, uint32_t file, uint64_t offset, uint64_t nbytes, uint8_t *buf,
                     uint8_t **data, struct fsdpck_error *err)
{
    int fd;
    bool done = false;
    int rc = fsdpck_files_acquire(src, file, false, &fd, err);
    if (rc)
        return rc;
    *data = buf;
    if (nbytes >= DIRECT_MIN_NBYTES) {
        done = src->io->pread_cached(src->io->ctx, fd, buf, nbytes, offset) == (int64_t)nbytes;
        if (!done)
            rc = try_direct(src, file, offset, nbytes, buf, data, &done, err);
    }
    if (!rc && !done)
        rc = fsdpck_read_full(src->io, fd, source_files(src)[file].path, buf, nbytes, offset, err);
    fsdpck_files_release(src, file, false);
    return rc;
}

bool fsdpck_file_read_cached(struct fsdpck_source *src, uint32_t file, uint64_t offset, uint64_t nbytes, uint8_t *dst)
{
    int fd;
    if (nbytes < DIRECT_MIN_NBYTES || fsdpck_files_acquire(src, file, false, &fd, NULL) != 0)
        return false;
    bool done = src->io->pread_cached(src->io->ctx, fd, dst, nbytes, offset) == (int64_t)nbytes;
    fsdpck_files_release(src, file, false);
    return done;
}
