/* SPDX-License-Identifier: Apache-2.0 */
/* A window of unpacked bytes, refilled by one of three functions. */
#include "data/data_stream.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include "data/data_array.h"
#include "text/file.h"

enum { WINDOW = 1 << 18 };

struct data_stream {
    const char *path;
    int fd;
    uint64_t file_nbytes, begin; /* begin: offset of the window in the unpacked bytes */
    int (*refill)(struct data_stream *s, struct fsdpck_error *err);
    char *window, *packed; /* (WINDOW) each; packed: NULL for a plain file */
    size_t at, filled;     /* offsets in the window */
    size_t packed_at, packed_filled;
    uint64_t packed_begin;
    bool within; /* inside a gzip member or Zstandard frame */
    z_stream gzip;
    ZSTD_DCtx *zstd;
    bool is_array; /* a JSON array, returned as lines */
    struct data_array array;
};

static int read_some(struct data_stream *s, char *into, size_t *nbytes, struct fsdpck_error *err)
{
    ssize_t n;
    do
        n = read(s->fd, into, WINDOW);
    while (n < 0 && errno == EINTR);
    *nbytes = n > 0 ? (size_t)n : 0;
    return n < 0 ? fsdpck_error_sys(err, errno, s->path, "read") : 0;
}

static int refill_plain(struct data_stream *s, struct fsdpck_error *err)
{
    return read_some(s, s->window, &s->filled, err);
}

/* Reads more packed bytes if none are left. */
static int refill_packed(struct data_stream *s, struct fsdpck_error *err)
{
    if (s->packed_at < s->packed_filled)
        return 0;
    s->packed_begin += s->packed_filled;
    s->packed_at = 0;
    return read_some(s, s->packed, &s->packed_filled, err);
}

static int damaged(struct data_stream *s, const char *what, struct fsdpck_error *err)
{
    return fsdpck_error_at(err, FSDPCK_ERR_DAMAGED, s->path, s->packed_begin + s->packed_at, "%s", what);
}

/* A gzip file is a sequence of members. */
static int refill_gzip(struct data_stream *s, struct fsdpck_error *err)
{
    s->gzip.next_out = (unsigned char *)s->window;
    s->gzip.avail_out = WINDOW;
    while (s->gzip.avail_out == WINDOW) {
        int rc = refill_packed(s, err);
        if (rc)
            return rc;
        if (s->packed_filled == 0)
            return s->within ? damaged(s, "the gzip data is cut off", err) : 0;
        if (!s->within && inflateReset(&s->gzip) != Z_OK)
            return damaged(s, "damaged gzip data", err);
        s->gzip.next_in = (unsigned char *)s->packed + s->packed_at;
        s->gzip.avail_in = (unsigned)(s->packed_filled - s->packed_at);
        int got = inflate(&s->gzip, Z_NO_FLUSH);
        s->packed_at = s->packed_filled - s->gzip.avail_in;
        s->within = got != Z_STREAM_END;
        if (got != Z_OK && got != Z_STREAM_END && got != Z_BUF_ERROR)
            return damaged(s, "damaged gzip data", err);
    }
    s->filled = WINDOW - s->gzip.avail_out;
    return 0;
}

static int refill_zstd(struct data_stream *s, struct fsdpck_error *err)
{
    ZSTD_outBuffer out = { s->window, WINDOW, 0 };
    while (out.pos == 0) {
        int rc = refill_packed(s, err);
        if (rc)
            return rc;
        if (s->packed_filled == 0 && !s->within)
            return 0;
        ZSTD_inBuffer in = { s->packed, s->packed_filled, s->packed_at };
        size_t left = ZSTD_decompressStream(s->zstd, &out, &in);
        bool idle = s->packed_filled == 0 && out.pos == 0;
        s->packed_at = in.pos;
        s->within = left != 0;
        if (ZSTD_isError(left))
            return damaged(s, ZSTD_getErrorName(left), err);
        if (idle && s->within)
            return damaged(s, "the Zstandard data is cut off", err);
    }
    s->filled = out.pos;
    return 0;
}

/* Largest window that a Zstandard frame may demand, as a power of 2: a thousand times the size of the file, but at
 * least 8 MiB (enough for levels up to 19) and at most the library's own limit of 128 MiB. */
static int window_log_most(uint64_t file_nbytes)
{
    int log = 10;
    while (log < 27 && file_nbytes >> (log - 10))
        log++;
    return log < 23 ? 23 : log;
}

/* No maintained C library reads Parquet; pandas converts it in one line. */
static int refuse_parquet(const char *path, struct fsdpck_error *err)
{
    fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, path,
                     "this is Parquet; lines of JSON, or an array of examples, are wanted");
    fsdpck_error_hint(err, "python -c \"import pandas; pandas.read_parquet('IN.parquet').to_json('OUT.jsonl', "
                           "orient='records', lines=True, force_ascii=False)\"");
    return FSDPCK_ERR_UNSUPPORTED;
}

/* Detects the format from the first bytes. The first window of a packed file holds packed bytes. */
static int start(struct data_stream *s, struct fsdpck_error *err)
{
    int rc = read_some(s, s->window, &s->filled, err);
    if (!rc && s->filled >= 4 && memcmp(s->window, "PAR1", 4) == 0)
        return refuse_parquet(s->path, err);
    bool gzip = s->filled >= 2 && memcmp(s->window, "\x1f\x8b", 2) == 0;
    s->refill = refill_plain;
    if (rc || (!gzip && !(s->filled >= 4 && memcmp(s->window, "\x28\xb5\x2f\xfd", 4) == 0)))
        return rc;
    s->refill = gzip ? refill_gzip : refill_zstd;
    s->packed = s->window;
    s->packed_filled = s->filled;
    s->filled = 0;
    s->window = malloc(WINDOW);
    if (gzip)
        return s->window && inflateInit2(&s->gzip, 16 + MAX_WBITS) == Z_OK ? 0 : fsdpck_error_nomem(err, WINDOW);
    s->zstd = ZSTD_createDCtx();
    if (!s->window || !s->zstd)
        return fsdpck_error_nomem(err, WINDOW);
    ZSTD_DCtx_setParameter(s->zstd, ZSTD_d_windowLogMax, window_log_most(s->file_nbytes));
    return 0;
}

/* Reads the next lines of an array. Reads on until the window has a whole line. */
static int refill_lines(struct data_stream *s, struct fsdpck_error *err)
{
    int rc = 0;
    do {
        if (!rc && s->filled == 0)
            rc = s->refill(s, err);
        if (!rc && s->filled == 0)
            return data_array_end(&s->array, s->path, err);
        if (!rc)
            rc = data_array_filter(&s->array, s->path, s->window, &s->filled, err);
    } while (!rc && s->filled == 0);
    return rc;
}

/* Unpacks the first window, and checks whether its first byte begins an array. */
static int look_for_array(struct data_stream *s, struct fsdpck_error *err)
{
    int rc = s->filled ? 0 : s->refill(s, err);
    s->is_array = !rc && data_array_begins(s->window, s->filled);
    return s->is_array ? refill_lines(s, err) : rc;
}

int data_stream_open(const char *path, struct data_stream **out, struct fsdpck_error *err)
{
    struct data_stream *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return fsdpck_error_nomem(err, sizeof *s);
    s->path = path;
    s->window = malloc(WINDOW);
    int rc = text_file_open(path, &s->fd, &s->file_nbytes, err);
    if (!rc)
        rc = s->window ? start(s, err) : fsdpck_error_nomem(err, WINDOW);
    if (!rc)
        rc = look_for_array(s, err);
    if (rc)
        data_stream_close(s);
    else
        *out = s;
    return rc;
}

void data_stream_close(struct data_stream *s)
{
    if (!s)
        return;
    if (s->fd >= 0)
        close(s->fd);
    if (s->refill == refill_gzip)
        inflateEnd(&s->gzip);
    ZSTD_freeDCtx(s->zstd);
    free(s->window);
    free(s->packed);
    free(s);
}

int data_stream_peek(struct data_stream *s, const char **bytes, size_t *nbytes, struct fsdpck_error *err)
{
    int rc = 0;
    if (s->at == s->filled) {
        s->begin += s->filled;
        s->at = s->filled = 0;
        rc = s->is_array ? refill_lines(s, err) : s->refill(s, err);
    }
    *bytes = s->window + s->at;
    *nbytes = rc ? 0 : s->filled - s->at;
    return rc;
}

void data_stream_consume(struct data_stream *s, size_t nbytes)
{
    s->at += nbytes;
}

uint64_t data_stream_at(const struct data_stream *s)
{
    return s->begin + s->at;
}

bool data_stream_is_packed(const struct data_stream *s)
{
    return s->packed || s->is_array;
}

uint64_t data_stream_nbytes(const struct data_stream *s)
{
    return s->file_nbytes;
}

uint64_t data_stream_packed_at(const struct data_stream *s)
{
    return s->packed ? s->packed_begin + s->packed_at : s->array.at;
}

int data_stream_seek(struct data_stream *s, uint64_t offset, struct fsdpck_error *err)
{
    if (lseek(s->fd, (off_t)offset, SEEK_SET) < 0)
        return fsdpck_error_sys(err, errno, s->path, "seek");
    s->begin = offset;
    s->at = s->filled = 0;
    return 0;
}
