/* SPDX-License-Identifier: Apache-2.0 */
/* Resampling as Pillow does it: first along rows, then along columns, each rounded to 8 bits, with weights in fixed
 * point. Bicubic: Keys 1981, "Cubic convolution interpolation", a = -1/2. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "pictures/pixels.h"

enum { BITS = 22 }; /* of a weight behind the point */

/* The pixels that one of the output is made of: first … first + n-1, with weights. */
struct taps {
    int64_t first, n;
    int32_t *weights; /* (most) */
};

struct filter {
    int64_t count, most;
    struct taps *taps; /* (count) */
    int32_t *weights;  /* (count, most) */
};

static double cubic(double x)
{
    const double a = -0.5;
    x = fabs(x);
    return x < 1 ? ((a + 2) * x - (a + 3)) * x * x + 1 : x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

static double linear(double x)
{
    x = fabs(x);
    return x < 1 ? 1 - x : 0;
}

struct kernel {
    double (*weight)(double x);
    double support; /* the distance from which it is 0 */
};

static const struct kernel kernels[] = { [PIXELS_BICUBIC] = { cubic, 2 }, [PIXELS_BILINEAR] = { linear, 1 } };

static void filter_free(struct filter *f)
{
    free(f->taps);
    free(f->weights);
}

static void fill_taps(const struct kernel *kernel, struct taps *t, int64_t i, int64_t from, double scale, double *raw)
{
    const double wide = scale > 1 ? scale : 1, support = kernel->support * wide, center = ((double)i + 0.5) * scale;
    double sum = 0;
    int64_t first = (int64_t)(center - support + 0.5), end = (int64_t)(center + support + 0.5);
    first = first < 0 ? 0 : first;
    end = end > from ? from : end;
    t->first = first;
    t->n = end - first;
    for (int64_t k = 0; k < t->n; k++)
        sum += raw[k] = kernel->weight(((double)(k + first) - center + 0.5) / wide);
    for (int64_t k = 0; k < t->n; k++) {
        const double w = (sum != 0 ? raw[k] / sum : raw[k]) * (double)(1 << BITS);
        t->weights[k] = (int32_t)(w < 0 ? w - 0.5 : w + 0.5);
    }
}

static int filter_new(const struct kernel *kernel, int64_t from, int64_t to, struct filter *out,
                      struct fsdpck_error *err)
{
    const double scale = (double)from / (double)to, wide = scale > 1 ? scale : 1;
    const int64_t most = 2 * (int64_t)ceil(kernel->support * wide) + 1;
    double *raw = malloc((size_t)most * sizeof *raw);
    *out = (struct filter){ .count = to,
                            .most = most,
                            .taps = calloc((size_t)to, sizeof *out->taps),
                            .weights = malloc((size_t)(to * most) * sizeof *out->weights) };
    if (!raw || !out->taps || !out->weights) {
        free(raw);
        filter_free(out);
        return fsdpck_error_nomem(err, (size_t)(to * most) * sizeof *out->weights);
    }
    for (int64_t i = 0; i < to; i++) {
        out->taps[i].weights = out->weights + i * most;
        fill_taps(kernel, &out->taps[i], i, from, scale, raw);
    }
    free(raw);
    return 0;
}

static uint8_t clip(int32_t sum)
{
    const int32_t v = sum >> BITS;
    return v < 0 ? 0 : v > 255 ? 255 : (uint8_t)v;
}

/* One value: taps apart by `step` bytes. */
static uint8_t apply(const struct taps *t, const uint8_t *x, int64_t step)
{
    int32_t sum = 1 << (BITS - 1);
    for (int64_t k = 0; k < t->n; k++)
        sum += x[(t->first + k) * step] * t->weights[k];
    return clip(sum);
}

static int along_rows(const struct pixels *p, int64_t width, const struct kernel *kernel, struct pixels *out,
                      struct fsdpck_error *err)
{
    struct filter f;
    int rc = filter_new(kernel, p->width, width, &f, err);
    if (rc)
        return rc;
    rc = pixels_new(p->height, width, NULL, out, err);
    for (int64_t y = 0; y < p->height && !rc; y++)
        for (int64_t x = 0; x < width; x++)
            for (int c = 0; c < 3; c++)
                out->rgb[(y * width + x) * 3 + c] = apply(&f.taps[x], p->rgb + y * p->width * 3 + c, 3);
    filter_free(&f);
    return rc;
}

static int along_columns(const struct pixels *p, int64_t height, const struct kernel *kernel, struct pixels *out,
                         struct fsdpck_error *err)
{
    const int64_t row = p->width * 3;
    struct filter f;
    int rc = filter_new(kernel, p->height, height, &f, err);
    if (rc)
        return rc;
    rc = pixels_new(height, p->width, NULL, out, err);
    for (int64_t y = 0; y < height && !rc; y++)
        for (int64_t x = 0; x < row; x++)
            out->rgb[y * row + x] = apply(&f.taps[y], p->rgb + x, row);
    filter_free(&f);
    return rc;
}

/* A direction that keeps its size is left alone. */
int pixels_resize(const struct pixels *p, int64_t height, int64_t width, enum pixels_filter filter, struct pixels *out,
                  struct fsdpck_error *err)
{
    const struct kernel *kernel = &kernels[filter];
    struct pixels rows = *p;
    int rc = width == p->width ? 0 : along_rows(p, width, kernel, &rows, err);
    if (!rc && height == p->height && rows.rgb == p->rgb) {
        rc = pixels_new(height, width, NULL, out, err);
        if (!rc)
            memcpy(out->rgb, p->rgb, (size_t)(height * width * 3));
        return rc;
    }
    if (!rc && height == p->height) {
        *out = rows;
        return 0;
    }
    if (!rc)
        rc = along_columns(&rows, height, kernel, out, err);
    if (rows.rgb != p->rgb)
        pixels_free(&rows);
    return rc;
}
