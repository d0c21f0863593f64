/* SPDX-License-Identifier: Apache-2.0 */
/* A tensor of random elements, cut into chunks that lie in files in memory in every way that a format allows: a source
 * for targets that test the engine. The input decides everything. */
#ifndef TESTS_FUZZ_STORED_H
#define TESTS_FUZZ_STORED_H

#include "../support/memory_io.h"
#include "../support/model.h"
#include "engine/source_impl.h"
#include "fuzz.h"

enum { FUZZ_MAX_BOXES = 81, FUZZ_NFILES = 2, FUZZ_FILE_NBYTES = 512 << 10, FUZZ_TENSOR_NBYTES = 160 << 10 };

struct fuzz_box {
    uint64_t offset[MODEL_MAX_DIMS], size[MODEL_MAX_DIMS]; /* (ndim) */
};

/* Makes boxes that fill the tensor: every dimension is cut into up to three parts. Returns their number; 0 for an empty
 * tensor. */
size_t fuzz_cut(const struct model_tensor *t, struct fuzz_bytes *in, struct fuzz_box boxes[FUZZ_MAX_BOXES]);

struct fuzz_chunk {
    struct fuzz_box box;
    uint64_t strides[MODEL_MAX_DIMS];
    struct fsdpck_extent extent; /* points into the arrays above */
};

struct fuzz_stored {
    struct model model;
    const struct model_tensor *t; /* its only tensor */
    struct fuzz_chunk chunks[FUZZ_MAX_BOXES];
    size_t nchunks;
    uint8_t *files[FUZZ_NFILES];
    uint64_t ends[FUZZ_NFILES];
    struct memory_io m;
    struct fsdpck_source *src;
};

void fuzz_stored_make(struct fuzz_stored *s, struct fuzz_bytes *in);
void fuzz_stored_free(struct fuzz_stored *s);

#endif
