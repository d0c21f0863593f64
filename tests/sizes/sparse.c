/* SPDX-License-Identifier: Apache-2.0 */
/* Converts and exports through the library on a limited file system: no direct I/O, no preallocation, no fsync. It
 * leaves holes for blocks of zeros, so outputs of many gigabytes of zeros cost nearly nothing. Knows nothing of the
 * data.
 *
 * usage: sparse convert SOURCE OUT RANKS | sparse export SOURCE OUT */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fsdpck/fsdpck.h>

enum { BLOCK_NBYTES = 64 << 10 };

static int poor_open(void *ctx, const char *path, int flags, unsigned mode)
{
    return flags & FSDPCK_OPEN_DIRECT ? -EINVAL : fsdpck_io_posix.open(ctx, path, flags, mode);
}

static int poor_allocate(void *ctx, int fd, uint64_t nbytes)
{
    (void)ctx, (void)fd, (void)nbytes;
    return -EOPNOTSUPP;
}

static int poor_fsync(void *ctx, int fd)
{
    (void)ctx, (void)fd;
    return 0;
}

static bool is_zero(const uint8_t *p, uint64_t nbytes)
{
    return p[0] == 0 && memcmp(p, p + 1, nbytes - 1) == 0;
}

/* Skips blocks of zeros. Files have their size before they are written, so a skipped block is a hole. */
static int64_t sparse_pwrite(void *ctx, int fd, const void *buf, uint64_t nbytes, uint64_t offset)
{
    uint64_t piece = nbytes < BLOCK_NBYTES ? nbytes : BLOCK_NBYTES;
    if (piece == BLOCK_NBYTES && is_zero(buf, piece))
        return (int64_t)piece; /* a short transfer; the caller continues with the rest */
    return fsdpck_io_posix.pwrite(ctx, fd, buf, piece, offset);
}

static int transfer(int argc, char **argv, struct fsdpck_source *src, const struct fsdpck_options *opt,
                    struct fsdpck_error *err)
{
    if (argc == 4) {
        const struct fsdpck_export_request req = { .out = argv[3] };
        return fsdpck_export(src, &req, opt, NULL, err);
    }
    const struct fsdpck_convert_request req = {
        .out = argv[3], .mesh = { .ndim = 1, .names = { "shard" }, .sizes = { (uint32_t)atoi(argv[4]) } }
    };
    return fsdpck_convert(src, &req, opt, NULL, err);
}

int main(int argc, char **argv)
{
    struct fsdpck_io io = fsdpck_io_posix;
    const struct fsdpck_options opt = { .io = &io };
    struct fsdpck_error err = { 0 };
    struct fsdpck_source *src = NULL;
    char line[2048];
    if (!((argc == 5 && strcmp(argv[1], "convert") == 0) || (argc == 4 && strcmp(argv[1], "export") == 0)))
        return 2;
    io.open = poor_open;
    io.allocate = poor_allocate;
    io.fsync = poor_fsync;
    io.pwrite = sparse_pwrite;
    int r = fsdpck_source_open(argv[2], NULL, &opt, &src, &err);
    if (r == 0)
        r = transfer(argc, argv, src, &opt, &err);
    fsdpck_source_close(src);
    if (r != 0)
        fprintf(stderr, "fsdpck: %s\n", fsdpck_error_format(&err, line, sizeof line));
    return r == 0 ? 0 : fsdpck_error_exit_code(err.code);
}
