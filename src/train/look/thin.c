/* SPDX-License-Identifier: Apache-2.0 */
/* Fewer points for a curve, without losing its extremes. */
#include <math.h>
#include <train/history.h>

/* Adds the values of [begin, end) that must be seen. */
static size_t thin_stretch(const double *values, size_t begin, size_t end, size_t *kept)
{
    size_t least = end, greatest = end, gap = end, n = 0;
    for (size_t i = begin; i < end; i++) {
        if (isnan(values[i])) {
            gap = gap == end ? i : gap;
            continue;
        }
        least = least == end || values[i] < values[least] ? i : least;
        greatest = greatest == end || values[i] > values[greatest] ? i : greatest;
    }
    for (size_t i = begin; i < end; i++)
        if (i == least || i == greatest || i == gap)
            kept[n++] = i;
    return n;
}

size_t train_curve_thin(const struct train_curve *curve, size_t npoints, size_t *kept)
{
    const size_t count = curve->count;
    size_t n = 0;
    if (count <= npoints) {
        for (; n < count; n++)
            kept[n] = n;
        return n;
    }
    const size_t nstretches = (npoints - 2) / 3;
    kept[n++] = 0;
    for (size_t k = 0; k < nstretches; k++)
        n += thin_stretch(curve->values, 1 + (count - 2) * k / nstretches, 1 + (count - 2) * (k + 1) / nstretches,
                          kept + n);
    kept[n++] = count - 1;
    return n;
}
