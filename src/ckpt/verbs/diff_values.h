/* SPDX-License-Identifier: Apache-2.0 */
/* Comparing two dense runs of elements, bit for bit or by value. Pure. */
#ifndef CKPT_DIFF_VALUES_H
#define CKPT_DIFF_VALUES_H

#include <fsdpck/dtype.h>

struct fsdpck_value_diff {
    uint64_t ndifferent;
    double max_abs; /* infinity where one is NaN and the other not */
};

/* Whether values of both can be compared: one value an element on both sides, or the same dtype. */
bool fsdpck_dtype_comparable(enum fsdpck_dtype a, enum fsdpck_dtype b);
/* Adds up in *out. tolerance < 0: elements differ where their bits do (both of the same dtype); else where their values
 * differ by more, NaN being equal to NaN. */
void fsdpck_values_compare(enum fsdpck_dtype a_dtype, const void *a, enum fsdpck_dtype b_dtype, const void *b,
                           uint64_t nelem, double tolerance, struct fsdpck_value_diff *out);

#endif
