/* SPDX-License-Identifier: Apache-2.0 */
/* The request of a transfer: the selection of a source, the output files and chunks, and the casts and edits between
 * them. */
#ifndef CKPT_TRANSFER_PLAN_H
#define CKPT_TRANSFER_PLAN_H

#include <fsdpck/convert.h>

#include "base/hash.h"
#include "base/out_files.h"
#include "base/planes.h"
#include "engine/selection.h"
#include "engine/source_impl.h"

/* A dense row-major box of a selected tensor, stored at bytes [payload, payload + nbytes) of a file. */
struct fsdpck_out_chunk {
    uint32_t tensor; /* position in the selection; never an alias */
    uint32_t file;
    const uint64_t *offset, *size; /* (ndim) elements */
    uint64_t payload;
    uint64_t hashes; /* file offset that gets the XXH3-128 of each 64 KiB block; 0: not hashed */
    bool compressed; /* hashes then gets the blocks' records, see packer.h */
    struct fsdpck_planes planes;
    /* Filled in by the transfer if hashes != 0: */
    uint32_t crc32;
    bool has_content; /* set if whole rows were written: content is this chunk's part of the tensor's content id */
    struct fsdpck_content content;
};

struct fsdpck_transfer_content;

/* Inspects tensors in transit, or changes them. Several threads call it at the same time. */
struct fsdpck_edit {
    void *ctx;
    /* Called once before and once after the tensors, by one thread, and may refuse. Either may be NULL. */
    int (*begin)(void *ctx, const struct fsdpck_selection *selection, struct fsdpck_error *err);
    int (*end)(void *ctx, struct fsdpck_error *err);
    /* Returns whether the tensor (position in the selection) must pass through apply. */
    bool (*wants)(void *ctx, uint32_t tensor);
    /* `in` holds elements [begin, begin + nelem) of the tensor, in row-major order and in the source's dtype; apply
     * fills `out` in the selection's dtype. Any range, any order; an element may occur more than once. */
    int (*apply)(void *ctx, uint32_t tensor, uint64_t begin, uint64_t nelem, const void *in, void *out,
                 struct fsdpck_error *err);
};

struct fsdpck_transfer {
    struct fsdpck_source *src;
    const struct fsdpck_selection *selection;
    const struct fsdpck_out_file *files;
    size_t nfiles;
    struct fsdpck_out_chunk *chunks; /* sorted by tensor */
    size_t nchunks;
    bool compress;                    /* some chunks are compressed */
    const struct fsdpck_options *opt; /* resolved (fsdpck_source_options), or NULL: the source's */
    const struct fsdpck_edit *edit;   /* NULL: bytes are only copied or cast */
    /* Filled in for each tensor of the selection, if whole rows were written without a cast. (ntensors), in the
     * caller's memory; may be NULL. */
    struct fsdpck_transfer_content *contents;
};

struct fsdpck_transfer_content {
    bool known;
    struct fsdpck_content content;
};

#endif
