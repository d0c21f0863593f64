/* SPDX-License-Identifier: Apache-2.0 */
/* A model in a safetensors file and in checkpoints of it, and random reads of both, checked against a copy of single
 * elements. For cmocka tests. */
#ifndef TESTS_READ_CASE_H
#define TESTS_READ_CASE_H

#include <fsdpck/convert.h>

#include "model.h"

enum { READ_CASE_GUARD = 0xa5 }; /* bytes of memory that a read must not change */

/* Fill in model, then call read_case_write(). */
struct read_case {
    char *root, *file, *out; /* directory, model.safetensors, checkpoint */
    struct model model;
    struct fsdpck_io io;
    struct fsdpck_options opt;
};

/* Makes the directory and the safetensors file. */
void read_case_write(struct read_case *p);
void read_case_free(struct read_case *p);
/* Opens a source with p->opt. The caller closes it. */
struct fsdpck_source *read_case_open(const struct read_case *p, const char *path);
/* Converts the model to a checkpoint on this mesh. */
void read_case_convert(struct read_case *p, const struct fsdpck_mesh *mesh, const struct fsdpck_placement_rule *rules,
                       size_t nrules, bool compress);
/* Plans and reads n (at most 6) random boxes at once, into memory of random strides, and compares every byte. */
void read_case_check(struct fsdpck_source *src, const struct model *m, uint64_t *rng, size_t n);
/* For struct fsdpck_io: reports that nothing is in the page cache, on any file system, so that reads bypass it. */
int64_t read_case_nothing_cached(void *ctx, int fd, void *buf, uint64_t nbytes, uint64_t offset);

#endif
