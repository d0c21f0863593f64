/* SPDX-License-Identifier: Apache-2.0 */
/* Flattens what torch.save saved: dicts, and lists that hold dicts or tensors, as torch.distributed.checkpoint does. */
#ifndef CKPT_PT_WALK_H
#define CKPT_PT_WALK_H

#include "engine/source_impl.h"
#include "torch/pickle/pickle.h"

/* A leaf. name: its keys joined by dots; both live until the call returns. */
typedef int (*fsdpck_leaf_fn)(void *ctx, const char *name, const struct fsdpck_key *path, uint32_t npath,
                              fsdpck_node n);

struct fsdpck_pt_walk {
    const struct fsdpck_pickle *p;
    const char *file;      /* for messages */
    uint64_t nbytes;       /* of the pickle: bounds the work, since a small one can describe a huge tree */
    const char *tree;      /* first key of every path, or NULL */
    fsdpck_leaf_fn tensor; /* anything that rebuilds a tensor */
    fsdpck_leaf_fn value;  /* anything else; holds no tensor that could be told apart */
    void *ctx;
    struct fsdpck_error *err; /* never NULL */
};

/* A tensor at the root gets the name "tensor". Empty dicts vanish. A tuple is a value, but for one that holds tensors:
 * that is walked like a list (torch would save it as one opaque value, which no reader but Python could take apart). */
int fsdpck_pt_walk(const struct fsdpck_pt_walk *w);

#endif
