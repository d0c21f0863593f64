/* Reads every item of a DCP directory: zip structure, CRC-32 of each record, and what the items say about their tensors. DCP has no hashes, so
 * this is all that can be checked, and the note says so. */
#include "torch/dcp.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/files.h"
#include "base/hash.h"
#include "base/ioutil.h"
#include "base/stop.h"
#include "torch/zip.h"

#define PIECE_NBYTES (1u << 20)

struct check {
    struct fsdpck_source *src;
    fsdpck_problem_fn report;
    void *ctx;
    struct fsdpck_verify_result *result;
    struct fsdpck_error *err;
    uint8_t *piece;
    uint64_t done_nbytes, total_nbytes;
};

/* One item, and what a problem in it belongs to. */
struct subject {
    uint32_t file;
    uint64_t offset, nbytes;
    const char *name;
    uint64_t row_begin, row_end;
};

static void report(struct check *c, const struct subject *s, uint64_t offset, uint64_t nbytes, const char *what)
{
    const struct fsdpck_file *file = &source_files(c->src)[s->file].pub;
    struct fsdpck_problem problem = { .file = file->name, .offset = offset, .nbytes = nbytes, .rank = file->rank, .tensor = s->name,
                                      .row_begin = s->row_begin, .row_end = s->row_end, .what = what };
    c->result->nproblems++;
    c->report(c->ctx, &problem);
}

/* An error that is about the bytes becomes a problem, and 0; one of the system stays an error. */
static int settle(struct check *c, const struct subject *s, int code, const struct fsdpck_error *e)
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

static int crc_record(struct check *c, const struct subject *s, int fd, const struct fsdpck_zip_record *record, struct fsdpck_error *e)
{
    const struct fsdpck_options *opt = &c->src->opt;
    uint32_t crc = 0;
    for (uint64_t at = 0; at < record->nbytes; at += PIECE_NBYTES) {
        uint64_t n = record->nbytes - at < PIECE_NBYTES ? record->nbytes - at : PIECE_NBYTES;
        if (fsdpck_stop_asked(opt->stop))
            return fsdpck_error_set(c->err, FSDPCK_ERR_STOPPED, NULL, "stopped");
        int r = fsdpck_read_full(c->src->io, fd, source_files(c->src)[s->file].path, c->piece, n, record->offset + at, e);
        if (r)
            return settle(c, s, r, e);
        crc = fsdpck_crc32(crc, c->piece, n);
        c->result->read_nbytes += n;
    }
    c->result->nblocks++;
    if (crc != record->crc32) {
        char what[512];
        snprintf(what, sizeof what, "record '%s': the CRC-32 is %08" PRIx32 ", the zip says %08" PRIx32, record->name, crc, record->crc32);
        report(c, s, record->offset, record->nbytes, what);
    }
    return 0;
}

static int check_item(struct check *c, const struct subject *s)
{
    struct fsdpck_error e = { 0 };
    struct fsdpck_zip zip;
    int fd, r = fsdpck_files_acquire(c->src, s->file, false, &fd, &e);
    if (r)
        return settle(c, s, r, &e);
    r = fsdpck_zip_open(c->src->io, fd, source_files(c->src)[s->file].path, s->offset, s->nbytes, &zip, &e);
    if (r)
        r = settle(c, s, r, &e);
    for (size_t i = 0; !r && i < zip.nrecords; i++)
        r = crc_record(c, s, fd, &zip.records[i], &e);
    fsdpck_files_release(c->src, s->file, false);
    fsdpck_zip_free(&zip);
    c->done_nbytes += s->nbytes;
    if (c->src->opt.progress)
        c->src->opt.progress(c->src->opt.ctx, c->done_nbytes, c->total_nbytes);
    return r;
}

static int check_tensor(struct check *c, size_t ordinal)
{
    const struct fsdpck_tensor *t = &source_tensors(c->src)[ordinal];
    const struct dcp_tensor *d = &((const struct dcp *)c->src->impl)->tensors[ordinal];
    for (uint64_t i = 0; i < d->nchunks; i++) {
        const uint64_t *box = dcp_box(d, t->ndim, i);
        struct fsdpck_error e = { 0 };
        struct fsdpck_extent extent;
        struct subject s = { .file = d->chunks[i].file, .offset = d->chunks[i].item, .nbytes = d->chunks[i].item_nbytes, .name = t->name,
                             .row_begin = t->ndim ? box[0] : 0, .row_end = t->ndim ? box[0] + box[t->ndim] : 1 };
        uint64_t before = c->result->nproblems;
        int r = check_item(c, &s);
        /* An item whose records are sound may still hold another tensor. */
        if (!r && c->result->nproblems == before)
            r = settle(c, &s, fsdpck_dcp_extent(c->src, ordinal, i, &extent, &e), &e);
        if (r)
            return r;
    }
    return 0;
}

static void count_total(struct check *c)
{
    const struct dcp *dcp = c->src->impl;
    for (size_t i = 0; i < c->src->tensors.count; i++)
        for (uint64_t k = 0; k < dcp->tensors[i].nchunks; k++)
            c->total_nbytes += dcp->tensors[i].chunks[k].item_nbytes;
    for (size_t i = 0; i < c->src->items.count; i++)
        c->total_nbytes += source_items(c->src)[i].pub.nbytes;
}

static int check_all(struct check *c)
{
    count_total(c);
    for (size_t i = 0; i < c->src->tensors.count; i++) {
        int r = check_tensor(c, i);
        if (r)
            return r;
    }
    for (size_t i = 0; i < c->src->items.count; i++) {
        const struct source_item *item = &source_items(c->src)[i];
        struct subject s = { .file = item->file, .offset = item->offset, .nbytes = item->pub.nbytes, .name = item->pub.name };
        int r = check_item(c, &s);
        if (r)
            return r;
    }
    return 0;
}

int fsdpck_dcp_verify(struct fsdpck_source *src, bool quick, fsdpck_problem_fn fn, void *report_ctx, struct fsdpck_verify_result *result,
                      struct fsdpck_error *err)
{
    struct check c = { .src = src, .report = fn, .ctx = report_ctx, .result = result, .err = err };
    result->nfiles = src->files.count;
    result->ntensors = src->tensors.count;
    result->hashed = false;
    if (src->opt.note)
        src->opt.note(src->opt.ctx, quick ? "a PyTorch DCP directory has no hashes: only .metadata and the sizes of files were checked"
                                          : "a PyTorch DCP directory has no hashes: only structure and the CRC-32s of its zips were checked");
    if (quick)
        return 0; /* opening has checked all that */
    c.piece = malloc(PIECE_NBYTES);
    int r = c.piece ? check_all(&c) : fsdpck_error_nomem(err, PIECE_NBYTES);
    free(c.piece);
    return r;
}
