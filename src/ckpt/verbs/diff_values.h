/* SPDX-License-Identifier: Apache-2.0 */
/* Compares two dense runs of elements, bit for bit or by value. Pure. */
#ifndef CKPT_DIFF_VALUES_H
#define CKPT_DIFF_VALUES_H

#include <fsdpck/dtype.h>

struct fsdpck_value_diff {
    uint64_t ndifferent;
    double max_abs; /* infinity if only one of two values is NaN */
};

/* Returns whether values of both can be compared: one value per element on both sides, or the same dtype. */
bool fsdpck_dtype_comparable(enum fsdpck_dtype a, enum fsdpck_dtype b);
/* Adds to *out. tolerance < 0: elements differ if their bits do (both of the same dtype); otherwise if their values
 * differ by more than tolerance, with NaN equal to NaN. */
void fsdpck_values_compare(enum fsdpck_dtype a_dtype, const void *a, enum fsdpck_dtype b_dtype, const void *b,
                           uint64_t nelem, double tolerance, struct fsdpck_value_diff *out);

#endif
