/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a zip's directory and compares it with the local headers. Supports STORED records only, and does not know their
 * contents. */
#include "torch/zip/zip.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/hash.h"
#include "base/ioutil.h"
#include "base/names.h"

enum {
    END_NBYTES = 22,
    LOCATOR_NBYTES = 20,
    END64_NBYTES = 56,
    ENTRY_NBYTES = 46,
    LOCAL_NBYTES = 30,
    WINDOW_NBYTES = 4096
};
#define MAX_DIRECTORY_NBYTES (1ull << 30)
#define FLAG_DESCRIPTOR      0x0008u /* sizes follow the data; the local header has none */
#define FLAGS_KNOWN          0x0808u /* FLAG_DESCRIPTOR, and UTF-8 names */

/* Reads both ends of the range at once: torch's items are small, and their headers lie there. */
struct window {
    uint64_t begin, nbytes;
    uint8_t bytes[WINDOW_NBYTES];
};

struct reader {
    const struct fsdpck_io *io;
    int fd;
    const char *file;
    uint64_t base, nbytes; /* of the zip in the file; all other offsets here are relative to base */
    struct window head, tail;
    uint64_t nrecords, directory, directory_nbytes;
    struct fsdpck_zip *zip;
    struct record_span *spans; /* (nrecords) the ranges of the records */
    struct fsdpck_error *err;
};

struct record_span {
    uint64_t header, end; /* of local header, data and descriptor */
};

/* A directory entry. */
struct entry {
    unsigned flags;
    uint32_t crc32;
    uint64_t nbytes, header;
    const uint8_t *name;
    unsigned name_nbytes;
};

static bool failed(int code)
{
    return code == 0;
}
#define FAIL(r, code, at, ...) failed(fsdpck_error_at((r)->err, code, (r)->file, (r)->base + (at), __VA_ARGS__))
#define BAD(r, at, ...)        FAIL(r, FSDPCK_ERR_FORMAT, at, __VA_ARGS__)

/* Reads bytes [at, at + nbytes) of the zip; the caller has checked that they are inside. */
static bool get(struct reader *r, uint64_t at, void *buf, uint64_t nbytes)
{
    for (const struct window *w = &r->head; w; w = w == &r->head ? &r->tail : NULL)
        if (at >= w->begin && at - w->begin <= w->nbytes && nbytes <= w->nbytes - (at - w->begin)) {
            memcpy(buf, w->bytes + (at - w->begin), nbytes);
            return true;
        }
    return !fsdpck_read_full(r->io, r->fd, r->file, buf, nbytes, r->base + at, r->err);
}

static bool load_windows(struct reader *r)
{
    uint64_t n = r->nbytes < WINDOW_NBYTES ? r->nbytes : WINDOW_NBYTES;
    if (fsdpck_read_full(r->io, r->fd, r->file, r->tail.bytes, n, r->base + r->nbytes - n, r->err))
        return false;
    r->tail.begin = r->nbytes - n;
    r->tail.nbytes = n;
    if (n == r->nbytes)
        return true;
    r->head.nbytes = n;
    return !fsdpck_read_full(r->io, r->fd, r->file, r->head.bytes, n, r->base, r->err);
}

/* Checks a field of the 32-bit end record: it equals its 64-bit counterpart, or is all ones. */
static bool agrees(uint64_t narrow, uint64_t wide, uint64_t ones)
{
    return narrow == wide || narrow == ones;
}

/* Reads the zip64 end record before the locator, if any. *end: where the directory must end. */
static bool read_end64(struct reader *r, uint64_t *end, const uint8_t *e)
{
    uint8_t b[LOCATOR_NBYTES], z[END64_NBYTES];
    if (*end < LOCATOR_NBYTES)
        return true;
    if (!get(r, *end - LOCATOR_NBYTES, b, sizeof b))
        return false;
    if (fsdpck_le32(b) != 0x07064b50)
        return true;
    uint64_t at = fsdpck_le64(b + 8), locator = *end - LOCATOR_NBYTES;
    if (locator < END64_NBYTES || at != locator - END64_NBYTES || fsdpck_le32(b + 4) != 0 || fsdpck_le32(b + 16) > 1)
        return BAD(r, locator, "the zip64 locator points at %llu, not at the record before it", (unsigned long long)at);
    if (!get(r, at, z, sizeof z))
        return false;
    if (fsdpck_le32(z) != 0x06064b50 || fsdpck_le64(z + 4) != END64_NBYTES - 12)
        return BAD(r, at, "no zip64 end record where the locator points");
    r->nrecords = fsdpck_le64(z + 32);
    r->directory_nbytes = fsdpck_le64(z + 40);
    r->directory = fsdpck_le64(z + 48);
    if (fsdpck_le32(z + 16) || fsdpck_le32(z + 20) || fsdpck_le64(z + 24) != r->nrecords ||
        !agrees(fsdpck_le16(e + 10), r->nrecords, 0xffff) ||
        !agrees(fsdpck_le32(e + 12), r->directory_nbytes, 0xffffffff) ||
        !agrees(fsdpck_le32(e + 16), r->directory, 0xffffffff))
        return BAD(r, at, "the zip64 end record and the zip end record disagree");
    *end = at;
    return true;
}

static bool read_end(struct reader *r)
{
    uint8_t e[END_NBYTES];
    if (r->nbytes < END_NBYTES)
        return BAD(r, 0, "%llu bytes are too few for a zip", (unsigned long long)r->nbytes);
    uint64_t end = r->nbytes - END_NBYTES;
    if (!get(r, end, e, sizeof e))
        return false;
    if (fsdpck_le32(e) != 0x06054b50 || fsdpck_le16(e + 20) != 0)
        return BAD(r, end, "no zip end record in the last %d bytes", END_NBYTES);
    r->nrecords = fsdpck_le16(e + 10);
    r->directory_nbytes = fsdpck_le32(e + 12);
    r->directory = fsdpck_le32(e + 16);
    if (fsdpck_le16(e + 4) || fsdpck_le16(e + 6) || fsdpck_le16(e + 8) != fsdpck_le16(e + 10))
        return BAD(r, end, "a zip of several disks");
    if (!read_end64(r, &end, e))
        return false;
    if (r->directory > end || end - r->directory != r->directory_nbytes)
        return BAD(r, end, "the zip directory is said to be %llu bytes at %llu, it must end at %llu",
                   (unsigned long long)r->directory_nbytes, (unsigned long long)r->directory, (unsigned long long)end);
    if (r->directory_nbytes > MAX_DIRECTORY_NBYTES)
        return FAIL(r, FSDPCK_ERR_LIMIT, end, "a zip directory of %llu bytes", (unsigned long long)r->directory_nbytes);
    if (r->nrecords > r->directory_nbytes / ENTRY_NBYTES)
        return BAD(r, end, "a zip directory of %llu bytes cannot list %llu records",
                   (unsigned long long)r->directory_nbytes, (unsigned long long)r->nrecords);
    return true;
}

/* Replaces the fields that are all ones by the values of the zip64 extra field, in its order. */
static bool widen(const uint8_t *extra, size_t extra_nbytes, uint64_t *const *fields, size_t nfields)
{
    size_t nwanted = 0, k = 0;
    for (size_t i = 0; i < nfields; i++)
        nwanted += *fields[i] == 0xffffffff;
    for (size_t at = 0; at + 4 <= extra_nbytes;) {
        size_t n = fsdpck_le16(extra + at + 2);
        if (n > extra_nbytes - at - 4)
            return false;
        if (fsdpck_le16(extra + at) == 1 && nwanted) {
            if (n < 8 * nwanted)
                return false;
            for (size_t i = 0; i < nfields; i++)
                if (*fields[i] == 0xffffffff)
                    *fields[i] = fsdpck_le64(extra + at + 4 + 8 * k++);
            nwanted = 0;
        }
        at += 4 + n;
    }
    return nwanted == 0;
}

/* Reads one entry of the directory b[0 … nbytes); *used: its length. at: its offset in the zip, for messages. */
static bool read_entry(struct reader *r, const uint8_t *b, uint64_t nbytes, uint64_t at, struct entry *e,
                       uint64_t *used)
{
    if (nbytes < ENTRY_NBYTES || fsdpck_le32(b) != 0x02014b50)
        return BAD(r, at, "the zip directory lists fewer records than its end record says");
    unsigned name_nbytes = fsdpck_le16(b + 28), extra_nbytes = fsdpck_le16(b + 30),
             comment_nbytes = fsdpck_le16(b + 32);
    *used = (uint64_t)ENTRY_NBYTES + name_nbytes + extra_nbytes + comment_nbytes;
    if (*used > nbytes || name_nbytes == 0 || memchr(b + ENTRY_NBYTES, 0, name_nbytes))
        return BAD(r, at, "a zip directory entry has no usable name");
    uint64_t stored = fsdpck_le32(b + 20);
    *e = (struct entry){ .flags = fsdpck_le16(b + 8),
                         .crc32 = fsdpck_le32(b + 16),
                         .nbytes = fsdpck_le32(b + 24),
                         .header = fsdpck_le32(b + 42),
                         .name = b + ENTRY_NBYTES,
                         .name_nbytes = name_nbytes };
    uint64_t *const fields[] = { &e->nbytes, &stored, &e->header };
    if (!widen(e->name + name_nbytes, extra_nbytes, fields, 3))
        return BAD(r, at, "record '%.*s': its zip64 field is missing or cut short", (int)name_nbytes,
                   (const char *)e->name);
    if (fsdpck_le16(b + 10) != 0 || stored != e->nbytes)
        return FAIL(r, FSDPCK_ERR_UNSUPPORTED, at, "record '%.*s' is compressed (method %u)", (int)name_nbytes,
                    (const char *)e->name, fsdpck_le16(b + 10));
    if (e->flags & ~FLAGS_KNOWN)
        return FAIL(r, FSDPCK_ERR_UNSUPPORTED, at, "record '%.*s' has zip flags 0x%04x (encrypted?)", (int)name_nbytes,
                    (const char *)e->name, e->flags);
    if (fsdpck_le16(b + 34) != 0)
        return BAD(r, at, "record '%.*s' lies on another disk", (int)name_nbytes, (const char *)e->name);
    return true;
}

/* Compares name, method, sizes and CRC with the local header b, whose name and extra field follow in `rest`. */
static bool local_agrees(const uint8_t *b, const uint8_t *rest, const struct entry *e)
{
    unsigned name_nbytes = fsdpck_le16(b + 26);
    uint32_t crc32 = fsdpck_le32(b + 14);
    uint64_t stored = fsdpck_le32(b + 18), nbytes = fsdpck_le32(b + 22);
    uint64_t *const fields[] = { &nbytes, &stored };
    if (fsdpck_le16(b + 6) != e->flags || fsdpck_le16(b + 8) != 0 || name_nbytes != e->name_nbytes ||
        memcmp(rest, e->name, name_nbytes))
        return false;
    if (e->flags & FLAG_DESCRIPTOR && !crc32 && (!stored || stored == 0xffffffff) && nbytes == stored)
        return true;
    return widen(rest + name_nbytes, fsdpck_le16(b + 28), fields, 2) && nbytes == e->nbytes && stored == e->nbytes &&
           crc32 == e->crc32;
}

/* Skips the descriptor after data that ends at *end: CRC and sizes, in 32 or 64 bits. Its position proves that the
 * local header's length is right. */
static bool skip_descriptor(struct reader *r, const struct entry *e, uint64_t *end)
{
    uint8_t b[24] = { 0 };
    uint64_t left = r->directory - *end;
    if (!get(r, *end, b, left < sizeof b ? left : sizeof b))
        return false;
    bool sound = left >= 16 && fsdpck_le32(b) == 0x08074b50 && fsdpck_le32(b + 4) == e->crc32;
    if (sound && fsdpck_le32(b + 8) == e->nbytes && fsdpck_le32(b + 12) == e->nbytes)
        *end += 16;
    else if (sound && left >= 24 && fsdpck_le64(b + 8) == e->nbytes && fsdpck_le64(b + 16) == e->nbytes)
        *end += 24;
    else
        return BAD(r, *end, "record '%.*s' is not followed by its data descriptor", (int)e->name_nbytes,
                   (const char *)e->name);
    return true;
}

/* Finds the start of the data, after the local header. */
static bool read_local(struct reader *r, const struct entry *e, struct record_span *span, uint64_t *data)
{
    uint8_t b[LOCAL_NBYTES], *rest = NULL;
    bool ok = false;
    int shown = (int)e->name_nbytes;
    uint64_t end;
    if (e->header > r->directory || r->directory - e->header < LOCAL_NBYTES)
        return BAD(r, r->directory, "record '%.*s' is said to lie at %llu, the directory begins at %llu", shown,
                   (const char *)e->name, (unsigned long long)e->header, (unsigned long long)r->directory);
    if (!get(r, e->header, b, sizeof b))
        return false;
    uint64_t rest_nbytes = (uint64_t)fsdpck_le16(b + 26) + fsdpck_le16(b + 28);
    *data = e->header + LOCAL_NBYTES + rest_nbytes;
    if (fsdpck_le32(b) != 0x04034b50)
        return BAD(r, e->header, "record '%.*s' has no local header", shown, (const char *)e->name);
    if (!checked_add(*data, e->nbytes, &end) || end > r->directory)
        return BAD(r, e->header, "record '%.*s' of %llu bytes reaches beyond the directory at %llu", shown,
                   (const char *)e->name, (unsigned long long)e->nbytes, (unsigned long long)r->directory);
    rest = malloc(rest_nbytes + 1);
    if (!rest)
        fsdpck_error_nomem(r->err, rest_nbytes + 1);
    else if (get(r, e->header + LOCAL_NBYTES, rest, rest_nbytes))
        ok = local_agrees(b, rest, e) ||
             BAD(r, e->header, "record '%.*s': local header and directory disagree", shown, (const char *)e->name);
    free(rest);
    if (ok && e->flags & FLAG_DESCRIPTOR)
        ok = skip_descriptor(r, e, &end);
    *span = (struct record_span){ e->header, end };
    return ok;
}

static int compare_spans(const void *a, const void *b)
{
    const struct record_span *x = a, *y = b;
    return x->header < y->header ? -1 : x->header > y->header;
}

static bool check_overlaps(struct reader *r)
{
    qsort(r->spans, r->nrecords, sizeof *r->spans, compare_spans);
    for (uint64_t i = 1; i < r->nrecords; i++)
        if (r->spans[i].header < r->spans[i - 1].end)
            return BAD(r, r->spans[i].header, "two records of the zip overlap");
    return true;
}

static bool read_records(struct reader *r, const uint8_t *directory, struct fsdpck_names *names)
{
    uint64_t at = 0, used = 0;
    char *text = r->zip->text;
    for (uint64_t i = 0; i < r->nrecords; i++, at += used) {
        struct fsdpck_zip_record *record = &r->zip->records[i];
        struct entry e;
        size_t old;
        if (!read_entry(r, directory + at, r->directory_nbytes - at, r->directory + at, &e, &used) ||
            !read_local(r, &e, &r->spans[i], &record->offset))
            return false;
        memcpy(text, e.name, e.name_nbytes);
        text[e.name_nbytes] = 0;
        *record = (struct fsdpck_zip_record){ text, r->base + record->offset, e.nbytes, e.crc32 };
        text += e.name_nbytes + 1;
        if (fsdpck_names_add(names, record->name, i, &old, r->err))
            return false;
        if (old != SIZE_MAX)
            return BAD(r, r->directory + at, "record '%s' is listed twice", record->name);
    }
    r->zip->nrecords = r->nrecords;
    return at == r->directory_nbytes
               ? check_overlaps(r)
               : BAD(r, r->directory + at, "the zip directory lists more records than its end record says");
}

static bool read_directory(struct reader *r)
{
    struct fsdpck_names names = { 0 };
    bool ok = false;
    /* An entry is longer than its name plus NUL, so text needs no more bytes than the directory. */
    uint8_t *directory = malloc(r->directory_nbytes + 1);
    r->zip->text = malloc(r->directory_nbytes + 1);
    r->zip->records = calloc(r->nrecords + 1, sizeof *r->zip->records);
    r->spans = calloc(r->nrecords + 1, sizeof *r->spans);
    if (!directory || !r->zip->text || !r->zip->records || !r->spans)
        fsdpck_error_nomem(r->err, r->directory_nbytes);
    else
        ok = get(r, r->directory, directory, r->directory_nbytes) && read_records(r, directory, &names);
    fsdpck_names_free(&names);
    free(directory);
    free(r->spans);
    return ok;
}

int fsdpck_zip_open(const struct fsdpck_io *io, int fd, const char *file, uint64_t offset, uint64_t nbytes,
                    struct fsdpck_zip *out, struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    struct reader r = {
        .io = io, .fd = fd, .file = file, .base = offset, .nbytes = nbytes, .zip = out, .err = err ? err : &own
    };
    *out = (struct fsdpck_zip){ 0 };
    if (load_windows(&r) && read_end(&r) && read_directory(&r))
        return 0;
    fsdpck_zip_free(out);
    return r.err->code;
}

void fsdpck_zip_free(struct fsdpck_zip *z)
{
    free(z->records);
    free(z->text);
    *z = (struct fsdpck_zip){ 0 };
}

/* Returns the length of data.pkl's folder with its slash, a prefix of each record's name; 0 if there is none. */
static size_t find_root(const struct fsdpck_zip *z, const char **root)
{
    for (size_t i = 0; i < z->nrecords; i++) {
        const char *slash = strchr(z->records[i].name, '/');
        *root = z->records[i].name;
        if (slash && !strcmp(slash, "/data.pkl"))
            return (size_t)(slash + 1 - *root);
    }
    return 0;
}

const struct fsdpck_zip_record *fsdpck_zip_find(const struct fsdpck_zip *z, const char *rest)
{
    const char *root;
    size_t n = find_root(z, &root);
    for (size_t i = 0; n && i < z->nrecords; i++)
        if (!strncmp(z->records[i].name, root, n) && !strcmp(z->records[i].name + n, rest))
            return &z->records[i];
    return NULL;
}
