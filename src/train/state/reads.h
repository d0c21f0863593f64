/* SPDX-License-Identifier: Apache-2.0 */
/* Reads rows of tensors from a source into the memory of a rank: straight to their destination if the host can access
 * it, otherwise through pinned memory, in loads. While one load is read, the previous one is hashed and cast, and
 * another is copied to the device. A load consists of several reads, which the threads share. */
#ifndef TRAIN_READS_H
#define TRAIN_READS_H

#include "rank/rank.h"

struct reads;

/* src is borrowed. */
int reads_new(const struct rank *r, struct fsdpck_source *src, struct reads **out, struct fsdpck_error *err);

struct reads_rows {
    const struct fsdpck_tensor *tensor;
    uint64_t first, nrow, ncol;
    void *dst;               /* in the rank's memory, possibly on the device */
    enum fsdpck_dtype dtype; /* dtype of dst */
    uint64_t *
        content; /* (4) limbs, to which the content id of the rows as stored in the source is added; NULL: not wanted */
};

/* Announces the number of bytes in the source that will be read. Rank 0 then reports its progress (TRAIN_LOADING). */
void reads_expect(struct reads *reads, uint64_t nbytes);
/* Adds rows. Their contents are valid after reads_end(). */
int reads_add(struct reads *reads, const struct reads_rows *rows, struct fsdpck_error *err);
/* The same for rows of a trained parameter's fp32 state: rows->first, nrow and ncol are this rank's, dst and dtype are
 * set here. tree: as in a checkpoint. */
int reads_add_state(struct reads *reads, const struct param *p, int tree, const struct reads_rows *rows,
                    struct fsdpck_error *err);
/* Completes the remaining reads, unless rc reports an earlier failure, and frees `reads`. Returns rc, or the first
 * failure. */
int reads_end(struct reads *reads, int rc, struct fsdpck_error *err);

#endif
