/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the quantization_config of a model's config.json: the method, and the sizes of blocks and groups that it names.
 */
#ifndef CKPT_QUANT_CONFIG_H
#define CKPT_QUANT_CONFIG_H

#include <fsdpck/error.h>

enum { FSDPCK_QUANT_MAX_SCHEMES = 64 };

/* How the weights of one group of modules are stored. 0: not said. */
struct fsdpck_quant_scheme {
    uint64_t bits;
    uint64_t group;    /* elements along the input dimension */
    uint64_t block[2]; /* rows, columns */
};

struct fsdpck_quant_config {
    bool present;
    char method[48]; /* "fp8", "compressed-tensors", …; "": not said */
    bool ue8m0;      /* scales are powers of two, whatever their dtype */
    bool gptq_v2;    /* zero points are stored as they are, not less one */
    struct fsdpck_quant_scheme schemes[FSDPCK_QUANT_MAX_SCHEMES];
    size_t nschemes;
};

/* text is a whole config.json (or hf_quant_config.json of modelopt). present is false if it has none. file: for
 * messages. Unknown keys are skipped. */
int fsdpck_quant_config_read(const char *file, const char *text, size_t nbytes, struct fsdpck_quant_config *out,
                             struct fsdpck_error *err);

#endif
