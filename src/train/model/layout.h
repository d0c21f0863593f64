/* SPDX-License-Identifier: Apache-2.0 */
/* The layout of a model as tables: trained and frozen parameters, the linear layers made of them, and the groups of
 * parameters that are gathered together. Every parameter is sharded along dim 0 as in FSDP2: ceil(rows/N) rows for
 * each rank in turn, padded to that. Pure: holds no weights and does not communicate. */
#ifndef TRAIN_LAYOUT_H
#define TRAIN_LAYOUT_H

#include <kernels/types.h>
#include <train/config.h>

#include "model/model.h"

enum { LAYOUT_NAME = 256 };

struct param {
    char name[LAYOUT_NAME];   /* in files: the model's, or PEFT's for what an adapter holds */
    char source[LAYOUT_NAME]; /* in the base model's files; empty for what is no part of it */
    bool saved;               /* a copy of the base's that an adapter holds (modules_to_save) */
    int32_t
        norms_of; /* DoRA's magnitude: the weight whose rows' norms it begins as, and fp32 wherever it lies; -1: none */
    uint32_t ndim; /* 1: (nrow); 2: (nrow, ncol) */
    int64_t nrow, ncol;
    bool trainable, decay;
    uint32_t group;
    int64_t chunk;         /* rows of a full shard: ceil(nrow / nranks) */
    enum kern_dtype dtype; /* of its values in the parameters' memory */
    size_t value_at;       /* bytes: the whole tensor begins here in the parameters' memory, rank 0's shard first */
    size_t shard_at;       /* bytes: a rank's own rows begin here where it keeps nothing but those */
    int64_t grad_at; /* elements: trainable only; the whole gradient begins here in a rank's gradient memory, perhaps
                        where other groups' were */
    int64_t own_at;  /* elements: trainable only; this rank's rows begin here in its optimizer memory */
};

/* A linear layer, or an embedding; -1 where it has no such parameter. */
struct linear {
    char path[LAYOUT_NAME]; /* "model.layers.0.self_attn.q_proj" */
    int64_t nin, nout;
    int32_t w, bias;
    int32_t a, b;      /* LoRA: (r, nin), (nout, r) */
    int32_t magnitude; /* DoRA: (nout) */
    int64_t norms_at;  /* DoRA: elements: its rows' norms begin here in compute.norms */
    int64_t r;
    float scale;
    uint32_t dropout_name; /* XXH32 of the path */
};

struct layer {
    int32_t norm1, norm2, q_norm, k_norm;
    struct linear q, k, v, o, gate, up, down;
};

struct layout {
    struct param *params; /* (nparams) */
    size_t nparams, capacity;
    struct layer *layers; /* (model.nlayer) */
    struct linear embed,
        head; /* embed: nin is the vocabulary; head.w == embed.w where they are tied and neither is trained as a copy */
    int32_t norm;
    uint32_t nranks, ngroups; /* one a layer, after the embedding's; the last norm and an untied head are the last */
    size_t value_nbytes, shard_nbytes;
    bool masters; /* what is trained has fp32 masters beside its rounded values, where those are rounded: memory like
                     the optimizer's, at own_at */
    int64_t grad_nelem, own_nelem;
    int64_t norms_nelem;   /* of all layers with DoRA */
    bool grads_by_group;   /* gradients are given away group by group, in the backward of a packet's last micro-batch */
    bool grads_take_turns; /* where that is the only one: all but the embedding's, which come from both ends, take turns
                            * in one place, or in two where there are several ranks: the one is exchanged while the
                            * other is made */
    int64_t ntrained, nfrozen;   /* elements of the model and its adapters */
    int64_t first_trained_layer; /* below it nothing needs a gradient; nlayer: only the head or nothing */
};

int layout_make(const struct model *m, const struct train_config *config, uint32_t nranks, struct layout *out,
                struct fsdpck_error *err);
void layout_free(struct layout *l);

/* Whether the head's weight is the embedding's. */
static inline bool layout_is_tied(const struct layout *l)
{
    return l->head.w == l->embed.w;
}

/* Whether a parameter lies in an adapter's files: LoRA's, or a copy of the base's. */
static inline bool param_is_adapter(const struct param *p)
{
    return p->saved || !p->source[0];
}

/* Rows of `rank`'s shard: [*first, *first + result). */
static inline int64_t param_rows(const struct param *p, uint32_t rank, int64_t *first)
{
    *first = p->chunk * rank < p->nrow ? p->chunk * rank : p->nrow;
    return p->nrow - *first < p->chunk ? p->nrow - *first : p->chunk;
}

#endif
