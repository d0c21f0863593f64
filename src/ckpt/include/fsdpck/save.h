/* SPDX-License-Identifier: Apache-2.0 */
/* Saving by many ranks: each hands over the boxes it holds; together they commit one checkpoint.
 *
 * The ranks share nothing but a directory and a barrier that the caller supplies. Every rank calls fsdpck_save() with the same list
 * of tensors (same order, names, shapes, dtypes, meshes); only the boxes differ. Rank 0 writes the index and commits. */
#ifndef FSDPCK_SAVE_H
#define FSDPCK_SAVE_H

#include <fsdpck/base.h>
#include <fsdpck/convert.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A box of the logical tensor, and where this rank has it. */
struct fsdpck_save_box {
    const uint64_t *offset, *size; /* (ndim) elements */
    const void *data;              /* first element, little-endian; not kept after the call */
    const int64_t *strides;        /* (ndim) bytes; NULL: dense row-major */
};

struct fsdpck_save_tensor {
    const char *name;
    const struct fsdpck_key *path; /* (npath) nested keys; npath 0: the name is the only key */
    uint32_t npath;
    enum fsdpck_dtype dtype;
    uint32_t ndim;
    const uint64_t *shape; /* (ndim) global */
    /* By rule: this rank's boxes are exactly those of fsdpck_placement_boxes(), in that order (replicas hand over theirs as well;
     * one of them writes). Or mesh == NULL: explicit boxes, each element on exactly one rank. */
    const struct fsdpck_mesh *mesh;
    const struct fsdpck_placement *placements; /* (mesh->ndim) */
    const char *alias_of;                      /* name of the tensor that stores the bytes; then no boxes */
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
    /* Returns 0 when every rank has called it, nonzero to give up (a rank is lost). Called three times by every rank, whatever
     * happens in between. NULL where nranks is 1. */
    int (*barrier)(void *ctx);
    void *barrier_ctx;
    const struct fsdpck_save_tensor *tensors; /* (ntensors) */
    size_t ntensors;
    const char *state;  /* a JSON object kept in the index, or NULL (rank 0's counts) */
    const char *assets; /* folder whose files become the assets, or NULL (rank 0's counts) */
    const struct fsdpck_save_asset *made; /* (nmade) more assets, from memory; their paths are not in the folder (rank 0's count) */
    size_t nmade;
    const struct fsdpck_base *base; /* the frozen base that the tensors are adapters of, named and not copied, or NULL (rank 0's counts) */
    enum fsdpck_dcp_mode dcp;
    bool force;
};

/* Blocks until the checkpoint is committed (then every rank gets 0) or given up (then every rank gets an error, and nothing stands
 * under `out` that was not there before). Ranks that gave up because another one failed get FSDPCK_ERR_PEER; the others' errors are the
 * causes. result may be NULL; its counts are this rank's. */
FSDPCK_API int fsdpck_save(const struct fsdpck_save_request *req, const struct fsdpck_options *opt, struct fsdpck_transfer_result *result,
                           struct fsdpck_error *err);

#ifdef __cplusplus
}
#endif
#endif
