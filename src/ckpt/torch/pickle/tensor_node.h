/* SPDX-License-Identifier: Apache-2.0 */
/* A tensor as torch pickles it: a view of a storage, made by _rebuild_tensor_v2 or a related function. Reads nodes of a
 * pickle; knows no file and no container of tensors. */
#ifndef CKPT_TENSOR_NODE_H
#define CKPT_TENSOR_NODE_H

#include <fsdpck/tensor.h>

#include "torch/pickle/pickle.h"

struct fsdpck_tensor_node {
    enum fsdpck_dtype dtype;
    const char *key; /* of the storage: record data/KEY. Owned by the pickle */
    uint64_t storage_nelem, first;
    uint32_t ndim;
    uint64_t size[FSDPCK_MAX_DIMS], strides[FSDPCK_MAX_DIMS]; /* elements */
};

/* Removes wrappers: Parameters, tensors with attributes. Returns the name of the function that makes the tensor, NULL
 * if n is not a tensor; *args: the argument tuple. */
const char *fsdpck_tensor_node_maker(const struct fsdpck_pickle *p, fsdpck_node n, fsdpck_node *args);
/* Reads a tensor. Returns 0, or FSDPCK_ERR_FORMAT or FSDPCK_ERR_UNSUPPORTED with a sentence ("it was …") in *why. */
int fsdpck_tensor_node_read(const struct fsdpck_pickle *p, fsdpck_node n, struct fsdpck_tensor_node *out,
                            const char **why);
/* Returns whether its elements lie inside its storage; true for an empty tensor. The storage may still be longer than
 * its record. */
bool fsdpck_tensor_node_inside(const struct fsdpck_tensor_node *t);
bool fsdpck_tensor_node_is_dense(const struct fsdpck_tensor_node *t);

/* Reads a tuple (list, torch.Size) of at most FSDPCK_MAX_DIMS non-negative integers; false if n is not one. */
bool fsdpck_node_dims(const struct fsdpck_pickle *p, fsdpck_node n, uint32_t *ndim, uint64_t *dims);
bool fsdpck_node_dtype(const struct fsdpck_pickle *p, fsdpck_node n,
                       enum fsdpck_dtype *out); /* GLOBAL "torch float32" */
const char *fsdpck_format_dims(char *buf, size_t nbytes, const uint64_t *dims,
                               uint32_t ndim); /* "[2, 3]"; returns buf */

#endif
