/* SPDX-License-Identifier: Apache-2.0 */
/* Loss of a decoder in fp64, one token after the other, directly from the formulas. Finite differences of it check the
 * gradients. It knows nothing of the trainer's code, and runs documents one by one, so that packing cannot matter. */
#ifndef TESTS_TRAIN_REFERENCE_H
#define TESTS_TRAIN_REFERENCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { REFERENCE_HALF_HEAD = 32, REFERENCE_MOST_EXPERTS = 64 }; /* largest head_dim / 2 */

struct reference_tensor {
    char name[200];     /* as in files; adapters have PEFT's names */
    int64_t nrow, ncol; /* ncol 1: a vector */
    int64_t nmid;       /* in files (nrow, nmid, ncol/nmid); 0: not */
    double *data;
};

enum reference_rope { REFERENCE_DEFAULT, REFERENCE_LINEAR, REFERENCE_LLAMA3, REFERENCE_YARN, REFERENCE_ROPES };

struct reference {
    int64_t nvocab, hidden, inner, nlayer, nhead, nkv, head_dim;
    int64_t window, first_window; /* window: tokens that a query sees in the layers from first_window on; 0: all */
    int64_t nexperts, top_k, expert_inner; /* of layers that have a router */
    int64_t shared_inner;                  /* of the expert that every token shares; 0: there is none */
    bool normalised;                       /* the weights of a token's experts are divided by their sum */
    bool sigmoid; /* as in struct kern_router; the bias is a tensor, and the expert that is shared has no weight */
    double slope, limit; /* of gpt-oss, as in struct kern_expert_act; its experts are in tensors for all of a layer */
    int64_t ngroup, top_groups;
    double routed_scale;
    bool *chosen;  /* (nlayer, ntokens, nexperts) which experts a token of the step goes to: a gradient is that of a
                      fixed choice. NULL: there are no experts */
    double *probs; /* (nexperts) the sum of the softmax over all experts, over the tokens of all layers: added to */
    int64_t ntokens;
    bool chooses; /* sets `chosen`, instead of using it */
    bool tied, qk_norm;
    double eps;
    int64_t rotary; /* features of a head that are rotated */
    enum reference_rope rope;
    double theta, factor, original; /* llama3's other numbers are 1 and 4, yarn's 32 and 1 */
    double alpha, dropout;          /* of adapters */
    bool rslora, dora; /* dora: "norms.PATH" contains the row norms, which are constants for the gradient */
    uint64_t seed;
    struct reference_tensor *tensors; /* (ntensors) */
    size_t ntensors;
};

struct reference_document {
    const int32_t *ids, *labels; /* (ntok): labels are -100 for unsupervised tokens; the first is never used */
    int64_t ntok;
    int64_t token0; /* tokens of the step before it; dropout is indexed by them */
};

/* Sum of the losses of the supervised tokens. */
double reference_loss(const struct reference *m, const struct reference_document *doc);
/* ‖W + scale·B·A‖ of each row of the module's weight, from the current tensors. */
void reference_norms(const struct reference *m, const char *path, double *norms);
/* Returns NULL if there is none. */
struct reference_tensor *reference_find(const struct reference *m, const char *before, const char *path,
                                        const char *after);

#endif
