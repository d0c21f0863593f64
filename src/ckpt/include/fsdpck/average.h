/* SPDX-License-Identifier: Apache-2.0 */
/* Averages checkpoints: `fsdpck average`. */
#ifndef FSDPCK_AVERAGE_H
#define FSDPCK_AVERAGE_H

#include <fsdpck/convert.h>

#ifdef __cplusplus
extern "C" {
#endif

struct fsdpck_average_request {
    const char *out;
    const double *weights; /* (nsources), finite in float32; NULL: the mean. They need not add up to 1 */
    /* Tree, include and exclude apply to every source, the rest to the output. Tree NULL: as fsdpck_export(). */
    struct fsdpck_select select;
    uint64_t max_shard_nbytes; /* as in fsdpck_export_request */
    /* NULL: write a Hugging Face folder or file. Else write a sharded checkpoint as this request says; its out, select,
     * assets and force are ignored. */
    const struct fsdpck_convert_request *sharded;
    const char *assets; /* as in fsdpck_export_request; NULL: those of the first source */
    bool force;
};

/* Computes ((w0 * x0 + w1 * x1) + w2 * x2) + … in the order of the sources, in float32 (float64 tensors: in float64);
 * every weight, every product and every sum is rounded to that, and the result is rounded once, to the type of the
 * tensor or of the cast. The mean is the sum divided by nsources. So the result depends neither on the kinds and
 * shardings of the sources nor on that of the output. Tensors of other types must have the same values in all sources.
 * Each byte of the sources is read once, with buffers of at most opt->memory_nbytes. A tensor that not every source has
 * in the same shape and dtype, and a quantized weight, are refused by name. sources[0] presents the averages afterwards
 * and can only be closed; it may not stand in the list twice. */
FSDPCK_API int fsdpck_average(struct fsdpck_source *const *sources, size_t nsources,
                              const struct fsdpck_average_request *req, const struct fsdpck_options *opt,
                              struct fsdpck_transfer_result *result, struct fsdpck_error *err);

#ifdef __cplusplus
}
#endif
#endif
