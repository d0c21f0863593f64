/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the copies in memory share. */
#ifndef TRAIN_SNAPSHOTS_IMPL_H
#define TRAIN_SNAPSHOTS_IMPL_H

#include <stdatomic.h>

#include "comm/keeper.h"
#include "state/snapshots.h"

enum { SNAPSHOTS_NCOPIES = 2 };

/* The part of a copy that one rank has written. step 0: it is being written, or there is none. */
struct head {
    _Alignas(64) _Atomic uint64_t step;
    uint64_t nranks, updates, last_update, hash;
};

struct rows {
    int64_t nrow, ncol;
    uint64_t at; /* elements: offset in a tree */
};

struct snapshots {
    struct rows *params; /* (nparams) trained parameters */
    size_t nparams;
    uint64_t tree_nelem;
    int chosen;                          /* index of the copy to restore; -1: none */
    uint64_t step, updates, last_update; /* of the chosen copy */
    size_t nbytes;
    void *own;               /* nbytes, unless a keeper has them */
    struct kept_memory kept; /* the same, of a keeper */
    struct head *heads;      /* shared, where the memory begins: (SNAPSHOTS_NCOPIES, COMM_MAX_SUM) */
    float *data;             /* shared: (SNAPSHOTS_NCOPIES, CHECKPOINT_TREES, tree_nelem) */
    uint64_t run; /* hash of what the run depends on: copies of another one are not restored. 0 on one host */
    /* Over several hosts: */
    bool spread;
    uint32_t leader[COMM_MAX_SUM]; /* by rank: the first rank with the same keeper */
    uint32_t
        neighbour[COMM_MAX_SUM]; /* by rank: the rank with another keeper that has a copy of its rows; itself: none */
};

struct head *snapshots_head(const struct snapshots *s, uint32_t index, uint32_t rank);
float *snapshots_tree(const struct snapshots *s, uint32_t index, int tree);
/* The rows of a parameter that one of nranks ranks owns. */
int64_t snapshots_rows(const struct rows *p, uint32_t rank, uint64_t nranks, int64_t *first);
/* Whether the rows of a rank in a copy are those that its head was written for. */
bool snapshots_has_hash(const struct snapshots *s, uint32_t index, uint32_t rank);
void snapshots_forget(struct snapshots *s, uint32_t index);

#endif
