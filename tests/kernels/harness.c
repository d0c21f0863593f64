/* SPDX-License-Identifier: Apache-2.0 */
/* See harness.h. */
#include "harness.h"

#include "../support/sanitized.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

uint64_t rig_run_once(rig_test test, struct kern_pool *pool, enum kern_dtype dtype,
                      void (*prepare)(struct kern_stream *, const void *), const void *ctx)
{
    char message[KERN_MESSAGE_BYTES];
    struct rig rig = { .device = rig_device(), .dtype = dtype, .random = 42 };
    assert_non_null(rig.device);
    rig.ops = rig.device->ops;
    rig.slow = SANITIZED || strcmp(rig.device->name, "cuda-shim") == 0;
    assert_int_equal(rig.device->stream_new(0, pool, &rig.stream, message), 0);
    if (prepare)
        prepare(rig.stream, ctx);
    test(&rig);
    check_stream(&rig);
    rig.device->stream_free(rig.stream);
    return rig.hash;
}

static uint64_t next_random(struct rig *rig)
{
    uint64_t x = (rig->random += 0x9e3779b97f4a7c15u); /* splitmix64 */
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

double rig_uniform(struct rig *rig)
{
    return (double)(next_random(rig) >> 11) * 0x1p-52 - 1;
}

double *zeros(int64_t n)
{
    double *p = must_alloc((size_t)n * sizeof(*p));
    memset(p, 0, (size_t)n * sizeof(*p));
    return p;
}

float *float_zeros(int64_t n)
{
    float *p = must_alloc((size_t)n * sizeof(*p));
    memset(p, 0, (size_t)n * sizeof(*p));
    return p;
}

/* Rows start at multiples of 16 bytes if ncol is a multiple of eight, so that kernels use 16-byte accesses; otherwise
 * not. */
struct matrix matrix_new(int64_t nrow, int64_t ncol, enum kern_dtype dtype)
{
    struct matrix m = { nrow, ncol, ncol + (ncol % 8 ? 5 : 8), dtype, NULL };
    size_t nbytes = (size_t)(nrow * m.pitch * kern_dtype_bytes(dtype));
    m.data = must_alloc(nbytes);
    memset(m.data, 0x7b, nbytes);
    return m;
}

struct matrix matrix_random(struct rig *rig, int64_t nrow, int64_t ncol, enum kern_dtype dtype, double scale)
{
    struct matrix m = matrix_new(nrow, ncol, dtype);
    for (int64_t i = 0; i < nrow; i++)
        for (int64_t j = 0; j < ncol; j++)
            put(&m, i, j, rig_uniform(rig) * scale);
    return m;
}

struct matrix matrix_copy(const struct matrix *m)
{
    struct matrix c = matrix_new(m->nrow, m->ncol, m->dtype);
    memcpy(c.data, m->data, (size_t)(m->nrow * m->pitch * kern_dtype_bytes(m->dtype)));
    return c;
}

void matrix_free(struct matrix *m)
{
    const int64_t width = kern_dtype_bytes(m->dtype);
    for (int64_t i = 0; i < m->nrow; i++)
        for (int64_t j = m->ncol * width; j < m->pitch * width; j++)
            if (((const unsigned char *)m->data)[i * m->pitch * width + j] != 0x7b)
                fail_msg("row %lld: something was written behind it", (long long)i);
    must_free(m->data);
    m->data = NULL;
}

ONE_THREAD double at(const struct matrix *m, int64_t row, int64_t col)
{
    int64_t i = row * m->pitch + col;
    if (m->dtype == KERN_F32)
        return (double)((const float *)m->data)[i];
    uint32_t bits = (uint32_t)((const uint16_t *)m->data)[i] << 16;
    float x;
    memcpy(&x, &bits, sizeof(x));
    return (double)x;
}

/* bf16 by truncation, because an input may have any value. */
void put(struct matrix *m, int64_t row, int64_t col, double value)
{
    int64_t i = row * m->pitch + col;
    float x = (float)value;
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    if (m->dtype == KERN_F32)
        ((float *)m->data)[i] = x;
    else
        ((uint16_t *)m->data)[i] = (uint16_t)(bits >> 16);
}

struct kern_mat view(const struct matrix *m)
{
    return (struct kern_mat){ m->data, m->pitch, m->dtype };
}

struct kern_cmat cview(const struct matrix *m)
{
    return (struct kern_cmat){ m->data, m->pitch, m->dtype };
}

static void stir(struct rig *rig, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    rig->hash = (rig->hash ^ bits) * 1099511628211u;
    rig->hash ^= rig->hash >> 29;
}

/* Largest |want|, at least 0.1: operands are near 1, so where the result should be 0, rounding is not. */
static double largest(const double *want, int64_t n)
{
    double top = 0.1;
    for (int64_t i = 0; i < n; i++)
        top = fmax(top, fabs(want[i]));
    return top;
}

static void check_one(struct rig *rig, double got, double want, double allowed, const char *what, long long row,
                      long long col)
{
    stir(rig, got);
    if (!(fabs(got - want) <= allowed))
        fail_msg("%s[%lld][%lld]: %.9g, wanted %.9g within %.3g", what, row, col, got, want, allowed);
}

void check_matrix(struct rig *rig, const struct matrix *m, const double *want, double tolerance, const char *what)
{
    const double top = largest(want, m->nrow * m->ncol);
    for (int64_t i = 0; i < m->nrow; i++)
        for (int64_t j = 0; j < m->ncol; j++) {
            double w = want[i * m->ncol + j], rounding = m->dtype == KERN_BF16 ? fabs(w) * 0x1p-8 : 0;
            check_one(rig, at(m, i, j), w, tolerance * top + rounding, what, i, j);
        }
}

void check_floats(struct rig *rig, const float *x, int64_t n, const double *want, double tolerance, const char *what)
{
    const double top = largest(want, n);
    for (int64_t i = 0; i < n; i++)
        check_one(rig, (double)x[i], want[i], tolerance * top, what, 0, i);
}

void check_stream(struct rig *rig)
{
    char message[KERN_MESSAGE_BYTES];
    if (rig->device->stream_sync(rig->stream, message) != 0)
        fail_msg("stream: %s", message);
}
