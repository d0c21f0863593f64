/* SPDX-License-Identifier: Apache-2.0 */
/* Random models for tests: tensors with their bytes in memory, a safetensors file of them, and an element-by-element
 * reference for readers and writers. Of the library it uses only the list of element types. All functions abort on a
 * system error. */
#ifndef TESTS_MODEL_H
#define TESTS_MODEL_H

#include <fsdpck/source.h>

#define MODEL_MAX_DIMS 4

struct model_tensor {
    char name[48];
    enum fsdpck_dtype dtype;
    uint32_t ndim;
    uint64_t shape[MODEL_MAX_DIMS];
    uint64_t item, nelem, nbytes; /* item: bytes of an element */
    uint8_t *data;                /* dense, row-major */
};

struct model {
    struct model_tensor *tensors; /* (ntensors) */
    size_t ntensors;
};

uint64_t model_random(uint64_t *state);            /* any state begins a sequence */
uint64_t model_below(uint64_t *state, uint64_t n); /* 0 … n-1 */
/* A tensor of random bytes, named "t<number>.weight". */
struct model_tensor *model_add(struct model *m, uint64_t *state, enum fsdpck_dtype dtype, uint32_t ndim,
                               const uint64_t *shape);
/* Any dtype of safetensors, 0 to 4 dimensions, sometimes empty; at most about max_nbytes. */
struct model_tensor *model_add_random(struct model *m, uint64_t *state, uint64_t max_nbytes);
void model_free(struct model *m);

void model_write_safetensors(const struct model *m, const char *path);
/* Computes the content id row by row, as FORMAT.md defines it. */
void model_content(const struct model_tensor *t, uint8_t out[16]);
/* Copies a box to strided memory, one element (or dense row) at a time. */
void model_get_box(const struct model_tensor *t, const uint64_t *offset, const uint64_t *size, uint8_t *dst,
                   const int64_t *strides);
/* Limits the highest byte of the elements to few values in every other tensor, like weights, so that it can be
 * compressed. */
void model_calm(struct model *m);
/* Reads every tensor through the library. Returns NULL, or the name of the first one that is missing or differs. */
const char *model_differs(const struct model *m, struct fsdpck_source *src, struct fsdpck_error *err);

/* The POSIX table without fsync, which only costs time unless a test simulates crashes. */
struct fsdpck_io model_fast_io(void);

#endif
