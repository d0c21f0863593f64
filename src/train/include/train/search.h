/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the settings of fsdp.* under which a run is fastest and still fits. None of them changes the bits of a run, so
 * the choice costs time at most. train.micro_batch_size changes bits, and is searched only if it is "auto". */
#ifndef TRAIN_SEARCH_H
#define TRAIN_SEARCH_H

#include <train/train.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TRAIN_CANDIDATES = 704, TRAIN_WHY_NBYTES = 768 };

struct train_candidate {
    enum train_sharding strategy;
    enum train_recompute checkpointing;
    uint64_t prefetch; /* fsdp.forward_prefetch and fsdp.backward_prefetch */
    uint64_t micro_batch_size;
    enum train_offload offload; /* fsdp.offload in output_dir */
    bool valid;                 /* false: this run cannot have these settings, and what follows is not set, but why */
    bool fits;
    uint64_t peak_nbytes, nrecomputed; /* as in struct train_plan */
    double step_seconds, exposed_seconds;
    char why[TRAIN_WHY_NBYTES]; /* why it was passed over; "chosen" */
};

struct train_search {
    struct train_candidate candidates[TRAIN_CANDIDATES]; /* (ncandidates) the chosen one among them */
    size_t ncandidates, chosen;                          /* chosen == ncandidates: nothing fits */
    unsigned keys;                                       /* enum train_automatic: those that were searched */
    uint64_t limit_nbytes;                               /* what a rank may take; 0: not known */
};

/* "none", "state", "gradients" or "parameters". */
FSDPCK_API const char *train_offload_word(enum train_offload offload);

/* Plans each candidate, by the rates of opt->rates or opt->cache, or measured anew. The limit is opt->rank_nbytes, or
 * what this host has for each rank; a device's memory is not known. Of candidates whose times differ by less than 5 %
 * the first counts: NO_SHARD, HYBRID_SHARD_ZERO2, SHARD_GRAD_OP, HYBRID_SHARD, FULL_SHARD, each with fewer recomputed
 * blocks, smaller micro-batches and a smaller prefetch first. Where ranks map each other's parameters, strategy and
 * prefetch do nothing, and are not searched. train.micro_batch_size is searched if it is "auto". If fsdp.offload is
 * "auto", more goes to a file only where nothing fits without. */
FSDPCK_API int train_search(const struct train_config *config, const struct train_options *opt,
                            struct train_search *out, struct fsdpck_error *err);

#ifdef __cplusplus
}
#endif
#endif
