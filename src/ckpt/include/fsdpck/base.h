/* SPDX-License-Identifier: Apache-2.0 */
/* The frozen base of an adapter's checkpoint, by reference (FORMAT.md section 9). These functions find the base and
 * compare it with the one that the adapter was trained on. */
#ifndef FSDPCK_BASE_H
#define FSDPCK_BASE_H

#include <fsdpck/check.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The expected dtype, shape and content of one tensor of the base. */
struct fsdpck_base_tensor {
    const char *name;
    enum fsdpck_dtype dtype;
    uint32_t ndim;
    const uint64_t *shape; /* (ndim) */
    uint8_t content[16];
};

struct fsdpck_base {
    const char *path; /* location of the base; absolute if it comes from a checkpoint */
    const char
        *held; /* how the tensors present its quantized weights, as for fsdpck_source_hold(); NULL: it has none */
    const struct fsdpck_base_tensor *tensors; /* (ntensors) */
    size_t ntensors;
};

/* Returns the base that a source names (borrowed), or NULL if it names none. */
FSDPCK_API const struct fsdpck_base *fsdpck_source_base(const struct fsdpck_source *src);

/* Opens the base that src names. If the base is missing, returns FSDPCK_ERR_MISSING; the message gives the path that
 * was tried. Compares nothing: see fsdpck_base_compare(). */
FSDPCK_API int fsdpck_base_open(const struct fsdpck_source *src, const struct fsdpck_options *opt,
                                struct fsdpck_source **base, struct fsdpck_error *err);

/* Reports every tensor that `base` lacks, or whose dtype, shape or content differs from the one that src names. Reads
 * each tensor once; quick: reads none, and compares a content id only if base has it stored. Adds to *read_nbytes.
 * Returns an error only if the comparison could not be done. */
FSDPCK_API int fsdpck_base_compare(const struct fsdpck_source *src, struct fsdpck_source *base, bool quick,
                                   fsdpck_problem_fn report, void *report_ctx, uint64_t *read_nbytes,
                                   struct fsdpck_error *err);

/* As fsdpck_base_compare(), but returns FSDPCK_ERR_DAMAGED, which names the first tensor that differs. Returns 0 if src
 * names no base. */
FSDPCK_API int fsdpck_base_check(const struct fsdpck_source *src, struct fsdpck_source *base, bool quick,
                                 struct fsdpck_error *err);

#ifdef __cplusplus
}
#endif
#endif
