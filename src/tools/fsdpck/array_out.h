/* SPDX-License-Identifier: Apache-2.0 */
/* Prints an array element by element, nested in brackets, as it comes in row-major order. */
#ifndef TOOLS_ARRAY_OUT_H
#define TOOLS_ARRAY_OUT_H

#include <fsdpck/tensor.h>

#include "number.h"

enum { ARRAY_EDGE = 3 }; /* elements at each end of a dimension that is cut short */

/* Fill dtype, style, ndim, shape, cut; zero the rest. */
struct array_out {
    enum fsdpck_dtype dtype;
    enum number_style style;
    uint32_t ndim;
    uint64_t shape[FSDPCK_MAX_DIMS]; /* as printed: 2*ARRAY_EDGE where cut */
    bool cut[FSDPCK_MAX_DIMS];       /* "..." stands between the first and the last ARRAY_EDGE */
    size_t left, right,
        plain; /* columns before the point, from it on, and of what has none (integers, nan); 0: not aligned */
    uint64_t at[FSDPCK_MAX_DIMS]; /* index of the next element */
    bool begun;
};

/* Columns so that these elements align. */
void array_out_measure(struct array_out *o, const void *data, uint64_t nelem);
void array_out_print(struct array_out *o, const void *data, uint64_t nelem);
void array_out_finish(struct array_out *o); /* closing brackets; "[]" where there was no element */

#endif
