/* SPDX-License-Identifier: Apache-2.0 */
/* Splits files at line ends; seeks where the file allows it. */
#include "data/data_parts.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <train/lines.h>

#include "arrays/grow.h"
#include "data/data_stream.h"

/* Bytes per part: small enough to give all processors work, large enough that a claim costs nothing. WANTED: number of
 * parts. */
enum { SMALLEST = 1 << 14, LARGEST = 1 << 22, WANTED = 256 };

struct data_parts {
    const struct train_config *config;
    size_t part_nbytes;
    uint64_t total, before;     /* bytes of all files; of those before `file` */
    struct data_stream *stream; /* of file `file`; NULL: before the first or after the last */
    uint32_t file;
    uint64_t index; /* of the part within its file */
    size_t number;
    uint64_t lines; /* lines consumed, of a packed file */
    bool consumed;  /* packed file: the part has been consumed */
};

static size_t choose_size(uint64_t total)
{
    size_t n = SMALLEST;
    while (n < LARGEST && n < total / WANTED)
        n *= 2;
    return n;
}

int data_parts_open(const struct train_config *config, struct data_parts **out, struct fsdpck_error *err)
{
    struct data_parts *p = calloc(1, sizeof *p);
    uint64_t total = 0;
    int rc = p ? 0 : fsdpck_error_nomem(err, sizeof *p);
    for (size_t i = 0; i < config->data.nfiles && !rc; i++) {
        struct data_stream *s;
        rc = data_stream_open(config->data.files[i].path, &s, err);
        total += rc ? 0 : data_stream_nbytes(s);
        data_stream_close(s);
    }
    *out = rc ? NULL : p;
    if (rc) {
        free(p);
        return rc;
    }
    p->config = config;
    p->total = total;
    p->part_nbytes = choose_size(total);
    return 0;
}

void data_parts_close(struct data_parts *p)
{
    if (!p)
        return;
    data_stream_close(p->stream);
    free(p);
}

static size_t count_ends(const char *text, size_t nbytes)
{
    size_t n = 0;
    for (size_t i = 0; i < nbytes; i++)
        n += text[i] == '\n';
    return n;
}

static int keep(struct data_part *out, const char *bytes, size_t nbytes, struct fsdpck_error *err)
{
    if (!grow((void **)&out->text, &out->capacity, out->nbytes + nbytes, 1))
        return fsdpck_error_nomem(err, out->nbytes + nbytes);
    memcpy(out->text + out->nbytes, bytes, nbytes);
    out->nbytes += nbytes;
    return 0;
}

/* Number of the `have` bytes up to and including the first line end at or behind byte `until`. *ended: the bytes
 * contain that line end. */
static size_t up_to(uint64_t at, const char *bytes, size_t have, uint64_t until, bool *ended)
{
    size_t skip = until <= at ? 0 : until - at < have ? (size_t)(until - at) : have;
    const char *stop = memchr(bytes + skip, '\n', have - skip);
    *ended = stop != NULL;
    return stop ? (size_t)(stop - bytes) + 1 : have;
}

/* Consumes bytes up to and including the first line end at or behind byte `until`. out may be NULL. Stores at most
 * about DATA_MAX_LINE of a line that does not end. */
static int consume_through(struct data_stream *s, uint64_t until, struct data_part *out, uint64_t *lines,
                           struct fsdpck_error *err)
{
    bool ended = false;
    const char *bytes;
    size_t have;
    int rc;
    while (!(rc = data_stream_peek(s, &bytes, &have, err)) && have && !ended) {
        uint64_t at = data_stream_at(s);
        size_t n = up_to(at, bytes, have, until, &ended);
        if (out && at < until + DATA_MAX_LINE + LARGEST)
            rc = keep(out, bytes, n, err);
        if (rc)
            return rc;
        if (lines)
            *lines += count_ends(bytes, n);
        data_stream_consume(s, n);
    }
    return rc;
}

static uint64_t part_begin(const struct data_parts *p)
{
    return p->index * p->part_nbytes;
}

/* The stream must be where the first line of the part begins. */
static int read_part(struct data_parts *p, struct data_part *out, struct fsdpck_error *err)
{
    uint64_t end = part_begin(p) + p->part_nbytes;
    p->consumed = true;
    if (data_stream_at(p->stream) >= end) /* a line spans the whole part */
        return 0;
    return consume_through(p->stream, end - 1, out, &p->lines, err);
}

static int file_ended(struct data_parts *p, bool *ended, struct fsdpck_error *err)
{
    const char *bytes;
    size_t have = 0;
    *ended = part_begin(p) + p->part_nbytes >= data_stream_nbytes(p->stream);
    if (!data_stream_is_packed(p->stream))
        return 0;
    int rc = p->consumed ? 0 : read_part(p, NULL, err);
    if (!rc)
        rc = data_stream_peek(p->stream, &bytes, &have, err);
    *ended = have == 0;
    return rc;
}

static int next_file(struct data_parts *p, bool *end, struct fsdpck_error *err)
{
    p->file += p->stream != NULL;
    p->before += p->stream ? data_stream_nbytes(p->stream) : 0;
    data_stream_close(p->stream);
    p->stream = NULL;
    p->index = p->lines = 0;
    *end = p->file == p->config->data.nfiles;
    return *end ? 0 : data_stream_open(p->config->data.files[p->file].path, &p->stream, err);
}

int data_parts_step(struct data_parts *p, size_t *number, bool *end, struct fsdpck_error *err)
{
    bool ended = true, first = !p->stream;
    int rc = first ? 0 : file_ended(p, &ended, err);
    *end = false;
    if (rc)
        return rc;
    p->number += !first;
    p->index++;
    if (ended)
        rc = next_file(p, end, err);
    p->consumed = false;
    *number = p->number;
    return rc;
}

void data_parts_progress(const struct data_parts *p, uint64_t *done_nbytes, uint64_t *total_nbytes)
{
    *done_nbytes = p->before;
    if (p->stream)
        *done_nbytes += data_stream_is_packed(p->stream) ? data_stream_packed_at(p->stream) : part_begin(p);
    *total_nbytes = p->total;
}

static const char *path_of(const struct data_parts *p)
{
    return p->config->data.files[p->file].path;
}

static void drop_bom(struct data_part *out)
{
    if (out->nbytes < 3 || memcmp(out->text, "\xef\xbb\xbf", 3) != 0)
        return;
    out->nbytes -= 3;
    memmove(out->text, out->text + 3, out->nbytes);
}

int data_parts_take(struct data_parts *p, struct data_part *out, struct fsdpck_error *err)
{
    bool packed = data_stream_is_packed(p->stream), ended;
    int rc = 0;
    out->nbytes = 0;
    if (!packed && p->index) { /* skip the line that the previous part owns */
        rc = data_stream_seek(p->stream, part_begin(p) - 1, err);
        if (!rc)
            rc = consume_through(p->stream, 0, NULL, NULL, err);
    }
    out->number = p->number;
    out->file = p->file;
    out->begin = data_stream_at(p->stream);
    out->line = packed || p->index == 0 ? p->lines + 1 : 0;
    if (!rc)
        rc = read_part(p, out, err);
    if (rc || p->index)
        return rc;
    drop_bom(out);
    rc = file_ended(p, &ended, err);
    return !rc && ended && out->nbytes == 0 ? fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path_of(p), "no document in it")
                                            : rc;
}

int data_count_lines(const char *path, uint64_t until, uint64_t *out, struct fsdpck_error *err)
{
    struct data_stream *s;
    const char *bytes;
    size_t have;
    int rc = data_stream_open(path, &s, err);
    *out = 0;
    while (!rc && data_stream_at(s) < until && !(rc = data_stream_peek(s, &bytes, &have, err)) && have) {
        uint64_t left = until - data_stream_at(s);
        have = left < have ? (size_t)left : have;
        *out += count_ends(bytes, have);
        data_stream_consume(s, have);
    }
    data_stream_close(s);
    return rc;
}

struct train_lines {
    struct data_stream *stream;
    struct data_part line;
    uint64_t number;
};

int train_lines_open(const char *path, struct train_lines **out, struct fsdpck_error *err)
{
    struct train_lines *l = calloc(1, sizeof *l);
    int rc = l ? data_stream_open(path, &l->stream, err) : fsdpck_error_nomem(err, sizeof *l);
    if (rc) {
        free(l);
        l = NULL;
    }
    *out = l;
    return rc;
}

void train_lines_close(struct train_lines *l)
{
    if (!l)
        return;
    data_stream_close(l->stream);
    free(l->line.text);
    free(l);
}

int train_lines_next(struct train_lines *l, const char **line, size_t *nbytes, uint64_t *number,
                     struct fsdpck_error *err)
{
    l->line.nbytes = 0;
    int rc = consume_through(l->stream, 0, &l->line, NULL, err);
    bool end = l->line.nbytes == 0;
    *number = ++l->number;
    if (l->number == 1)
        drop_bom(&l->line);
    size_t n = l->line.nbytes;
    *line = rc || end ? NULL : l->line.text;
    *nbytes = n && l->line.text[n - 1] == '\n' ? n - 1 : n;
    return rc;
}

int train_lines_first(const char *path, json_t **out, struct fsdpck_error *err)
{
    struct train_lines *l;
    const char *line;
    size_t nbytes;
    uint64_t number;
    *out = NULL;
    int rc = train_lines_open(path, &l, err);
    if (rc)
        return rc;
    rc = train_lines_next(l, &line, &nbytes, &number, err);
    if (!rc && line)
        *out = json_loadb(line, nbytes, JSON_ALLOW_NUL, NULL);
    train_lines_close(l);
    return rc;
}
