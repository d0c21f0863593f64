/* SPDX-License-Identifier: Apache-2.0 */
/* Sides: how other programs than transformers call and join a model's weights, by tables of names. The other half of
 * each row is transformers' form: published names, with the experts of a layer fused. Knows no tensors. */
#ifndef CKPT_SIDE_TABLE_H
#define CKPT_SIDE_TABLE_H

#include <fsdpck/error.h>

#include "hf/name_pattern.h"
#include "view/experts.h"

#define FSDPCK_SIDE_MAX_PARTS 3

/* How the rows of a joined weight belong to its parts. */
enum fsdpck_side_rows {
    FSDPCK_ROWS_ALL,       /* neither half is joined: only the name differs */
    FSDPCK_ROWS_HALF,      /* two parts of as many rows */
    FSDPCK_ROWS_QKV,       /* q has as many as o_proj has columns, k and v share the rest */
    FSDPCK_ROWS_GATED_QKV, /* the same, with a gate beside each row of q */
    FSDPCK_ROWS_Q_KV_A,    /* the first as many as q_a_layernorm has elements, the second the rest; only of models with
                              a low rank of q */
    FSDPCK_ROWS_QKV_Z      /* the second as many as out_proj has columns, the first the rest */
};

/* Names are patterns (hf/name_pattern.h). One half of a row is one tensor, the other its parts. */
struct fsdpck_side_row {
    const char *held[FSDPCK_SIDE_MAX_PARTS];  /* none: of the program's own state, left out */
    const char *other[FSDPCK_SIDE_MAX_PARTS]; /* by the program */
    enum fsdpck_side_rows rows;
    const char *only; /* what model_type begins with; NULL: every one that has no row of its own for the same name */
    bool rotated;     /* of q and k, the rotary pairs of a head are in two halves, not neighbours */
    bool turned;      /* the last two of three dimensions change places */
    bool old;         /* names that were used once: read, not written */
    bool published;   /* the program's name is one of the hub too, of this family or another */
};

struct fsdpck_side {
    const char *names, *program; /* as the user and a sentence call it */
    const struct fsdpck_side_row *rows;
    size_t nrows;
    const char *const *families;   /* model_types, up to NULL */
    struct fsdpck_text_names text; /* of a model that sees images too */
    bool scales;                   /* it holds block FP8 weights as they are published, joined like others */
    bool whole; /* every weight of a layer is in the table; else those that are not keep their names */
};

extern const struct fsdpck_side fsdpck_side_vllm, fsdpck_side_torchtitan;

struct fsdpck_side_match {
    const struct fsdpck_side_row *row;
    struct fsdpck_layer_number layer;
    bool scale; /* the name is that of the scales of a weight's blocks */
};

bool fsdpck_side_has_family(const struct fsdpck_side *side, const char *model_type);
/* Refuses a family that the side does not know. config: for messages. */
int fsdpck_side_check_family(const struct fsdpck_side *side, const char *model_type, const char *config,
                             struct fsdpck_error *err);
/* Finds the row that a name belongs to, as one of its own names (held) or of the program's. model NULL: any. */
bool fsdpck_side_find(const struct fsdpck_side *side, const struct fsdpck_moe *model, const char *name, bool held,
                      struct fsdpck_side_match *out);
/* Whether a name is one that only the program gives to weights of a layer. */
bool fsdpck_side_is_name(const struct fsdpck_side *side, const char *name);
/* Whether a name is that of something beside a weight that is laid out anew: a scale, an adapter. */
bool fsdpck_side_is_beside(const struct fsdpck_side *side, const struct fsdpck_moe *model, const char *name);

#endif
