/* SPDX-License-Identifier: Apache-2.0 */
/* Saves a checkpoint from many ranks: each rank passes the boxes that it holds, and together they commit one
 * checkpoint.
 *
 * The ranks share only a directory and a barrier that the caller supplies. Every rank calls fsdpck_save() with the same
 * list of tensors (same order, names, shapes, dtypes, meshes); only the boxes differ. Rank 0 writes the index and
 * commits. */
#ifndef FSDPCK_SAVE_H
#define FSDPCK_SAVE_H

#include <fsdpck/base.h>
#include <fsdpck/convert.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A box of the logical tensor, and its address on this rank. */
struct fsdpck_save_box {
    const uint64_t *offset, *size; /* (ndim) elements */
    const void *data;              /* first element, little-endian; not used after the call */
    const int64_t *strides;        /* (ndim) bytes; NULL: dense row-major */
};

struct fsdpck_save_tensor {
    const char *name;
    const struct fsdpck_key *path; /* (npath) nested keys; npath 0: the name is the only key */
    uint32_t npath;
    enum fsdpck_dtype dtype;
    uint32_t ndim;
    const uint64_t *shape; /* (ndim) global */
    /* With a mesh, this rank's boxes are exactly those of fsdpck_placement_boxes(), in that order. Every replica passes
     * its boxes; one of them writes. With mesh == NULL the boxes are explicit, and each element is on exactly one rank.
     */
    const struct fsdpck_mesh *mesh;
    const struct fsdpck_placement *placements; /* (mesh->ndim) */
    const char *alias_of;                      /* name of the tensor that stores the bytes; an alias has no boxes */
    const struct fsdpck_save_box *boxes;       /* (nboxes) */
    size_t nboxes;
};

struct fsdpck_save_asset {
    const char *path; /* relative, plain */
    const void *data;
    uint64_t nbytes;
};

struct fsdpck_save_request {
    const char *out; /* the checkpoint directory; its parent is visible to all ranks */
    uint32_t rank, nranks;
    /* Returns 0 when every rank has called it, or nonzero to give up (a rank is lost). Every rank calls it three times,
     * also after an error. May be NULL if nranks is 1. */
    int (*barrier)(void *ctx);
    void *barrier_ctx;
    const struct fsdpck_save_tensor *tensors; /* (ntensors) */
    size_t ntensors;
    const char *state;  /* a JSON object for the index, or NULL (only rank 0's is used) */
    const char *assets; /* folder whose files become the assets, or NULL (only rank 0's is used) */
    const struct fsdpck_save_asset
        *made; /* (nmade) more assets, from memory, with paths that the folder lacks (only rank 0's are used) */
    size_t nmade;
    const struct fsdpck_base
        *base; /* the frozen base of these adapters, saved by reference, or NULL (only rank 0's is used) */
    enum fsdpck_dcp_mode dcp;
    bool force;
};

/* Blocks until the checkpoint is committed or given up. After a commit every rank gets 0. Otherwise every rank gets an
 * error, and `out` is as it was before; a rank that gave up because another one failed gets FSDPCK_ERR_PEER, and the
 * failed rank's error is the cause. result may be NULL; its counts are this rank's. */
FSDPCK_API int fsdpck_save(const struct fsdpck_save_request *req, const struct fsdpck_options *opt,
                           struct fsdpck_transfer_result *result, struct fsdpck_error *err);

#ifdef __cplusplus
}
#endif
#endif
