/* SPDX-License-Identifier: Apache-2.0 */
/* Reads every byte of .pt files. The format can be checked only by zip structure and CRC-32s. */
#include "torch/pt/file.h"
#include "torch/zip/verify.h"

/* Finds the first tensor whose elements begin in the record, and its rows if known. */
static void find_tensor(struct fsdpck_source *src, uint32_t file, uint64_t offset, uint64_t nbytes,
                        struct fsdpck_problem *problem)
{
    const struct dcp *dcp = src->impl;
    for (size_t i = 0; i < src->tensors.count; i++) {
        const struct fsdpck_tensor *t = &source_tensors(src)[i];
        for (uint64_t k = 0; k < dcp->tensors[i].nchunks; k++) {
            struct fsdpck_extent e;
            if (dcp->tensors[i].chunks[k].file != file || fsdpck_dcp_extent(src, i, k, &e, NULL) ||
                e.payload < offset || e.payload >= offset + nbytes)
                continue;
            problem->tensor = t->name;
            problem->row_begin = t->ndim ? e.offset[0] : 0;
            problem->row_end = t->ndim ? e.offset[0] + e.size[0] : 1;
            return;
        }
    }
}

int fsdpck_pt_verify(struct fsdpck_source *src, bool quick, fsdpck_problem_fn report, void *report_ctx,
                     struct fsdpck_verify_result *result, struct fsdpck_error *err)
{
    struct fsdpck_zip_check c = {
        .src = src, .report = report, .ctx = report_ctx, .result = result, .err = err, .find_tensor = find_tensor
    };
    result->hashed = false;
    if (src->opt.note)
        src->opt.note(
            src->opt.ctx,
            quick ? "torch.save files have no hashes: only their structure was checked"
                  : "torch.save files have no hashes: only structure and the CRC-32s of their zips were checked");
    if (quick)
        return 0; /* opening has checked everything */
    for (size_t i = 0; i < src->files.count; i++)
        c.total_nbytes += source_files(src)[i].pub.nbytes;
    int rc = fsdpck_zip_check_begin(&c);
    for (uint32_t i = 0; !rc && i < src->files.count; i++) {
        struct fsdpck_zip_subject s = { .file = i, .nbytes = source_files(src)[i].pub.nbytes };
        rc = fsdpck_zip_check_run(&c, &s);
    }
    fsdpck_zip_check_end(&c);
    return rc;
}
