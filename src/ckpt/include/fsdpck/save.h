/* SPDX-License-Identifier: Apache-2.0 */
/* Saves a checkpoint from many ranks: each rank passes the boxes that it holds, and together they commit one
 * checkpoint. The ranks share a directory.
 *
 * fsdpck_save() is for ranks that have nothing else but a barrier, which the caller supplies. Every rank calls it with
 * the same lists of tensors and items (same order, names, shapes, dtypes, meshes); only the boxes differ. Rank 0 writes
 * the index and commits.
 *
 * The functions of a save in phases are for ranks that exchange messages: no rank but the coordinator needs to know the
 * whole lists. */
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
    /* Without data: copies nelem elements to dst, from the `first` one of the box on in row-major order. Threads of the
     * save call it, one at a time for a box. */
    int (*read)(void *ctx, const struct fsdpck_save_box *box, uint64_t first, uint64_t nelem, void *dst,
                struct fsdpck_error *err);
    void *ctx;
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

/* A value other than a tensor, as torch.save() wrote it. */
struct fsdpck_save_item {
    const char *name;
    const struct fsdpck_key *path; /* (npath) nested keys; npath 0: the name is the only key */
    uint32_t npath;
    const void *data; /* on the one rank that stores it; NULL on the others. Not used after the call */
    uint64_t nbytes;  /* of data: at least 1 */
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
    const struct fsdpck_save_item *items; /* (nitems) */
    size_t nitems;
    const char *state;  /* a JSON object for the index, or NULL (only rank 0's is used) */
    const char *assets; /* folder whose files become the assets, or NULL (only rank 0's is used) */
    bool dequantized;   /* its config.json speaks of quantized weights, which these tensors are not: that is left out */
    const struct fsdpck_save_asset *extra_assets; /* (nextra_assets) more assets, from memory, with paths that the
                                                     folder lacks (only rank 0's are used) */
    size_t nextra_assets;
    const struct fsdpck_base
        *base; /* the frozen base of these adapters, saved by reference, or NULL (only rank 0's is used) */
    enum fsdpck_dcp_mode dcp;
    bool force;
    bool compress; /* without loss, the same on every rank; PyTorch cannot read the checkpoint */
};

/* Blocks until the checkpoint is committed or given up. After a commit every rank gets 0. Otherwise every rank gets an
 * error, and `out` is as it was before; a rank that gave up because another one failed gets FSDPCK_ERR_PEER, and the
 * failed rank's error is the cause. result may be NULL; its counts are this rank's. */
FSDPCK_API int fsdpck_save(const struct fsdpck_save_request *req, const struct fsdpck_options *opt,
                           struct fsdpck_transfer_result *result, struct fsdpck_error *err);

/* ---- a save in phases ----
 *
 * 1. The coordinator calls fsdpck_save_begin(). 2. Then every rank calls fsdpck_save_part(). 3. When all of them have
 * returned 0, the coordinator calls fsdpck_save_commit(); otherwise it calls fsdpck_save_abandon(). */

struct fsdpck_save_begun; /* opaque; of the process that began the save */

/* Locks req->out and makes a staging directory for req->nranks ranks. Uses no list of the request. On success the
 * caller owns *begun, which fsdpck_save_commit() or fsdpck_save_abandon() frees; opt->io must outlive it. On failure
 * `out` is unchanged. */
FSDPCK_API int fsdpck_save_begin(const struct fsdpck_save_request *req, const struct fsdpck_options *opt,
                                 struct fsdpck_save_begun **begun, struct fsdpck_error *err);
/* Writes the shard file of req->rank into the staging directory, and fsyncs it. The request lists what this rank
 * stores, and may list more. tensor_ordinals (ntensors) and item_ordinals (nitems): their positions in the whole lists,
 * ascending; NULL: 0, 1, 2 and so on. Uses no barrier, state, assets, base, dcp or force. FSDPCK_ERR_PEER: no save of
 * `out` has begun. */
FSDPCK_API int fsdpck_save_part(const struct fsdpck_save_request *req, const uint32_t *tensor_ordinals,
                                const uint32_t *item_ordinals, const struct fsdpck_options *opt,
                                struct fsdpck_transfer_result *result, struct fsdpck_error *err);
/* Checks that the shard files of all ranks hold the tensors and items of the whole lists, writes the index and commits.
 * The request describes tensors and items; boxes and data are unused. Always frees `begun`. On failure `out`
 * is as it was before, unless the error's hint says that the new checkpoint is in place. */
FSDPCK_API int fsdpck_save_commit(struct fsdpck_save_begun *begun, const struct fsdpck_save_request *req,
                                  const struct fsdpck_options *opt, struct fsdpck_error *err);
/* Removes the staging directory with the files of all ranks, and frees `begun`. NULL does nothing. */
FSDPCK_API void fsdpck_save_abandon(struct fsdpck_save_begun *begun);

#ifdef __cplusplus
}
#endif
#endif
