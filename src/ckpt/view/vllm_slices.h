/* SPDX-License-Identifier: Apache-2.0 */
/* Which elements of a joined weight a rank of vLLM's tensor parallelism holds. Arithmetic on sizes: knows no files. */
#ifndef CKPT_VLLM_SLICES_H
#define CKPT_VLLM_SLICES_H

#include "view/family.h"

/* Ranks of tensor parallelism, and their model. */
struct fsdpck_vllm_ranks {
    struct fsdpck_family family;
    uint32_t n;
    bool expert_parallel; /* each rank has some of the experts whole; else a part of each */
};

/* A run of elements along the dimension that is cut. */
struct fsdpck_vllm_slice {
    uint64_t whole, local, n; /* position in the whole tensor and in the rank's; how many */
};

/* How a weight is cut, as vLLM names it. */
struct fsdpck_vllm_cut {
    struct fsdpck_family_cut cut;
    bool whole_experts; /* dimension 0 of a stack is cut, between experts */
    bool vocabulary;    /* rows are those of the vocabulary, padded to a multiple of 64 with zeros */
};

/* What vLLM's model does with a tensor. */
enum fsdpck_vllm_use {
    FSDPCK_VLLM_HOLDS,
    FSDPCK_VLLM_LEAVES, /* layers for multi-token prediction and vision towers, which other classes hold */
    FSDPCK_VLLM_UNKNOWN
};

/* t: with the shape of the whole along dimension 0, if it is a stack of experts. */
enum fsdpck_vllm_use fsdpck_vllm_cut_of(const struct fsdpck_vllm_ranks *r, const struct fsdpck_tensor *t,
                                        struct fsdpck_vllm_cut *out);
/* Refuses a tensor that is UNKNOWN. source: its path. */
int fsdpck_vllm_refuse(const struct fsdpck_vllm_ranks *r, const char *name, const char *source,
                       struct fsdpck_error *err);
/* Refuses other families, and numbers of heads, experts and sizes of the vocabulary that vLLM does not divide among so
 * many ranks. */
int fsdpck_vllm_check_ranks(const struct fsdpck_vllm_ranks *r, const char *config, struct fsdpck_error *err);
/* Number of elements that a rank has of `whole`; 0: they cannot be divided so. */
uint64_t fsdpck_vllm_local(const struct fsdpck_vllm_ranks *r, const struct fsdpck_vllm_cut *c, uint32_t rank,
                           uint64_t whole);
/* The inverse, of rank 0. 0: no whole gives so many. */
uint64_t fsdpck_vllm_whole(const struct fsdpck_vllm_ranks *r, const struct fsdpck_vllm_cut *c, uint64_t local);
/* Fills the slices of a rank, in the order of its rows; returns how many. Several ranks may have the same heads of k
 * and v. */
size_t fsdpck_vllm_slices(const struct fsdpck_vllm_ranks *r, const struct fsdpck_vllm_cut *c, uint32_t rank,
                          uint64_t whole, struct fsdpck_vllm_slice out[3]);

#endif
