/* SPDX-License-Identifier: Apache-2.0 */
/* Computes the content id of rows that arrive in pieces of any length. */
#ifndef CKPT_ROWS_H
#define CKPT_ROWS_H

#include "base/hash.h"

#include <fsdpck/error.h>

struct fsdpck_rows {
    struct fsdpck_hasher *hasher; /* state of a row that has arrived in part */
    uint64_t row_nbytes;
    uint64_t row;    /* the current row */
    uint64_t within; /* bytes of it that have arrived */
    struct fsdpck_content sum;
};

int fsdpck_rows_init(struct fsdpck_rows *r, struct fsdpck_error *err);
/* Begins at the start of row `first`. row_nbytes > 0. */
void fsdpck_rows_begin(struct fsdpck_rows *r, uint64_t row_nbytes, uint64_t first);
void fsdpck_rows_add(struct fsdpck_rows *r, const uint8_t *data, uint64_t nbytes);
void fsdpck_rows_free(struct fsdpck_rows *r);

#endif
