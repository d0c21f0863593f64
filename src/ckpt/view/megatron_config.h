/* SPDX-License-Identifier: Apache-2.0 */
/* What config.json says that Megatron's tensors are taken apart by: sizes, and which tensors a layer has. */
#ifndef CKPT_MEGATRON_CONFIG_H
#define CKPT_MEGATRON_CONFIG_H

#include "engine/source_impl.h"
#include "view/experts.h"

enum { FSDPCK_MEGATRON_MAX_LAYERS = 10000, FSDPCK_MEGATRON_NAME_NBYTES = 256 };

/* Traits of a layer. */
enum {
    FSDPCK_MEGATRON_QKV = 1 << 0, /* q, k and v in one matrix */
    FSDPCK_MEGATRON_QKV_BIAS = 1 << 1,
    FSDPCK_MEGATRON_QK_NORM = 1 << 2,
    FSDPCK_MEGATRON_O_BIAS = 1 << 3,
    FSDPCK_MEGATRON_MLA = 1 << 4,
    FSDPCK_MEGATRON_Q_RANK = 1 << 5, /* of MLA: q is a product of two matrices, else one (Q_WHOLE) */
    FSDPCK_MEGATRON_Q_WHOLE = 1 << 6,
    FSDPCK_MEGATRON_DENSE = 1 << 7, /* an mlp, else EXPERTS */
    FSDPCK_MEGATRON_EXPERTS = 1 << 8,
    FSDPCK_MEGATRON_ROUTER_BIAS = 1 << 9,
    FSDPCK_MEGATRON_SHARED = 1 << 10,       /* shared experts */
    FSDPCK_MEGATRON_SHARED_GATED = 1 << 11, /* one, with a gate of its own */
};

struct fsdpck_megatron_config {
    uint64_t layers, hidden, heads, kv_heads, vocab;
    uint64_t experts;       /* 0 in a dense model */
    uint64_t first_experts; /* the first layer that may have experts */
    uint64_t experts_every; /* layers */
    uint64_t mtp_layers; /* for multi-token prediction, after the others; 0 in families that publish them otherwise */
    bool tied;
    unsigned traits;                               /* of all layers */
    bool dense_layers[FSDPCK_MEGATRON_MAX_LAYERS]; /* mlp_only_layers */
    struct fsdpck_moe moe;                         /* names of experts */
};

/* Refuses families whose names in Megatron are not known, and a config.json that lacks a size. */
int fsdpck_megatron_config_read(const struct fsdpck_source *src, const char *folder, struct fsdpck_megatron_config *out,
                                struct fsdpck_error *err);
unsigned fsdpck_megatron_traits(const struct fsdpck_megatron_config *c, uint64_t layer);

#endif
