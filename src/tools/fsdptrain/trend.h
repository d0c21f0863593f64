/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the loss falls: the mean of its last values against the mean of those before. */
#ifndef TOOLS_TREND_H
#define TOOLS_TREND_H

#include <stddef.h>

enum { TREND_WINDOW = 32, TREND_NBYTES = 24 };

/* The change from the values before to the last TREND_WINDOW ones, as "-3.1%"; with fewer values, between their
 * halves. "" if there are fewer than 4 values, or one is not finite. values: (count), the last ones counting. */
const char *trend_format(const double *values, size_t count, char text[TREND_NBYTES]);

#endif
