/* SPDX-License-Identifier: Apache-2.0 */
/* The layout of a model as tables: trained and frozen parameters, the linear layers that use them, and the groups of
 * parameters that are gathered together. Every parameter is sharded along dim 0 as in FSDP2: ceil(rows/N) rows per
 * rank, in rank order, padded to that. Pure: holds no weights and does not communicate. */
#ifndef TRAIN_LAYOUT_H
#define TRAIN_LAYOUT_H

#include <kernels/types.h>
#include <train/config.h>

#include "model/flux2.h"
#include "model/linear_layer.h"
#include "model/model.h"
#include "model/packed.h"

struct param {
    char name[LAYOUT_NAME];   /* name in files: the model's, or PEFT's for a parameter of an adapter */
    char source[LAYOUT_NAME]; /* name in the base model's files; empty if it is not there */
    bool saved;               /* a trained copy of a base parameter (modules_to_save) */
    int32_t norms_of;         /* DoRA's magnitude: the weight whose row norms are its initial value; -1: none */
    bool keeps_fp32;          /* fp32 whatever the config says: a magnitude, a router's bias */
    bool constant;            /* has no gradient; where the whole model is trained, it is kept like what is trained, and
                                 does not change */
    uint32_t ndim;            /* 1: (nrow); 2: (nrow, ncol); 3: (nrow, nmid, ncol/nmid), in files */
    int64_t nrow, ncol, nmid;
    bool trainable, decay;
    bool owned; /* of experts that are whole on ranks (fsdp.expert_parallel): it is not gathered, and lies behind all
                   parameters that are */
    uint32_t group;
    uint32_t nshards;      /* consecutive ranks that together hold the values once, at rest: a divisor of nranks */
    int64_t chunk;         /* rows of a full shard: ceil(nrow / nranks) */
    enum kern_dtype dtype; /* dtype in parameter memory; packed: of its values in a product */
    const struct packed_weight *packed; /* the rows are quantized; NULL: they are not. Borrowed */
    enum kern_dtype reduce;             /* to which its gradient is rounded before it is exchanged */
    size_t value_at; /* bytes: offset of the whole tensor in parameter memory, rank 0's shard first */
    size_t shard_at; /* bytes: offset of the rank's own rows if the rank stores only those */
    int64_t grad_at; /* elements, trainable only: offset of the whole gradient in the rank's gradient memory; groups may
                        share memory */
    int64_t own_at;  /* elements, trainable only: offset of the rank's rows in its optimizer memory */
};

/* A gated MLP. joined: `gate` gives gate and up in turn, and there is no `up`. */
struct mlp {
    struct linear gate, up, down;
    bool joined;
};

/* How many layers give gate and up. */
static inline int mlp_ngates(const struct mlp *x)
{
    return x->joined ? 1 : 2;
}

struct layer {
    int32_t norm1, norm2, q_norm, k_norm, sinks;
    struct linear q, k, v, o;
    struct mlp mlp;       /* of a dense layer */
    struct linear router; /* of a mixture of experts: (nexperts, hidden) */
    int32_t router_bias;  /* (nexperts) fp32, added to the scores for the choice; -1: none */
    struct mlp *experts;  /* (nexperts) owned; NULL: the layer is dense */
    int32_t down_bias;    /* (nexperts, hidden) of the experts' last products, which counts with the weight of a choice;
                             -1: none */
    int64_t nexperts;
    bool shares; /* an expert takes every token too: */
    struct mlp shared;
    bool weighs;               /* with the weight σ(shared_gate), or else 1 */
    struct linear shared_gate; /* (1, hidden) */
};

/* Parts of a block, in the order of its forward pass: linear layers that share their input, with the norms before them.
 * The first has what else attention has. */
enum layout_part { PART_QKV, PART_O, PART_GATE_UP, PART_DOWN, LAYOUT_PARTS };

struct layout_block {
    uint32_t groups[LAYOUT_PARTS]; /* the group of each part, ascending; one for all of them, unless the block is cut */
    bool sparse;                   /* a mixture of experts, whose last two parts are one */
    enum train_recompute checkpointing; /* of a block that is cut: never auto */
};

struct layout {
    struct param *params; /* (nparams) */
    size_t nparams, capacity;
    struct layout_block *blocks; /* (nblocks) owned */
    uint32_t nblocks;            /* model.nlayer */
    char mlp[24];                /* module of a block's last two parts; empty: blocks are never cut */
    struct layer *layers;        /* (nblocks) of a decoder. Owned */
    struct flux2_layers *flux2;  /* of FLUX.2. One of the two is NULL. Owned */
    struct linear embed, head;   /* embed: nin is the vocabulary; head.w == embed.w if they are tied and neither is a
                                    trained copy. Of  FLUX.2 plain linear layers: x_embedder and proj_out */
    int32_t norm;                /* before the head; of FLUX.2 the weight of what modulates it */
    uint32_t nranks, ngroups;    /* groups: the embedding, those of each block, the last norm with an untied head.
                                    FLUX.2's first one has all modulations too */
    size_t value_nbytes, shard_nbytes;
    bool masters; /* some trained values are rounded, and have fp32 masters, at own_at like the optimizer's moments */
    int64_t grad_nelem;
    int64_t own_first, own_nelem; /* its elements of optimizer memory; own_first is 0 but for one of several layouts
                                     that share the memory (layout_join.h) */
    int64_t own_moved;            /* from this element on: the state that fsdp.offload moves, of whole groups */
    int64_t norms_nelem;          /* total over all layers with DoRA */
    bool grads_by_group;   /* gradients are exchanged per group, in the backward pass of a packet's last micro-batch */
    bool grads_take_turns; /* a packet is one micro-batch: all groups but the embedding's (whose gradients come from
                              both ends) share one buffer, or alternate between two if there are several ranks, so that
                              one is exchanged while the other is filled */
    int64_t ntrained, nfrozen;   /* number of elements of the model and its adapters */
    int64_t first_trained_layer; /* layers below it need no gradient; nlayer: only the head trains, or nothing */
};

/* Calls fn for the linear layers of all blocks, in the order of the forward pass: those that share their input
 * together. */
typedef void layout_fn(void *ctx, const struct linear *const *layers, int n);
void layout_each(const struct layout *l, layout_fn *fn, void *ctx);

/* packed: weights of the base that stay quantized; must outlive the layout. */
int layout_make(const struct model *m, const struct train_config *config, const struct packed_weights *packed,
                uint32_t nranks, struct layout *out, struct fsdpck_error *err);
void layout_free(struct layout *l);

/* True if the head shares the embedding's weight. */
static inline bool layout_is_tied(const struct layout *l)
{
    return l->head.w == l->embed.w;
}

static inline uint32_t layout_first_group(const struct layout *l, int64_t block)
{
    return l->blocks[block].groups[0];
}

static inline uint32_t layout_last_group(const struct layout *l, int64_t block)
{
    return l->blocks[block].groups[LAYOUT_PARTS - 1];
}

/* True if the block has several groups. */
static inline bool layout_is_cut(const struct layout *l, int64_t block)
{
    return layout_first_group(l, block) != layout_last_group(l, block);
}

/* True if the backward pass uses the groups of the block twice, the first time to recompute its activations. */
static inline bool layout_recomputes_first(const struct layout *l, int64_t block)
{
    return layout_is_cut(l, block) && l->blocks[block].checkpointing != TRAIN_RECOMPUTE_NONE;
}

/* The block of a group between the ends. */
uint32_t layout_block_of(const struct layout *l, uint32_t group);

/* The dtype in which a group is gathered and computed, that of all groups of a block; the largest of any group. */
enum kern_dtype layout_dtype(const struct layout *l, uint32_t group);
enum kern_dtype layout_widest(const struct layout *l);

/* True for the embedding's group, and for that of the last norm and the head. */
static inline bool layout_is_end(const struct layout *l, uint32_t group)
{
    return group == 0 || group == l->ngroups - 1;
}

/* True if the parameter is in an adapter's files: LoRA's own, or a copy of the base's. */
static inline bool param_is_adapter(const struct param *p)
{
    return p->saved || !p->source[0];
}

/* True if fsdp.offload moves the optimizer state of the parameter. */
static inline bool layout_moves(const struct layout *l, const struct param *p)
{
    return p->own_at >= l->own_moved;
}

/* The shape in files: (ndim). */
static inline void param_shape(const struct param *p, uint64_t shape[3])
{
    shape[0] = (uint64_t)p->nrow;
    shape[1] = (uint64_t)(p->ndim == 3 ? p->nmid : p->ncol);
    shape[2] = (uint64_t)(p->ndim == 3 ? p->ncol / p->nmid : 1);
}

/* Quantized rows that one row of the parameter consists of: several if a row is an expert. */
static inline int64_t param_packed_rows(const struct param *p)
{
    return p->packed->nrow / p->nrow;
}

/* Bytes of a row in parameter memory. */
static inline int64_t param_row_nbytes(const struct param *p)
{
    return p->packed ? param_packed_rows(p) * p->packed->form.pitch : p->ncol * kern_dtype_bytes(p->dtype);
}

/* Bytes of parameter memory that the whole tensor takes. */
size_t param_value_nbytes(const struct layout *l, const struct param *p);
/* Bytes from one rank's rows to the next's in memory that holds the rows of several. */
size_t param_shard_nbytes(const struct param *p);

/* Of nrow rows that are cut into equal chunks, those of chunk `rank`: [*first, *first + result). */
static inline int64_t chunk_rows(int64_t nrow, int64_t chunk, uint32_t rank, int64_t *first)
{
    *first = chunk * rank < nrow ? chunk * rank : nrow;
    return nrow - *first < chunk ? nrow - *first : chunk;
}

/* The same for `rank`'s shard of a parameter. */
static inline int64_t param_rows(const struct param *p, uint32_t rank, int64_t *first)
{
    return chunk_rows(p->nrow, p->chunk, rank, first);
}

#endif
