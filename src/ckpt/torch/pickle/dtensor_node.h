/* SPDX-License-Identifier: Apache-2.0 */
/* A DTensor as torch 2.4 to 2.15 pickle it: one rank's shard, the mesh, and the placements. */
#ifndef CKPT_DTENSOR_NODE_H
#define CKPT_DTENSOR_NODE_H

#include <fsdpck/tensor.h>

#include "torch/pickle/pickle.h"

struct fsdpck_dtensor_node {
    enum fsdpck_dtype dtype;
    uint32_t ndim;
    uint64_t shape[FSDPCK_MAX_DIMS]; /* of the whole tensor */
    fsdpck_node local;               /* this rank's tensor */
    struct fsdpck_mesh mesh;         /* ranks NULL; names are the pickle's */
    struct fsdpck_placement placements[FSDPCK_MAX_MESH_DIMS];
    bool has_coordinate; /* the pickle states the rank's position on the mesh */
    uint32_t coordinate[FSDPCK_MAX_MESH_DIMS];
    fsdpck_node mesh_node;
    fsdpck_node rank_tuple, rank_tensor; /* the mesh's ranks, row-major: a tuple or a tensor; NO_NODE: not given */
    bool sub_mesh;                       /* those ranks belong to the mesh from which this one was sliced */
};

bool fsdpck_dtensor_node_is(const struct fsdpck_pickle *p, fsdpck_node n);
/* Returns 0, or FSDPCK_ERR_FORMAT or FSDPCK_ERR_UNSUPPORTED with a sentence in *why. */
int fsdpck_dtensor_node_read(const struct fsdpck_pickle *p, fsdpck_node n, struct fsdpck_dtensor_node *out,
                             const char **why);

#endif
