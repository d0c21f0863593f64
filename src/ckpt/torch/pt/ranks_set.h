/* SPDX-License-Identifier: Apache-2.0 */
/* The files of a folder that holds some from each rank, in one of two namings: model_world_size_N_rank_R.pt, optim_…
 * and extra_state_…, as verl saves them; or ITEM_R.pt for each item of a checkpoint, as torch_checkpointing does. */
#ifndef CKPT_RANKS_SET_H
#define CKPT_RANKS_SET_H

#include "engine/source_impl.h"

/* What each rank has one file of. */
struct ranks_kind {
    const char *name;   /* "model", or an item's */
    bool per_rank;      /* ranks may differ in its values: random states, positions in the data */
    const char **files; /* (nranks) */
};

struct ranks_set {
    const char *folder;
    char **names; /* (nnames) entries of the folder, sorted */
    size_t nnames;
    uint64_t nranks;
    struct fsdpck_arena arena;
    struct fsdpck_vec kinds; /* struct ranks_kind */
};

/* Lists the files. A missing or second file of a rank is an error. fsdpck_ranks_set_free() also after a failure. */
int fsdpck_ranks_set_list(struct ranks_set *s, const struct fsdpck_source *src, struct fsdpck_error *err);
void fsdpck_ranks_set_free(struct ranks_set *s);

#endif
