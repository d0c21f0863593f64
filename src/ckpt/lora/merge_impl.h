/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the two halves of a merge: merge.c decides how each tensor changes, merge_values.c computes the values. */
#ifndef CKPT_LORA_MERGE_IMPL_H
#define CKPT_LORA_MERGE_IMPL_H

#include "lora/merge.h"

/* The changes to one stored tensor of the base. */
struct lora_target {
    uint32_t chosen;                       /* position in the base's selection */
    const struct fsdpck_lora_whole *whole; /* replaces the tensor before the other changes, or NULL */
    unsigned nwhole; /* number of the tensor's names for which the adapter has such a copy; all have the same values */
    const struct fsdpck_lora_tokens *tokens; /* replaces these rows, or NULL; then there are no products */
    struct fsdpck_operand_set *products;     /* (nrow, ncol) = (shape[0], the rest); NULL: none */
    const struct fsdpck_lora_module *vector; /* lora_B.bias of this module is added, or NULL */
    float *factor; /* DoRA: factor of each row, or of each column if the product is transposed; NULL: none */
};

struct fsdpck_lora_merge {
    struct fsdpck_source *base;
    struct fsdpck_lora_adapter *adapter;
    const struct fsdpck_options *opt;
    const struct fsdpck_selection *selection; /* of the base */
    struct fsdpck_arena arena;
    struct fsdpck_names names;       /* of the base's parameters */
    bool *used;                      /* (adapter->selection.ntensors) the tensor was assigned */
    struct lora_target **targets;    /* (selection->ntensors) NULL: unchanged */
    struct fsdpck_vec list;          /* struct lora_target *, from the arena */
    struct fsdpck_operand_set *sets; /* (nsets) all targets' products */
    size_t nsets;
    uint64_t memory_nbytes;
    struct fsdpck_operands *operands;
    struct fsdpck_edit edit;
};

static inline const struct fsdpck_tensor *lora_base_tensor(const struct fsdpck_lora_merge *m,
                                                           const struct lora_target *t)
{
    return fsdpck_source_tensor(m->base, m->selection->tensors[t->chosen].source);
}

static inline unsigned lora_base_nnames(const struct fsdpck_lora_merge *m, const struct lora_target *t)
{
    unsigned n = 1;
    for (size_t i = 0; i < m->selection->ntensors; i++)
        n += m->selection->tensors[i].alias_of == (int64_t)t->chosen;
    return n;
}

const char *fsdpck_lora_merge_parameter(struct fsdpck_arena *a, const char *module, const char *leaf,
                                        struct fsdpck_error *err);
/* Gets the target for a parameter of the base; position: the adapter's tensor, for errors. */
int fsdpck_lora_merge_target(struct fsdpck_lora_merge *m, const char *name, int64_t position, struct lora_target **out,
                             struct fsdpck_error *err);
/* Refuses an adapter's tensor because of its shape. */
int fsdpck_lora_merge_misfit(const struct fsdpck_lora_merge *m, const struct lora_target *t, int64_t position,
                             const char *wanted, struct fsdpck_error *err);
/* Adds a product to a target, and marks the adapter's tensors as used. */
int fsdpck_lora_merge_product(struct fsdpck_lora_merge *m, struct lora_target *t, const struct fsdpck_operand *product,
                              struct fsdpck_error *err);
/* The adapter and the base may name and lay out the experts of a layer differently: one by one or fused, gate and up
 * apart or joined, transposed or not, by transformers' names or Mixtral's. Adds the module's products; *done is false
 * if it is no expert of a layer whose experts the base has. */
int fsdpck_lora_merge_expert(struct fsdpck_lora_merge *m, const struct fsdpck_lora_module *module, bool *done,
                             struct fsdpck_error *err);
/* Replaces *name, which the base lacks, by the name that the base has for the weight of a router at path, by the same
 * two conventions. */
int fsdpck_lora_merge_router(struct fsdpck_lora_merge *m, const char *path, const char **name,
                             struct fsdpck_error *err);
/* After the products: assigns whole parameters, then trained tokens, to their targets. */
int fsdpck_lora_merge_whole(struct fsdpck_lora_merge *m, struct fsdpck_error *err);
int fsdpck_lora_merge_tokens(struct fsdpck_lora_merge *m, struct fsdpck_error *err);
/* Checks that the frozen model beside an adapter is the base: its tensors must hold the same values, up to rounding
 * from one type to the other. Reads both once. Quantized tensors cannot be compared. */
int fsdpck_lora_merge_frozen(struct fsdpck_lora_merge *m, struct fsdpck_error *err);

/* The edit's apply: ctx is a struct fsdpck_lora_merge. */
int fsdpck_lora_merge_apply(void *ctx, uint32_t tensor, uint64_t begin, uint64_t nelem, const void *in, void *out,
                            struct fsdpck_error *err);
/* Computes the factors of all DoRA targets; reads those tensors once. */
int fsdpck_lora_merge_factors(struct fsdpck_lora_merge *m, struct fsdpck_error *err);

#endif
