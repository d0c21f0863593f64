/* SPDX-License-Identifier: Apache-2.0 */
/* Flattens the saved value as torch.distributed.checkpoint does: dicts, and lists that contain dicts or tensors. */
#ifndef CKPT_PT_WALK_H
#define CKPT_PT_WALK_H

#include "engine/source_impl.h"
#include "torch/pickle/pickle.h"

/* Called for a leaf. name: its keys joined by dots; name and path live until the call returns. */
typedef int (*fsdpck_leaf_fn)(void *ctx, const char *name, const struct fsdpck_key *path, uint32_t npath,
                              fsdpck_node n);

struct fsdpck_pt_walk {
    const struct fsdpck_pickle *p;
    const char *file;      /* for messages */
    uint64_t nbytes;       /* of the pickle: limits the work, since a small pickle can describe a huge tree */
    fsdpck_node root;      /* the value to flatten */
    const char *tree;      /* first key of every path, or NULL */
    fsdpck_leaf_fn tensor; /* for any value that rebuilds a tensor */
    fsdpck_leaf_fn value;  /* for any other value; it contains no tensor that could be separated */
    void *ctx;
    struct fsdpck_error *err; /* never NULL */
};

/* A tensor at the root gets the name "tensor". Empty dicts disappear. A tuple is a value, except that a tuple with
 * tensors is walked like a list (torch would save it as one opaque value, which only Python could read). */
int fsdpck_pt_walk(const struct fsdpck_pt_walk *w);

#endif
