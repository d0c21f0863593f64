/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a torch.save zip: directory, data.pkl, byteorder. Reads no tensor's bytes. */
#include "torch/zip/archive.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/ioutil.h"
#include "engine/files.h"

struct opening {
    const struct fsdpck_io *io;
    const char *file;
    uint64_t begin;
    int fd;
    struct fsdpck_archive *a;
    struct fsdpck_error *err;
};

#define FAIL(o, code, ...) fsdpck_error_at((o)->err, code, (o)->file, (o)->begin, __VA_ARGS__)

/* Reads a small record; malloc'ed. */
static int read_record(struct opening *o, const struct fsdpck_zip_record *record, uint64_t max_nbytes, bool check_crc,
                       char **out)
{
    *out = NULL;
    if (record->nbytes > max_nbytes)
        return FAIL(o, FSDPCK_ERR_LIMIT, "record '%s' has %" PRIu64 " bytes; at most %" PRIu64 " are read",
                    record->name, record->nbytes, max_nbytes);
    *out = malloc(record->nbytes + 1);
    if (!*out)
        return fsdpck_error_nomem(o->err, record->nbytes + 1);
    int rc = fsdpck_read_full(o->io, o->fd, o->file, *out, record->nbytes, record->offset, o->err);
    if (!rc && check_crc && record->crc32 && fsdpck_crc32(0, *out, record->nbytes) != record->crc32)
        rc = fsdpck_error_at(o->err, FSDPCK_ERR_DAMAGED, o->file, record->offset,
                             "record '%s' is damaged: its CRC-32 is not the one in the zip", record->name);
    return rc;
}

static int read_byteorder(struct opening *o, const struct fsdpck_archive_terms *terms)
{
    const struct fsdpck_zip_record *record = fsdpck_zip_find(&o->a->zip, "byteorder");
    char *text = NULL;
    int rc = 0;
    if (record && !(rc = read_record(o, record, 64, terms->check_crc, &text))) {
        o->a->swap = record->nbytes == 3 && !memcmp(text, "big", 3);
        if (!o->a->swap && (record->nbytes != 6 || memcmp(text, "little", 6) != 0))
            rc = FAIL(o, FSDPCK_ERR_FORMAT, "record '%s' says neither little nor big", record->name);
    }
    free(text);
    return rc;
}

static int read_pickle(struct opening *o, const struct fsdpck_archive_terms *terms)
{
    const struct fsdpck_zip_record *record = fsdpck_zip_find(&o->a->zip, "data.pkl");
    char *pickle = NULL;
    if (!record)
        return FAIL(o, FSDPCK_ERR_FORMAT, "the zip has no record data.pkl");
    int rc = read_record(o, record, terms->max_nbytes, terms->check_crc, &pickle);
    if (!rc)
        rc =
            fsdpck_pickle_parse(o->file, record->offset, pickle, record->nbytes, terms->allowed, &o->a->pickle, o->err);
    free(pickle);
    return rc;
}

static int open_zip(struct opening *o, uint64_t nbytes, const struct fsdpck_archive_terms *terms)
{
    int rc = fsdpck_zip_open(o->io, o->fd, o->file, o->begin, nbytes, &o->a->zip, o->err);
    if (!rc)
        rc = read_pickle(o, terms);
    if (!rc)
        rc = read_byteorder(o, terms);
    if (rc)
        fsdpck_archive_free(o->a);
    return rc;
}

int fsdpck_archive_open(struct fsdpck_source *src, uint32_t file, uint64_t offset, uint64_t nbytes,
                        const struct fsdpck_archive_terms *terms, struct fsdpck_archive *out, struct fsdpck_error *err)
{
    struct opening o = { .io = src->io, .file = source_files(src)[file].path, .begin = offset, .a = out, .err = err };
    *out = (struct fsdpck_archive){ 0 };
    int rc = fsdpck_files_acquire(src, file, false, &o.fd, err);
    if (rc)
        return rc;
    rc = open_zip(&o, nbytes, terms);
    fsdpck_files_release(src, file, false);
    return rc;
}

int fsdpck_archive_open_packed(const struct fsdpck_packed *packed, const char *file,
                               const struct fsdpck_archive_terms *terms, struct fsdpck_archive *out,
                               struct fsdpck_error *err)
{
    struct opening o = { .io = &packed->io, .file = file, .a = out, .err = err };
    *out = (struct fsdpck_archive){ 0 };
    return open_zip(&o, packed->nbytes, terms);
}

void fsdpck_archive_free(struct fsdpck_archive *a)
{
    fsdpck_zip_free(&a->zip);
    fsdpck_pickle_free(a->pickle);
    *a = (struct fsdpck_archive){ 0 };
}
