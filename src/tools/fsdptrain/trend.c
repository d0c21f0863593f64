/* SPDX-License-Identifier: Apache-2.0 */
#include "trend.h"

#include <math.h>
#include <stdio.h>

static double mean(const double *values, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += values[i];
    return sum / (double)count;
}

const char *trend_format(const double *values, size_t count, char text[TREND_NBYTES])
{
    const size_t n = count / 2 < TREND_WINDOW ? count / 2 : TREND_WINDOW;
    *text = '\0';
    if (n < 2)
        return text;
    const double before = mean(values + count - 2 * n, n), change = mean(values + count - n, n) - before;
    if (isfinite(before) && isfinite(change) && before != 0)
        snprintf(text, TREND_NBYTES, "%+.1f%%", 100 * change / fabs(before));
    return text;
}
