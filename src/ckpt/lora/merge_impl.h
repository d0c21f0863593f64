/* What the two halves of a merge share: merge.c decides what happens to which tensor, merge_values.c does it. */
#ifndef CKPT_LORA_MERGE_IMPL_H
#define CKPT_LORA_MERGE_IMPL_H

#include "lora/merge.h"

/* What happens to one stored tensor of the base. */
struct lora_target {
    uint32_t chosen;                           /* position in the base's selection */
    const struct fsdpck_lora_whole *whole;     /* replaced by this, or NULL */
    struct fsdpck_operand_set *products;       /* (nrow, ncol) = (shape[0], the rest); NULL: none */
    const struct fsdpck_lora_module *vector;   /* its lora_B.bias is added, or NULL */
    float *factor; /* DoRA: of each row, or each column where the product is transposed; NULL: none */
};

struct fsdpck_lora_merge {
    struct fsdpck_source *base;
    struct fsdpck_lora_adapter *adapter;
    const struct fsdpck_options *opt;
    const struct fsdpck_selection *selection; /* of the base */
    struct fsdpck_arena arena;
    struct lora_target **targets; /* (selection->ntensors) NULL: passes unchanged */
    struct fsdpck_vec list;       /* struct lora_target *, from the arena */
    struct fsdpck_operand_set *sets; /* (nsets) the targets' products, side by side */
    size_t nsets;
    uint64_t memory_nbytes;
    struct fsdpck_operands *operands;
    struct fsdpck_edit edit;
};

static inline const struct fsdpck_tensor *lora_base_tensor(const struct fsdpck_lora_merge *m, const struct lora_target *t)
{
    return fsdpck_source_tensor(m->base, m->selection->tensors[t->chosen].source);
}

/* The edit's apply: ctx is a struct fsdpck_lora_merge. */
int fsdpck_lora_merge_apply(void *ctx, uint32_t tensor, uint64_t begin, uint64_t nelem, const void *in, void *out, struct fsdpck_error *err);
/* Fills the factors of all DoRA targets: reads those tensors once. */
int fsdpck_lora_merge_factors(struct fsdpck_lora_merge *m, struct fsdpck_error *err);

#endif
