/* The read path of payloads. Pages that are cached are copied (a direct read would go to the disk for them); what is not is read with
 * O_DIRECT, which spares the page cache and, on many machines, half of the time. Knows files and bytes, no tensors. */
#include "file_read.h"

#include <errno.h>

#include "files.h"
#include "ioutil.h"

#define DIRECT_MIN_NBYTES (256u << 10) /* below this, readahead of the page cache serves neighbours better */

/* How much of the range the page cache gave. */
static uint64_t read_cached(struct fsdpck_source *src, int fd, uint8_t *buf, uint64_t nbytes, uint64_t offset)
{
    uint64_t got = 0;
    while (got < nbytes) {
        int64_t r = src->io->pread_cached(src->io->ctx, fd, buf + got, nbytes - got, offset + got);
        if (r <= 0)
            break;
        got += (uint64_t)r;
    }
    return got;
}

/* Whole pages around the range into buf; at least up to `need` bytes of them, since the last page of a file is short. */
static int read_direct(struct fsdpck_source *src, int fd, const char *path, uint8_t *buf, uint64_t begin, uint64_t end, uint64_t need,
                       struct fsdpck_error *err)
{
    uint64_t got = 0;
    while (got < need) {
        int64_t r = src->io->pread(src->io->ctx, fd, buf + got, end - begin - got, begin + got);
        if (r == -EINTR)
            continue;
        if (r < 0)
            return fsdpck_error_sys(err, (int)-r, path, "cannot read");
        if (r == 0)
            return fsdpck_error_at(err, FSDPCK_ERR_MISSING, path, begin + got, "the file ends here, %llu more bytes are wanted",
                                   (unsigned long long)(need - got));
        got += (uint64_t)r;
        if (got < need && got % FSDPCK_PAGE_NBYTES != 0) /* a short transfer: go on from the last whole page */
            got -= got % FSDPCK_PAGE_NBYTES;
    }
    return 0;
}

static int read_uncached(struct fsdpck_source *src, uint32_t file, int fd, uint64_t offset, uint64_t nbytes, uint8_t *buf, uint8_t **data,
                         struct fsdpck_error *err)
{
    const char *path = source_files(src)[file].path;
    uint64_t begin = offset & ~(uint64_t)(FSDPCK_PAGE_NBYTES - 1);
    uint64_t end = (offset + nbytes + FSDPCK_PAGE_NBYTES - 1) & ~(uint64_t)(FSDPCK_PAGE_NBYTES - 1);
    int direct = -1;
    if (nbytes >= DIRECT_MIN_NBYTES) {
        int r = fsdpck_files_acquire(src, file, true, &direct, err);
        if (r != 0)
            return r;
    }
    *data = buf + (offset - begin);
    if (direct < 0)
        return fsdpck_read_full(src->io, fd, path, *data, nbytes, offset, err);
    int r = read_direct(src, direct, path, buf, begin, end, offset - begin + nbytes, err);
    fsdpck_files_release(src, file, true);
    return r;
}

int fsdpck_file_read(struct fsdpck_source *src, uint32_t file, uint64_t offset, uint64_t nbytes, uint8_t *buf, uint8_t **data,
                     struct fsdpck_error *err)
{
    int fd;
    int r = fsdpck_files_acquire(src, file, false, &fd, err);
    if (r != 0)
        return r;
    *data = buf;
    if (read_cached(src, fd, buf, nbytes, offset) < nbytes)
        r = read_uncached(src, file, fd, offset, nbytes, buf, data, err);
    fsdpck_files_release(src, file, false);
    return r;
}
