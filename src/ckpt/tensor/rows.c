/* SPDX-License-Identifier: Apache-2.0 */
/* Computes the content id of rows. Hashes whole rows in place; only a row that spans two calls goes through the
 * streaming state. */
#include "tensor/rows.h"

#include <fsdpck/tensor.h>

int fsdpck_rows_init(struct fsdpck_rows *r, struct fsdpck_error *err)
{
    *r = (struct fsdpck_rows){ .hasher = fsdpck_hasher_new() };
    return r->hasher ? 0 : fsdpck_error_nomem(err, 0);
}

void fsdpck_rows_begin(struct fsdpck_rows *r, uint64_t row_nbytes, uint64_t first)
{
    r->row_nbytes = row_nbytes;
    r->row = first;
    r->within = 0;
    r->sum = (struct fsdpck_content){ 0 };
}

/* Adds part of a row: the rest of the row that has begun, or the start of a row that does not end in this piece. */
static uint64_t add_part(struct fsdpck_rows *r, const uint8_t *data, uint64_t nbytes)
{
    uint64_t left = r->row_nbytes - r->within, n = nbytes < left ? nbytes : left;
    if (r->within == 0)
        fsdpck_hasher_row_begin(r->hasher, r->row);
    fsdpck_hasher_add(r->hasher, data, n);
    r->within += n;
    if (r->within == r->row_nbytes) {
        fsdpck_hasher_row_end(r->hasher, &r->sum);
        r->within = 0;
        r->row++;
    }
    return n;
}

void fsdpck_rows_add(struct fsdpck_rows *r, const uint8_t *data, uint64_t nbytes)
{
    uint64_t at = 0;
    if (r->within)
        at = add_part(r, data, nbytes);
    for (; nbytes - at >= r->row_nbytes; at += r->row_nbytes)
        fsdpck_content_add_row(&r->sum, data + at, r->row_nbytes, r->row++);
    if (at < nbytes)
        add_part(r, data + at, nbytes - at);
}

void fsdpck_rows_free(struct fsdpck_rows *r)
{
    fsdpck_hasher_free(r->hasher);
    r->hasher = NULL;
}

void fsdpck_content_of_rows(const void *rows, uint64_t row_nbytes, uint64_t first, uint64_t nrow, uint8_t out[16])
{
    struct fsdpck_content sum = { 0 };
    for (uint64_t i = 0; i < nrow; i++)
        fsdpck_content_add_row(&sum, (const uint8_t *)rows + i * row_nbytes, row_nbytes, first + i);
    fsdpck_content_store(&sum, out);
}
