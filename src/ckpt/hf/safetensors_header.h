/* SPDX-License-Identifier: Apache-2.0 */
/* The header of one safetensors file, checked in full; shared by the file and the folder source. */
#ifndef CKPT_SAFETENSORS_HEADER_H
#define CKPT_SAFETENSORS_HEADER_H

#include "engine/source_impl.h"

/* A tensor as its header describes it; pointers live only during the callback. Shape as in torch (F4: last dimension
 * halved). */
struct safetensors_entry {
    const char *name;
    enum fsdpck_dtype dtype;
    uint32_t ndim;
    const uint64_t *shape;
    uint64_t payload; /* offset in the file */
};
/* Called once per tensor, in the header's order. A nonzero return (err filled) stops the reading and is returned. */
typedef int (*safetensors_fn)(void *ctx, const struct safetensors_entry *e, struct fsdpck_error *err);

/* Reads and checks the header: JSON, dtypes, shapes, offsets, and that tensors cover the data without holes or
 * overlaps. The callback must detect duplicate names. Memory: the header, freed before the return, and 24 bytes per
 * tensor. */
int fsdpck_safetensors_header(const struct fsdpck_io *io, const char *path, safetensors_fn visit, void *ctx,
                              struct fsdpck_error *err);

/* The same for a rank's file of a PyTorch DCP save in safetensors form, whose tensors are slices. *slices (initially
 * NULL) gets the text of its DCP_SHARDING_INFO, malloc'ed; the caller frees it even after failure. */
int fsdpck_safetensors_slices(const struct fsdpck_io *io, const char *path, safetensors_fn visit, void *ctx,
                              char **slices, struct fsdpck_error *err);

/* *value: malloc'ed, of this key of __metadata__; NULL: there is none. Checks nothing else of the file. */
int fsdpck_safetensors_metadata(const struct fsdpck_io *io, const char *path, const char *key, char **value,
                                struct fsdpck_error *err);

/* The location of the tensor with the same ordinal, in sources of this format. */
struct safetensors_location {
    uint64_t payload;
    uint32_t file;
};
/* Appends the entry to the catalogue of src, whose impl is a `struct fsdpck_vec` of struct safetensors_location. */
int fsdpck_safetensors_add(struct fsdpck_source *src, uint32_t file, const struct safetensors_entry *e,
                           struct fsdpck_error *err);
/* Makes impl, and sets ops. */
int fsdpck_safetensors_begin(struct fsdpck_source *src, const struct fsdpck_source_ops *ops, struct fsdpck_error *err);
/* The ops' extents and close. */
int fsdpck_safetensors_extents(struct fsdpck_source *src, size_t ordinal, const uint64_t *offset, const uint64_t *size,
                               fsdpck_extent_fn visit, void *ctx, struct fsdpck_error *err);
void fsdpck_safetensors_close(struct fsdpck_source *src);

#endif
