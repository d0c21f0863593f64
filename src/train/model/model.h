/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers of a Hugging Face config.json that the forward pass of a decoder needs. Knows nothing of weights, ranks
 * or training. */
#ifndef TRAIN_MODEL_H
#define TRAIN_MODEL_H

#include <fsdpck/source.h>
#include <kernels/rope.h>

#include "model/flux2.h"

struct family;

struct model {
    const struct family *family; /* of a decoder; NULL: it is FLUX.2's transformer, which has the members hidden, inner,
                                    nlayer (blocks of both kinds), nhead, nkv, head_dim and eps, and: */
    struct flux2 flux2;
    int64_t nvocab, hidden, inner, nlayer, nhead, nkv, head_dim, max_position;
    float eps;
    bool quantized; /* config.json says so: it has quantization_config */
    bool tied, bias_qkv, bias_o, bias_mlp, qk_norm;
    int64_t nexperts, top_k;            /* 0: no layer is a mixture of experts */
    int64_t expert_inner, shared_inner; /* shared_inner 0: no expert is shared by all tokens */
    bool normalised, sigmoid;           /* as in struct kern_router, and: */
    int64_t ngroup, top_groups;
    float routed_scale;
    bool gpt_oss;                 /* as in struct family_maths */
    float gate_slope, gate_limit; /* of its experts, as in struct kern_expert_act */
    double balance;               /* factor of the load balancing loss; 0: it is not added */
    int64_t npredictors;          /* layers for multi-token prediction, which have no part in training */
    bool *sparse;                 /* (nlayer) the layer is a mixture of experts. Owned */
    int64_t *window;              /* (nlayer) number of visible tokens, including the current one; 0: all. Owned */
    struct kern_rope rope;
};

/* folder: the model folder; of FLUX.2 the folder `transformer` of the pipeline. Settings that would change the maths
 * and are not supported are errors that name the key. Unknown keys are ignored, and reported to opt->note. On failure
 * *out is empty. */
int model_read(const char *folder, const struct fsdpck_options *opt, struct model *out, struct fsdpck_error *err);
void model_free(struct model *m);
/* FSDPCK_ERR_UNSUPPORTED, unless it is a decoder. path: for the message. */
int model_check_decoder(const struct model *m, const char *path, struct fsdpck_error *err);

#endif
