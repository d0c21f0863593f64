/* Reading and unpacking files of data. */
#include "data/data_file.h"

#include <errno.h>
#include <fcntl.h>
#include <libdeflate.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include <zstd.h>

#include "text/file.h"

#define MAX_FILE ((size_t)1 << 40)

/* deflate cannot shrink by more than 1032; Zstandard can, but its frames mostly say how large they are. */
enum { GZIP_RATIO = 1032, ZSTD_STEP = 1 << 20 };
#define MAX_UNPACKED ((size_t)1 << 38)

static int no_room(const char *path, size_t nbytes, struct fsdpck_error *err)
{
    return nbytes > MAX_UNPACKED ? fsdpck_error_set(err, FSDPCK_ERR_LIMIT, path, "it unpacks to more than %zu bytes", MAX_UNPACKED) : fsdpck_error_nomem(err, nbytes);
}

/* A gzip file is members one after the other. The buffer grows until each fits. */
static int unpack_gzip(const char *path, const char *packed, size_t n, char **out, size_t *nbytes, struct fsdpck_error *err)
{
    struct libdeflate_decompressor *d = libdeflate_alloc_decompressor();
    size_t at = 0, capacity = n < 1024 ? 4096 : 4 * n, done = 0;
    char *buffer = d ? malloc(capacity) : NULL;
    int rc = buffer ? 0 : fsdpck_error_nomem(err, capacity);
    while (!rc && at < n) {
        size_t in = 0, got = 0;
        enum libdeflate_result r = libdeflate_gzip_decompress_ex(d, packed + at, n - at, buffer + done, capacity - done, &in, &got);
        if (r == LIBDEFLATE_INSUFFICIENT_SPACE && capacity / GZIP_RATIO <= n + 64) {
            char *larger = 2 * capacity <= MAX_UNPACKED ? realloc(buffer, 2 * capacity) : NULL;
            rc = larger ? 0 : no_room(path, 2 * capacity, err);
            buffer = larger ? larger : buffer;
            capacity *= larger ? 2 : 1;
        } else if (r != LIBDEFLATE_SUCCESS) {
            rc = fsdpck_error_at(err, FSDPCK_ERR_DAMAGED, path, at, "damaged or cut off gzip data");
        } else {
            at += in;
            done += got;
        }
    }
    libdeflate_free_decompressor(d);
    *out = buffer;
    *nbytes = done;
    return rc;
}

static int unpack_zstd(const char *path, const char *packed, size_t n, char **out, size_t *nbytes, struct fsdpck_error *err)
{
    ZSTD_DCtx *d = ZSTD_createDCtx();
    ZSTD_inBuffer in = { packed, n, 0 };
    ZSTD_outBuffer o = { 0 };
    size_t left = 1;
    int rc = d ? 0 : fsdpck_error_nomem(err, 1 << 20);
    while (!rc && (in.pos < n || o.pos == o.size) && !(in.pos == n && left == 0)) {
        if (o.pos == o.size) {
            size_t larger = o.size + o.size / 2 + ZSTD_STEP;
            void *moved = larger <= MAX_UNPACKED ? realloc(o.dst, larger) : NULL;
            if (!moved) {
                rc = no_room(path, larger, err);
                break;
            }
            o.dst = moved;
            o.size = larger;
        }
        left = ZSTD_decompressStream(d, &o, &in);
        if (ZSTD_isError(left))
            rc = fsdpck_error_at(err, FSDPCK_ERR_DAMAGED, path, in.pos, "Zstandard: %s", ZSTD_getErrorName(left));
    }
    if (!rc && left != 0)
        rc = fsdpck_error_at(err, FSDPCK_ERR_DAMAGED, path, n, "the Zstandard data is cut off");
    ZSTD_freeDCtx(d);
    *out = o.dst;
    *nbytes = o.pos;
    return rc;
}

static bool is_gzip(const char *s, size_t n)
{
    return n >= 2 && memcmp(s, "\x1f\x8b", 2) == 0;
}

static bool is_packed(const char *s, size_t n)
{
    return is_gzip(s, n) || (n >= 4 && memcmp(s, "\x28\xb5\x2f\xfd", 4) == 0);
}

int data_file_read(const char *path, char **out, size_t *nbytes, struct fsdpck_error *err)
{
    char *packed;
    size_t n;
    int rc = text_file_read(path, MAX_FILE, &packed, &n, err);
    *out = packed;
    *nbytes = n;
    if (rc)
        return rc;
    if (!is_packed(packed, n))
        return 0;
    rc = is_gzip(packed, n) ? unpack_gzip(path, packed, n, out, nbytes, err) : unpack_zstd(path, packed, n, out, nbytes, err);
    free(packed);
    if (rc) {
        free(*out);
        *out = NULL;
    }
    return rc;
}

int data_file_first_line(const char *path, char **out, size_t *nbytes, struct fsdpck_error *err)
{
    enum { FRONT = 1 << 20 };
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    char *front = malloc(FRONT + 1);
    ssize_t n = fd >= 0 && front ? read(fd, front, FRONT) : -1;
    int why = errno;
    if (fd >= 0)
        close(fd);
    *out = NULL;
    if (fd < 0 || n < 0) {
        free(front);
        return front ? fsdpck_error_sys(err, why, path, fd < 0 ? "open" : "read") : fsdpck_error_nomem(err, FRONT);
    }
    char *end = memchr(front, '\n', (size_t)n);
    if (!is_packed(front, (size_t)n) && end) {
        *out = front;
        *nbytes = (size_t)(end - front);
        return 0;
    }
    free(front);
    int rc = data_file_read(path, out, nbytes, err);
    end = rc ? NULL : memchr(*out, '\n', *nbytes);
    *nbytes = end ? (size_t)(end - *out) : *nbytes;
    return rc;
}

int data_file_hash(const char *path, uint64_t *hash, struct fsdpck_error *err)
{
    enum { CHUNK = 1 << 20 };
    int fd = open(path, O_RDONLY | O_CLOEXEC), rc = 0;
    char *chunk = malloc(CHUNK);
    XXH3_state_t *state = XXH3_createState();
    ssize_t n = 1;
    if (fd < 0)
        rc = fsdpck_error_sys(err, errno, path, "open");
    else if (!chunk || !state)
        rc = fsdpck_error_nomem(err, CHUNK);
    if (!rc)
        XXH3_64bits_reset_withSeed(state, *hash);
    while (!rc && n) {
        n = read(fd, chunk, CHUNK);
        if (n > 0)
            XXH3_64bits_update(state, chunk, (size_t)n);
        else if (n < 0 && errno != EINTR)
            rc = fsdpck_error_sys(err, errno, path, "read");
    }
    if (!rc)
        *hash = XXH3_64bits_digest(state);
    if (fd >= 0)
        close(fd);
    XXH3_freeState(state);
    free(chunk);
    return rc;
}
