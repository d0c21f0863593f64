/* SPDX-License-Identifier: Apache-2.0 */
/* Reads every item of a DCP directory: zip structure, CRC-32 of each record, and the item's description of its tensor.
 * DCP has no hashes, so nothing else can be checked; the note says so. */
#include "torch/dcp/dcp.h"

#include "torch/zip/verify.h"

static int check_tensor(struct fsdpck_zip_check *c, size_t ordinal)
{
    const struct fsdpck_tensor *t = &source_tensors(c->src)[ordinal];
    const struct dcp_tensor *d = &((const struct dcp *)c->src->impl)->tensors[ordinal];
    for (uint64_t i = 0; i < d->nchunks; i++) {
        const uint64_t *box = dcp_box(d, t->ndim, i);
        struct fsdpck_error e = { 0 };
        struct fsdpck_extent extent;
        struct fsdpck_zip_subject s = { .file = d->chunks[i].file,
                                        .offset = d->chunks[i].item,
                                        .nbytes = d->chunks[i].item_nbytes,
                                        .name = t->name,
                                        .row_begin = t->ndim ? box[0] : 0,
                                        .row_end = t->ndim ? box[0] + box[t->ndim] : 1,
                                        .unpacked_max = atomic_load(&d->chunks[i].state) & DCP_PACKED
                                                            ? fsdpck_dcp_packed_max(t, box + t->ndim)
                                                            : 0 };
        uint64_t before = c->result->nproblems;
        int rc = fsdpck_zip_check_run(c, &s);
        /* An item with intact records may still contain another tensor. */
        if (!rc && c->result->nproblems == before)
            rc = fsdpck_zip_check_report_error(c, &s, fsdpck_dcp_extent(c->src, ordinal, i, &extent, &e), &e);
        if (rc)
            return rc;
    }
    return 0;
}

void fsdpck_dcp_item_subject(const struct source_item *item, struct fsdpck_zip_subject *out)
{
    *out = (struct fsdpck_zip_subject){ .file = item->file,
                                        .offset = item->offset,
                                        .nbytes = item->stream_nbytes ? item->stream_nbytes : item->pub.nbytes,
                                        .name = item->pub.name,
                                        .unpacked_max = item->stream_nbytes ? item->pub.nbytes : 0 };
}

static void count_total(struct fsdpck_zip_check *c)
{
    const struct dcp *dcp = c->src->impl;
    for (size_t i = 0; i < c->src->tensors.count; i++)
        for (uint64_t k = 0; k < dcp->tensors[i].nchunks; k++)
            c->total_nbytes += dcp->tensors[i].chunks[k].item_nbytes;
    for (size_t i = 0; i < c->src->items.count; i++) {
        struct fsdpck_zip_subject s;
        fsdpck_dcp_item_subject(&source_items(c->src)[i], &s);
        c->total_nbytes += s.nbytes;
    }
}

static int check_all(struct fsdpck_zip_check *c)
{
    count_total(c);
    for (size_t i = 0; i < c->src->tensors.count; i++) {
        int rc = check_tensor(c, i);
        if (rc)
            return rc;
    }
    for (size_t i = 0; i < c->src->items.count; i++) {
        struct fsdpck_zip_subject s;
        fsdpck_dcp_item_subject(&source_items(c->src)[i], &s);
        int rc = fsdpck_zip_check_run(c, &s);
        if (rc)
            return rc;
    }
    return 0;
}

int fsdpck_dcp_verify(struct fsdpck_source *src, bool quick, fsdpck_problem_fn fn, void *report_ctx,
                      struct fsdpck_verify_result *result, struct fsdpck_error *err)
{
    struct fsdpck_zip_check c = { .src = src, .report = fn, .ctx = report_ctx, .result = result, .err = err };
    result->nfiles = src->files.count;
    result->ntensors = src->tensors.count;
    result->hashed = false;
    if (src->opt.note)
        src->opt.note(
            src->opt.ctx,
            quick ? "a PyTorch DCP directory has no hashes: only .metadata and the sizes of files were checked"
                  : "a PyTorch DCP directory has no hashes: only structure and the CRC-32s of its zips were checked");
    if (quick)
        return 0; /* opening has checked everything */
    int rc = fsdpck_zip_check_begin(&c);
    if (!rc)
        rc = check_all(&c);
    fsdpck_zip_check_end(&c);
    return rc;
}
