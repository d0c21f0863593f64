/* SPDX-License-Identifier: Apache-2.0 */
/* How model families are cut for tensor and expert parallelism: which dimension of which weight, by a table of names.
 * Knows no meshes and no ranks. */
#ifndef CKPT_FAMILY_H
#define CKPT_FAMILY_H

#include "engine/source_impl.h"
#include "view/text_names.h"

/* What its config.json says of a model. */
struct fsdpck_family {
    char model_type[64];
    uint64_t heads, kv_heads, nexperts, vocab;
    const struct fsdpck_text_names *text; /* what names of the text part begin with */
    uint64_t nlayers, nmtp;               /* decoder layers, and those after them for multi-token prediction */
};

enum fsdpck_family_part {
    FSDPCK_PART_WHOLE,
    FSDPCK_PART_SLICE, /* along `dim` */
    FSDPCK_PART_Q,     /* the same, by attention heads */
    FSDPCK_PART_KV,    /* the same, by heads of k and v */
    FSDPCK_PART_QKV    /* q over k over v: no placement describes its slices */
};

enum fsdpck_family_experts {
    FSDPCK_EXPERTS_NONE,
    FSDPCK_EXPERTS_ONE,  /* the tensor is of one expert */
    FSDPCK_EXPERTS_STACK /* dimension 0 counts experts */
};

/* How a tensor is cut. */
struct fsdpck_family_cut {
    enum fsdpck_family_part part;
    uint32_t dim;
    uint32_t nhalves; /* 2: gate over up along dim, each of which is cut; else 1 */
    uint32_t equal;   /* ranks must have equal parts along dim, of multiples of so many elements; 0: they need not */
    enum fsdpck_family_experts experts;
    uint64_t expert; /* of ONE */
};

/* Reads config.json (folder: as in fsdpck_convert_request.assets). Refuses families that the table does not have.
 * needed_by: what the user asked for, for the message. */
int fsdpck_family_read(const struct fsdpck_source *src, const char *folder, const char *needed_by,
                       struct fsdpck_family *out, struct fsdpck_error *err);
/* Finds how a weight is cut, or what belongs to it: its bias, scales, optimizer state. Returns false if the table does
 * not have it; *out is then whole. */
bool fsdpck_family_find(const struct fsdpck_family *f, const struct fsdpck_tensor *t, struct fsdpck_family_cut *out);
/* Whether a name is that of a tensor in a decoder layer. */
bool fsdpck_family_is_in_layer(const struct fsdpck_family *f, const char *name);

#endif
