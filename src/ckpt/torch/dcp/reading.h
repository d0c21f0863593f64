/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the readers of .metadata: read.c walks its tables, location.c locates items, chunks.c joins a tensor's
 * chunks with their storage. */
#ifndef CKPT_DCP_READING_H
#define CKPT_DCP_READING_H

#include "torch/dcp/dcp.h"
#include "torch/pickle/tensor_node.h"

/* One name of state_dict_metadata. */
struct dcp_entry {
    fsdpck_node name, value, path;  /* path: planner_data's tuple, or NO_NODE */
    uint64_t first_stored, nstored; /* its range of `stored` */
    bool reshaped;                  /* Megatron saved it in another shape */
};

struct dcp_reading {
    struct fsdpck_source *src;
    struct dcp *dcp;
    const char *folder; /* of the files that it names, relative to the source's folder; "" for the source's folder */
    struct fsdpck_catalogue
        *catalogue;   /* collects the tensors of several ranks' metadata; NULL: this one is complete */
    uint32_t rank;    /* the rank whose metadata it is, in catalogue */
    const char *file; /* .metadata, for messages */
    const struct fsdpck_pickle *p;
    struct fsdpck_error *err;
    struct dcp_entry *entries;
    size_t nentries;
    struct fsdpck_names names; /* -> entry */
    fsdpck_node storage;       /* storage_data */
    uint64_t *stored;          /* positions in storage_data, grouped by entry */
    struct fsdpck_names files; /* relative path -> ordinal */
    struct fsdpck_names
        locations; /* "file@offset" of each tensor's first chunk -> ordinal: finds names that share their bytes */
    struct fsdpck_arena scratch;
    struct fsdpck_vec tensors; /* struct dcp_tensor, parallel to src->tensors */
    uint64_t budget; /* number of box integers that may still be read. A pickle can list one chunk a million times;
                        torch never does */
};

/* The location of an item in a file. */
struct dcp_item_location {
    uint32_t file;
    uint64_t offset, nbytes;
    bool packed; /* a zstd stream */
};

/* These return 0, or a code with r->err filled; the error names the tensor (or item). */
int fsdpck_dcp_fail(const struct dcp_reading *r, int code, const char *name, const char *fmt, ...) FSDPCK_PRINTF(4, 5);
/* Returns whether n is an object of the class, in any module; the list of allowed names limits the modules. */
bool fsdpck_dcp_is_a(const struct dcp_reading *r, fsdpck_node n, const char *class);
/* Returns a string without NUL, or NULL if n is not one. */
const char *fsdpck_dcp_text(const struct dcp_reading *r, fsdpck_node n);
/* Returns an attribute of an object. */
fsdpck_node fsdpck_dcp_attribute(const struct dcp_reading *r, fsdpck_node object, const char *key);
/* Reads _StorageInfo; adds its file to the source if it is new. */
int fsdpck_dcp_read_location(struct dcp_reading *r, const char *name, fsdpck_node info, struct dcp_item_location *out);
/* Reads the chunks of a tensor, sorted and joined with their items; they fill the tensor exactly. The arena owns the
 * arrays. */
int fsdpck_dcp_read_chunks(struct dcp_reading *r, const struct dcp_entry *e, const char *name, uint32_t ndim,
                           const uint64_t *shape, struct dcp_tensor *out);

#endif
