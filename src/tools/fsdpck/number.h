/* SPDX-License-Identifier: Apache-2.0 */
/* Formats one element with the fewest digits that give the same bits back in its dtype. */
#ifndef TOOLS_NUMBER_H
#define TOOLS_NUMBER_H

#include <fsdpck/dtype.h>

enum { NUMBER_NBYTES = 80 }; /* enough for every element */

enum number_style {
    NUMBER_TEXT, /* as numpy prints: 1.  0.5  1.e-07  nan  True  1.+2.j; FLOAT4 pairs as (0.5 1.) */
    NUMBER_JSON  /* 1.0  0.5  1.0e-07  "NaN"  true  [1.0,2.0]; FLOAT4 pairs as [0.5,1.0] */
};

/* element: little-endian, any alignment. Returns buf. */
char *number_format(enum fsdpck_dtype dtype, const void *element, enum number_style style, char buf[NUMBER_NBYTES]);

#endif
