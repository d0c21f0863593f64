/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors that a model of a known family must have, with the shapes that its config.json gives them: a table. Knows
 * no checks. */
#ifndef CKPT_DOCTOR_PARTS_H
#define CKPT_DOCTOR_PARTS_H

#include "doctor/model.h"

/* The sizes that shapes are made of. */
enum doctor_dim {
    DIM_NONE, /* no second dimension; or a shape that is not checked */
    DIM_VOCABULARY,
    DIM_HIDDEN,
    DIM_TWO_HIDDEN,
    DIM_HEADS,
    DIM_HEAD,
    DIM_Q,      /* rows of q; with those of its gate in families that have one */
    DIM_O,      /* columns of o */
    DIM_KV,     /* rows of k, and of v */
    DIM_Q_RANK, /* multi-head latent attention */
    DIM_Q_UP,
    DIM_KV_RANK,
    DIM_KV_DOWN,
    DIM_KV_UP,
    DIM_V_ALL,
    DIM_LINEAR_HEADS, /* linear attention */
    DIM_LINEAR_HEAD,
    DIM_LINEAR_V,
    DIM_LINEAR_QKV,
    DIM_LINEAR_QKVZ,
    DIM_LINEAR_BA,
    DIM_INNER, /* of a dense layer */
    DIM_EXPERTS,
    DIM_EXPERT_INNER,
    DIM_TWO_EXPERT_INNER,
    DIM_SHARED_INNER,
    DIM_ONE,
    DOCTOR_NDIMS,
};

/* What a family has, and what a layer is. */
enum {
    PART_QKV = 1 << 0,
    PART_QKV_BIAS = 1 << 1,
    PART_O_BIAS = 1 << 2,
    PART_QK_NORM = 1 << 3,
    PART_SINKS = 1 << 4,
    PART_MLA = 1 << 5,
    PART_Q_RANK = 1 << 6, /* of MLA: q in two steps; else in one */
    PART_Q_WHOLE = 1 << 7,
    PART_LINEAR_TWO = 1 << 8,  /* linear attention with two products (Qwen3-Next) */
    PART_LINEAR_FOUR = 1 << 9, /* with four (Qwen3.5) */
    PART_MLP = 1 << 10,
    PART_FEED_FORWARD = 1 << 11, /* "feed_forward." instead of "mlp." */
    PART_GATE = 1 << 12,         /* the router is mlp.gate, */
    PART_MIXTRAL = 1 << 13,      /* or block_sparse_moe.gate, */
    PART_ROUTER = 1 << 14,       /* or mlp.router, with a bias */
    PART_ROUTER_ADDED = 1 << 15, /* e_score_correction_bias */
    PART_SHARED = 1 << 16,       /* shared_expert */
    PART_SHARED_GATE = 1 << 17,  /* and its gate */
    PART_SHARED_MANY = 1 << 18,  /* shared_experts */
    PART_GATED_Q = 1 << 19,      /* rows of q and of a gate, in turns */
    LAYER_ATTENTION = 1 << 20,   /* of a layer: full attention, */
    LAYER_LINEAR = 1 << 21,      /* or linear; */
    LAYER_DENSE = 1 << 22,       /* a dense MLP, */
    LAYER_EXPERTS = 1 << 23,     /* or experts; */
    LAYER_MTP = 1 << 24,         /* multi-token prediction, as a layer behind the others */
};

struct doctor_part {
    const char *name;           /* of a module, or of a tensor that is no module's weight */
    unsigned when;              /* all of these must be there */
    enum doctor_dim rows, cols; /* rows DIM_NONE: any shape */
};

enum { DOCTOR_MAX_PARTS = 64 }; /* rows of a table */

struct doctor_known {
    const char *model_type, *inner, *expert_inner; /* the latter two: keys of these sizes, or NULL */
    unsigned traits;
    uint64_t dims[DOCTOR_NDIMS]; /* 0: config.json does not say */
};

/* Parts of a layer, of the model, and of multi-token prediction beside the layers ("mtp."); each ends with a row
 * without a name. */
extern const struct doctor_part fsdpck_doctor_layer_parts_table[], fsdpck_doctor_model_parts[],
    fsdpck_doctor_mtp_parts[];

/* Returns false for a family that is not known in full, or a config.json without its sizes. */
bool fsdpck_doctor_known_read(const struct doctor_model *m, struct doctor_known *out);
/* Returns what is seen of a layer's kind in one of its tensors, whose name below the layer is given; 0: nothing. */
unsigned fsdpck_doctor_layer_kind(const char *name);
/* Returns the keys of config.json that a size comes from. */
const char *fsdpck_doctor_dim_keys(const struct doctor_known *k, enum doctor_dim dim);

#endif
