/* SPDX-License-Identifier: Apache-2.0 */
/* Prints an array in nested brackets, element by element, in row-major order. */
#ifndef TOOLS_ARRAY_OUT_H
#define TOOLS_ARRAY_OUT_H

#include <fsdpck/tensor.h>

#include "number.h"

enum { ARRAY_EDGE = 3 }; /* elements shown at each end of a dimension that is abbreviated */

/* Fill dtype, style, ndim, shape, cut; zero the rest. */
struct array_out {
    enum fsdpck_dtype dtype;
    enum number_style style;
    uint32_t ndim;
    uint64_t shape[FSDPCK_MAX_DIMS]; /* as printed: 2*ARRAY_EDGE if cut */
    bool cut[FSDPCK_MAX_DIMS];       /* print "..." between the first and the last ARRAY_EDGE elements */
    size_t left, right, plain;    /* columns before the point, from the point on, and of numbers without one (integers,
                                     nan); 0: not aligned */
    uint64_t at[FSDPCK_MAX_DIMS]; /* index of the next element */
    bool begun;
};

/* Widens the columns so that these elements align. */
void array_out_measure(struct array_out *o, const void *data, uint64_t nelem);
void array_out_print(struct array_out *o, const void *data, uint64_t nelem);
void array_out_finish(struct array_out *o); /* closing brackets; "[]" if there was no element */

#endif
