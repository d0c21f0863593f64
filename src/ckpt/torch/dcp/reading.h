/* SPDX-License-Identifier: Apache-2.0 */
/* Between the parts of reading .metadata: read.c goes over its tables, location.c says where items lie, chunks.c joins
 * a tensor's chunks with their storage. */
#ifndef CKPT_DCP_READING_H
#define CKPT_DCP_READING_H

#include "torch/dcp/dcp.h"
#include "torch/pickle/tensor_node.h"

/* One name of state_dict_metadata. */
struct dcp_entry {
    fsdpck_node name, value, path;  /* path: planner_data's tuple, or NO_NODE */
    uint64_t first_stored, nstored; /* its part of `stored` */
    bool reshaped;                  /* Megatron says that it is not in its own shape */
};

struct dcp_reading {
    struct fsdpck_source *src;
    struct dcp *dcp;
    const char *folder; /* of the files that it names, below the source's; "" for the source's own */
    struct fsdpck_catalogue
        *catalogue;   /* collects the tensors of several ranks' metadata; NULL: this one is complete */
    uint32_t part;    /* whose metadata it is, there */
    const char *file; /* .metadata, for messages */
    const struct fsdpck_pickle *p;
    struct fsdpck_error *err;
    struct dcp_entry *entries;
    size_t nentries;
    struct fsdpck_names names; /* -> entry */
    fsdpck_node storage;       /* storage_data */
    uint64_t *stored;          /* positions in storage_data, by entry */
    struct fsdpck_names files; /* relative path -> ordinal */
    struct fsdpck_names
        places; /* "file@offset" of each tensor's first chunk -> ordinal: finds names that share their bytes */
    struct fsdpck_arena scratch;
    struct fsdpck_vec tensors; /* struct dcp_tensor, parallel to src->tensors */
    uint64_t budget; /* integers of boxes that may still be read: a pickle may list one chunk a million times, torch
                        never does */
};

/* The location of an item in a file. */
struct dcp_item_location {
    uint32_t file;
    uint64_t offset, nbytes;
    bool packed; /* a zstd stream */
};

/* All of these return 0 or a code with r->err filled, and name the tensor (or item) in it. */
int fsdpck_dcp_fail(const struct dcp_reading *r, int code, const char *name, const char *fmt, ...) FSDPCK_PRINTF(4, 5);
/* Whether n is an object of the class, in whatever module it lives; the list of allowed names knows which those are. */
bool fsdpck_dcp_is_a(const struct dcp_reading *r, fsdpck_node n, const char *class);
/* A string without NUL; NULL where n is none. */
const char *fsdpck_dcp_text(const struct dcp_reading *r, fsdpck_node n);
/* Attribute of an object. */
fsdpck_node fsdpck_dcp_attribute(const struct dcp_reading *r, fsdpck_node object, const char *key);
/* Reads _StorageInfo; adds its file to the source where it is new. */
int fsdpck_dcp_read_location(struct dcp_reading *r, const char *name, fsdpck_node info, struct dcp_item_location *out);
/* The chunks of a tensor, sorted and joined with their items; they fill the tensor exactly. Arrays are the arena's. */
int fsdpck_dcp_read_chunks(struct dcp_reading *r, const struct dcp_entry *e, const char *name, uint32_t ndim,
                           const uint64_t *shape, struct dcp_tensor *out);

#endif
