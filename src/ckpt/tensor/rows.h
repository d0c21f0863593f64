/* SPDX-License-Identifier: Apache-2.0 */
/* The content id of rows that pass by in pieces of any length. */
#ifndef CKPT_ROWS_H
#define CKPT_ROWS_H

#include "base/hash.h"

#include <fsdpck/error.h>

struct fsdpck_rows {
    struct fsdpck_hasher *hasher; /* of a row that came in pieces so far */
    uint64_t row_nbytes;
    uint64_t row;    /* being read */
    uint64_t within; /* bytes of it that passed */
    struct fsdpck_content sum;
};

int fsdpck_rows_init(struct fsdpck_rows *r, struct fsdpck_error *err);
/* From the beginning of row `first` on. row_nbytes > 0. */
void fsdpck_rows_begin(struct fsdpck_rows *r, uint64_t row_nbytes, uint64_t first);
void fsdpck_rows_add(struct fsdpck_rows *r, const uint8_t *data, uint64_t nbytes);
void fsdpck_rows_free(struct fsdpck_rows *r);

#endif
