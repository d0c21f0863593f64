/* SPDX-License-Identifier: Apache-2.0 */
/* The factors of merges, in float32: loaded when the first thread needs them, cached while they fit, shared among
 * threads. */
#ifndef CKPT_LORA_OPERANDS_H
#define CKPT_LORA_OPERANDS_H

#include "lora/adapter.h"

/* One product that goes into rows [row, row + nrow) of a tensor that is seen as (rows, ncol): left (nrow, rank), right
 * (rank, ncol). Of the rows of B, nout from `first` on are used; the tensor has them as outputs place, place + step, …
 * and others beside them, for which B counts as zero. */
struct fsdpck_operand {
    const struct fsdpck_lora_module *module;
    bool transposed; /* left is A transposed, right is B transposed: embeddings, and layers stored as (in, out) */
    uint64_t row, nrow, ncol;
    uint64_t first, nout, place, step;
    float *left, *right; /* filled in while acquired */
};

/* All products of one tensor are loaded together. */
struct fsdpck_operand_set {
    struct fsdpck_operand *list; /* (count) */
    size_t count;
    uint64_t nbytes; /* in memory, filled in */
    float *memory;
    unsigned users;
    bool loading;
    uint64_t used; /* time of last use, for eviction */
};

struct fsdpck_operands;

/* sets: (nsets) borrowed. Caches about budget_nbytes at most, or one set if it is larger. */
int fsdpck_operands_new(struct fsdpck_lora_adapter *a, struct fsdpck_operand_set *sets, size_t nsets,
                        uint64_t budget_nbytes, struct fsdpck_operands **out, struct fsdpck_error *err);
void fsdpck_operands_free(struct fsdpck_operands *o);
/* Thread-safe. A thread must hold only one set at a time, because acquire may wait for other threads to release theirs.
 * NaN and infinity are refused. */
int fsdpck_operands_acquire(struct fsdpck_operands *o, struct fsdpck_operand_set *set, struct fsdpck_error *err);
void fsdpck_operands_release(struct fsdpck_operands *o, struct fsdpck_operand_set *set);

/* Reads elements [begin, begin + nelem) of a source's tensor as float32; checks that they are finite. */
int fsdpck_lora_read(struct fsdpck_source *src, size_t ordinal, uint64_t begin, uint64_t nelem, float *out,
                     struct fsdpck_error *err);
/* *same: two of the adapter's tensors, of one shape, hold the same values. */
int fsdpck_lora_same(const struct fsdpck_lora_adapter *a, int64_t x, int64_t y, bool *same, struct fsdpck_error *err);

#endif
