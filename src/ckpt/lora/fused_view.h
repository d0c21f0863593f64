/* SPDX-License-Identifier: Apache-2.0 */
/* Presents the factors of all experts of a layer as one tensor, made of the tensors of single experts. Knows nothing of
 * adapters. */
#ifndef CKPT_LORA_FUSED_VIEW_H
#define CKPT_LORA_FUSED_VIEW_H

#include "engine/source_impl.h"

enum { FSDPCK_FUSED_MAX_RANK = 1 << 16 };

/* A factor A [r, width] or B [width, r] of each part of each expert. Several parts (gate and up) share no A: their As
 * lie one over the other, and their Bs do too. */
struct fsdpck_lora_fused {
    const char *name;
    bool is_b;
    bool stacked; /* A [experts, parts * r, width], B [experts, parts * width, r]. Else A [experts * parts * r, width],
                     B [parts * width, parts * r * experts], the expert's number fastest, with zeros where a part has
                     nothing of another's rank */
    uint64_t nexperts, nparts, r, width; /* r: at most FSDPCK_FUSED_MAX_RANK */
    const size_t *inner;                 /* (nexperts, nparts) ordinals */
};

/* Adds the tensors to the end of src's catalogue; the others keep their ordinals. list: (n) malloc'ed; the call takes
 * it over, also when it fails. What it points to must live as long as src. After a failure src can only be closed. */
int fsdpck_lora_fused_present(struct fsdpck_source *src, struct fsdpck_lora_fused *list, size_t n,
                              struct fsdpck_error *err);

#endif
