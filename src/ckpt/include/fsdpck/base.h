/* SPDX-License-Identifier: Apache-2.0 */
/* The frozen base of an adapter's checkpoint, by reference (FORMAT.md section 9): where it is, and whether it is still the one that the adapter was
 * trained on. */
#ifndef FSDPCK_BASE_H
#define FSDPCK_BASE_H

#include <fsdpck/check.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a tensor of the base must be. */
struct fsdpck_base_tensor {
    const char *name;
    enum fsdpck_dtype dtype;
    uint32_t ndim;
    const uint64_t *shape; /* (ndim) */
    uint8_t content[16];
};

struct fsdpck_base {
    const char *path; /* where it is; from a checkpoint: absolute */
    const struct fsdpck_base_tensor *tensors; /* (ntensors) */
    size_t ntensors;
};

/* The base that a source names, borrowed; NULL: it names none. */
FSDPCK_API const struct fsdpck_base *fsdpck_source_base(const struct fsdpck_source *src);

/* Opens the base that src names. FSDPCK_ERR_MISSING, with what was looked for where, if it is not there. Nothing of it is compared: fsdpck_base_compare() does that. */
FSDPCK_API int fsdpck_base_open(const struct fsdpck_source *src, const struct fsdpck_options *opt, struct fsdpck_source **base, struct fsdpck_error *err);

/* Reports every tensor that `base` lacks, or that is another than src names, by dtype, shape and content. quick: contents only where base knows them
 * without reading; else each is read once. *read_nbytes is added to. An error only where the work could not be done. */
FSDPCK_API int fsdpck_base_compare(const struct fsdpck_source *src, struct fsdpck_source *base, bool quick, fsdpck_problem_fn report, void *report_ctx,
                                   uint64_t *read_nbytes, struct fsdpck_error *err);

/* The same as a refusal: FSDPCK_ERR_DAMAGED names the first such tensor. 0 where src names no base. */
FSDPCK_API int fsdpck_base_check(const struct fsdpck_source *src, struct fsdpck_source *base, bool quick, struct fsdpck_error *err);

#ifdef __cplusplus
}
#endif
#endif
