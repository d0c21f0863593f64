/* SPDX-License-Identifier: Apache-2.0 */
/* Reads rows of tensors from a source into the memory of a rank: straight to their destination where the host can
 * access it, otherwise through pinned memory, in loads. One load is read while the previous one is hashed and cast and
 * another is copied to the device. Several reads form one load, so that threads share them. */
#ifndef TRAIN_READS_H
#define TRAIN_READS_H

#include "rank/rank.h"

struct reads;

/* src is borrowed. */
int reads_new(const struct rank *r, struct fsdpck_source *src, struct reads **out, struct fsdpck_error *err);

struct reads_rows {
    const struct fsdpck_tensor *tensor;
    uint64_t first, nrow, ncol;
    void *dst;               /* of the device */
    enum fsdpck_dtype dtype; /* there */
    uint64_t *content; /* (4) limbs of the rows' content id, as they lie in the source, added to; NULL: not wanted */
};

/* How many bytes will be read, of the tensors as they lie: rank 0 then tells how far it is (TRAIN_LOADING). */
void reads_expect(struct reads *reads, uint64_t nbytes);
/* They are there after reads_end. */
int reads_add(struct reads *reads, const struct reads_rows *rows, struct fsdpck_error *err);
/* Does what is left unless rc says that something failed before, and frees. Returns rc, or the first failure. */
int reads_end(struct reads *reads, int rc, struct fsdpck_error *err);

#endif
