/* SPDX-License-Identifier: Apache-2.0 */
/* Checks zips record by record. It does not know the contents of their pickles. */
#include "torch/zip/verify.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/hash.h"
#include "base/ioutil.h"
#include "base/stop.h"
#include "engine/checks.h"
#include "engine/files.h"
#include "torch/zip/packed.h"
#include "torch/zip/zip.h"

#define PIECE_NBYTES (1u << 20)

int fsdpck_zip_check_begin(struct fsdpck_zip_check *c)
{
    c->piece = malloc(PIECE_NBYTES);
    return c->piece ? 0 : fsdpck_error_nomem(c->err, PIECE_NBYTES);
}

void fsdpck_zip_check_end(struct fsdpck_zip_check *c)
{
    free(c->piece);
    c->piece = NULL;
    fsdpck_checks_note(&c->src->opt, c->nunchecked);
}

static void report(struct fsdpck_zip_check *c, const struct fsdpck_zip_subject *s, uint64_t offset, uint64_t nbytes,
                   const char *what)
{
    const struct fsdpck_file *file = &source_files(c->src)[s->file].pub;
    struct fsdpck_problem problem = { .file = file->name,
                                      .offset = offset,
                                      .nbytes = nbytes,
                                      .rank = file->rank,
                                      .tensor = s->name,
                                      .row_begin = s->row_begin,
                                      .row_end = s->row_end,
                                      .what = what };
    if (c->find_tensor)
        c->find_tensor(c->src, s->file, offset, nbytes, &problem);
    c->result->nproblems++;
    c->report(c->ctx, &problem);
}

int fsdpck_zip_check_report_error(struct fsdpck_zip_check *c, const struct fsdpck_zip_subject *s, int code,
                                  const struct fsdpck_error *e)
{
    if (!code)
        return 0;
    if (code == FSDPCK_ERR_IO || code == FSDPCK_ERR_NOMEM) {
        if (c->err && !c->err->code)
            *c->err = *e;
        return code;
    }
    report(c, s, e->has_offset ? e->offset : s->offset, s->nbytes, e->message);
    return 0;
}

static int crc_record(struct fsdpck_zip_check *c, const struct fsdpck_zip_subject *s, const struct fsdpck_io *io,
                      int fd, const struct fsdpck_zip_record *record, struct fsdpck_error *e)
{
    const struct fsdpck_options *opt = &c->src->opt;
    uint32_t crc = 0;
    c->nunchecked += !record->crc32 && record->nbytes;
    for (uint64_t at = 0; at < record->nbytes; at += PIECE_NBYTES) {
        uint64_t n = record->nbytes - at < PIECE_NBYTES ? record->nbytes - at : PIECE_NBYTES;
        if (fsdpck_stop_asked(opt->stop))
            return fsdpck_error_set(c->err, FSDPCK_ERR_STOPPED, NULL, "stopped");
        int rc = fsdpck_read_full(io, fd, source_files(c->src)[s->file].path, c->piece, n, record->offset + at, e);
        if (rc)
            return fsdpck_zip_check_report_error(c, s, rc, e);
        crc = fsdpck_crc32(crc, c->piece, n);
        c->result->read_nbytes += n;
    }
    c->result->nblocks++;
    if (crc != record->crc32 && record->crc32) {
        char what[512];
        snprintf(what, sizeof what, "record '%s': the CRC-32 is %08" PRIx32 ", the zip says %08" PRIx32, record->name,
                 crc, record->crc32);
        report(c, s, s->unpacked_max ? s->offset : record->offset, s->unpacked_max ? s->nbytes : record->nbytes, what);
    }
    return 0;
}

/* The zip is bytes [offset, offset + nbytes) of fd. */
static int check_records(struct fsdpck_zip_check *c, const struct fsdpck_zip_subject *s, const struct fsdpck_io *io,
                         int fd, uint64_t offset, uint64_t nbytes)
{
    struct fsdpck_error e = { 0 };
    struct fsdpck_zip zip;
    int rc = fsdpck_zip_open(io, fd, source_files(c->src)[s->file].path, offset, nbytes, &zip, &e);
    if (rc)
        rc = fsdpck_zip_check_report_error(c, s, rc, &e);
    for (size_t i = 0; !rc && i < zip.nrecords; i++)
        rc = crc_record(c, s, io, fd, &zip.records[i], &e);
    fsdpck_zip_free(&zip);
    return rc;
}

static int check_packed(struct fsdpck_zip_check *c, const struct fsdpck_zip_subject *s)
{
    const struct fsdpck_zstream_range range = { .file = s->file, .offset = s->offset, .nbytes = s->nbytes };
    struct fsdpck_error e = { 0 };
    struct fsdpck_packed packed;
    int rc = fsdpck_packed_open(c->src, &range, s->unpacked_max, &packed, &e);
    rc = rc ? fsdpck_zip_check_report_error(c, s, rc, &e) : check_records(c, s, &packed.io, 0, 0, packed.nbytes);
    fsdpck_packed_free(&packed);
    return rc;
}

static int check_plain(struct fsdpck_zip_check *c, const struct fsdpck_zip_subject *s)
{
    struct fsdpck_error e = { 0 };
    int fd, r = fsdpck_files_acquire(c->src, s->file, false, &fd, &e);
    if (r)
        return fsdpck_zip_check_report_error(c, s, r, &e);
    r = check_records(c, s, c->src->io, fd, s->offset, s->nbytes);
    fsdpck_files_release(c->src, s->file, false);
    return r;
}

int fsdpck_zip_check_run(struct fsdpck_zip_check *c, const struct fsdpck_zip_subject *s)
{
    int rc = s->unpacked_max ? check_packed(c, s) : check_plain(c, s);
    c->done_nbytes += s->nbytes;
    if (c->src->opt.progress && c->total_nbytes)
        c->src->opt.progress(c->src->opt.ctx, c->done_nbytes, c->total_nbytes);
    return rc;
}

struct first_problem {
    const struct fsdpck_source *src;
    const struct fsdpck_zip_subject *subject;
    struct fsdpck_error error;
};

static void keep_first(void *ctx, const struct fsdpck_problem *p)
{
    struct first_problem *first = ctx;
    const struct fsdpck_zip_subject *s = first->subject;
    fsdpck_error_at(&first->error, FSDPCK_ERR_DAMAGED, source_files(first->src)[s->file].path, p->offset,
                    "is damaged: %s", p->what);
    fsdpck_error_tensor(&first->error, s->name);
}

int fsdpck_zip_check_one(struct fsdpck_source *src, const struct fsdpck_zip_subject *s, struct fsdpck_error *err)
{
    struct fsdpck_verify_result result = { 0 };
    struct first_problem first = { .src = src, .subject = s };
    struct fsdpck_zip_check c = { .src = src, .report = keep_first, .ctx = &first, .result = &result, .err = err };
    int rc = fsdpck_zip_check_begin(&c);
    if (!rc)
        rc = fsdpck_zip_check_run(&c, s);
    fsdpck_checks_unchecked(src, c.nunchecked);
    c.nunchecked = 0; /* the source reports them once for all zips */
    fsdpck_zip_check_end(&c);
    if (!rc && first.error.code) {
        *err = first.error;
        rc = first.error.code;
    }
    return rc;
}
