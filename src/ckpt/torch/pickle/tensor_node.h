/* SPDX-License-Identifier: Apache-2.0 */
/* A tensor as torch pickles it: a view of a storage, made by _rebuild_tensor_v2 or its kin. Looks at nodes of a pickle;
 * knows no file, and what a container of tensors is. */
#ifndef CKPT_TENSOR_NODE_H
#define CKPT_TENSOR_NODE_H

#include <fsdpck/tensor.h>

#include "torch/pickle/pickle.h"

struct fsdpck_tensor_node {
    enum fsdpck_dtype dtype;
    const char *key; /* of the storage: record data/KEY. The pickle's */
    uint64_t storage_nelem, first;
    uint32_t ndim;
    uint64_t size[FSDPCK_MAX_DIMS], strides[FSDPCK_MAX_DIMS]; /* elements */
};

/* Takes wrappers off: Parameters, tensors with attributes. *args: the argument tuple; the name of what makes the tensor
 * is returned, NULL where n is no tensor at all. */
const char *fsdpck_tensor_node_maker(const struct fsdpck_pickle *p, fsdpck_node n, fsdpck_node *args);
/* Reads one. 0, or FSDPCK_ERR_FORMAT, FSDPCK_ERR_UNSUPPORTED with *why a sentence ("it was …"). */
int fsdpck_tensor_node_read(const struct fsdpck_pickle *p, fsdpck_node n, struct fsdpck_tensor_node *out,
                            const char **why);
/* Whether its elements lie inside its storage; an empty tensor's do. The storage itself may still be longer than its
 * record. */
bool fsdpck_tensor_node_inside(const struct fsdpck_tensor_node *t);
bool fsdpck_tensor_node_is_dense(const struct fsdpck_tensor_node *t);

/* A tuple (list, torch.Size) of at most FSDPCK_MAX_DIMS integers from 0; false where n is none. */
bool fsdpck_node_dims(const struct fsdpck_pickle *p, fsdpck_node n, uint32_t *ndim, uint64_t *dims);
bool fsdpck_node_dtype(const struct fsdpck_pickle *p, fsdpck_node n,
                       enum fsdpck_dtype *out); /* GLOBAL "torch float32" */
const char *fsdpck_format_dims(char *buf, size_t nbytes, const uint64_t *dims,
                               uint32_t ndim); /* "[2, 3]"; returns buf */

#endif
