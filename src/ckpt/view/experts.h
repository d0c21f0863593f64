/* SPDX-License-Identifier: Apache-2.0 */
/* The routed experts of a mixture-of-experts model, by family: what they are called where models are published (one
 * tensor for each expert's gate, up and down), and what transformers 5 holds in memory (all experts' gate over up in
 * one tensor, and all downs). Knows names, no bytes. */
#ifndef CKPT_EXPERTS_H
#define CKPT_EXPERTS_H

#include <fsdpck/tensor.h>

#include "view/text_names.h"

/* The model, as its config.json describes it. */
struct fsdpck_moe {
    char model_type[64];
    const struct fsdpck_moe_family *family; /* NULL: none that is known */
    uint64_t nlayers, nmtp;                 /* decoder layers, and those after them for multi-token prediction */
    uint64_t nexperts, hidden, inter, vocab;
    uint64_t heads, head_dim; /* of attention; 0: not named */
    uint64_t block[2];        /* rows and columns that share a scale of FP8 weights; 0: config.json names none */
    bool whole_q;             /* latent attention has no low rank of q */
    bool with_images;         /* the model has a part for images, and these are the sizes of its text part */
};

/* After the name of an FP8 weight: the scales of its blocks. */
#define FSDPCK_SCALE_SUFFIX "_scale_inv"

enum fsdpck_expert_part { FSDPCK_EXPERT_GATE, FSDPCK_EXPERT_UP, FSDPCK_EXPERT_DOWN, FSDPCK_EXPERT_NPARTS };
enum fsdpck_expert_form {
    FSDPCK_EXPERT_OTHER,   /* no routed expert of a decoder layer */
    FSDPCK_EXPERT_MOVED,   /* another tensor of a layer, whose name differs between the two */
    FSDPCK_EXPERT_SINGLE,  /* one expert's gate, up or down */
    FSDPCK_EXPERT_FUSED,   /* all experts' */
    FSDPCK_EXPERT_UNKNOWN, /* of an expert, in no form that is known */
};
struct fsdpck_expert {
    enum fsdpck_expert_form form;
    uint64_t layer, expert;       /* expert: of SINGLE */
    enum fsdpck_expert_part part; /* FUSED: GATE stands for gate over up */
    bool scale;                   /* the scales of its blocks, not the weight */
};

/* Whether a name is that of routed experts of any family: the two names of MoE models are looked at only then. */
bool fsdpck_expert_is_name(const char *name);
/* Fills moe from config.json. A family that is not known is no error. */
int fsdpck_moe_read(const char *file, const char *text, size_t nbytes, struct fsdpck_moe *moe,
                    struct fsdpck_error *err);
/* Refuses a model whose family is not known, or whose config.json lacks a size. */
int fsdpck_moe_check(const struct fsdpck_moe *moe, const char *file, struct fsdpck_error *err);
/* Whether a name is that of one expert of a decoder layer, in any family. */
bool fsdpck_expert_is_single_name(const char *name);
/* Whether the family is published as transformers holds it. */
bool fsdpck_moe_is_alike(const struct fsdpck_moe *moe);
/* Whether single experts of the model have names that are known. */
bool fsdpck_moe_has_singles(const struct fsdpck_moe *moe);
/* Whether the fused experts of the family have inputs before outputs. */
bool fsdpck_moe_is_turned(const struct fsdpck_moe *moe);
/* Whether they are published turned, and held with outputs before inputs. */
bool fsdpck_moe_is_published_turned(const struct fsdpck_moe *moe);
/* What the names of the text part begin with as published. */
const struct fsdpck_text_names *fsdpck_moe_text(const struct fsdpck_moe *moe);
/* What a name stands for. MTP layers, which transformers does not hold, are OTHER, and in an alike family everything
 * but weights of experts. The name is that of a text part alone. */
void fsdpck_expert_parse(const struct fsdpck_moe *moe, const char *name, struct fsdpck_expert *out);
/* Writes the other name of a MOVED tensor. */
void fsdpck_expert_move(const struct fsdpck_moe *moe, const char *name, bool to_fused, char *out, size_t nbytes);
/* Writes the name of a tensor; x->form is SINGLE or FUSED. */
void fsdpck_expert_name(const struct fsdpck_moe *moe, const struct fsdpck_expert *x, char *out, size_t nbytes);

#endif
