/* SPDX-License-Identifier: Apache-2.0 */
/* The mesh of a run, or of the groups of an object of fsdp.policy: which ranks hold copies of the same parameters. Only
 * copies of values follow the mesh. Gradient sums, masters and moments are always cut over all ranks; so the mesh does
 * not touch the bits of a run. */
#ifndef TRAIN_MESH_H
#define TRAIN_MESH_H

#include <train/config.h>

/* Each size divides those above it; nreplicas · nshards is the number of ranks. A group is consecutive ranks. */
struct mesh {
    uint32_t nreplicas; /* shard groups; each has all parameters */
    uint32_t nshards;   /* ranks of a shard group */
    uint32_t nkept;     /* ranks that together keep what the forward pass gathered, for the backward; 0: not kept */
};

enum { MESH_OF_RUN = -1 };

/* What a mesh is chosen from. */
struct mesh_request {
    const struct train_config *config; /* that of an object: from config_policy_over() */
    int32_t object;                    /* of fsdp.policy, or MESH_OF_RUN */
    uint32_t nranks, nlocal;           /* of the run; of this host: 0 if that is not known */
};

/* Sizes that do not fit together or to the strategy are FSDPCK_ERR_USAGE. */
int mesh_choose(const struct mesh_request *req, struct mesh *out, struct fsdpck_error *err);

/* The largest number of ranks that divides groups of both sizes. */
static inline uint32_t mesh_common(uint32_t a, uint32_t b)
{
    while (b) {
        const uint32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static inline bool mesh_is_hybrid(enum train_sharding strategy)
{
    return strategy == TRAIN_HYBRID_SHARD || strategy == TRAIN_HYBRID_SHARD_ZERO2;
}

/* True if a shard group is the ranks of a host, because the config gives no size. */
bool mesh_is_of_hosts(const struct train_config *config);

#endif
