/* SPDX-License-Identifier: Apache-2.0 */
/* Casts, sums, SwiGLU, row gather and scatter, dropout. */
#include "harness.h"
#include "philox_ref.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    int64_t nrow, ncol;
} shapes[] = { { 1, 1 }, { 7, 5 }, { 300, 33 }, { 3, 2104 }, { 3, 2100 }, { 1, 20000 }, { 5000, 1 } };
enum { NSHAPE = sizeof(shapes) / sizeof(shapes[0]) };

static double silu(double x)
{
    return x / (1 + exp(-x));
}

static void sums(struct rig *rig, int64_t nrow, int64_t ncol)
{
    struct matrix a = matrix_random(rig, nrow, ncol, rig->dtype, 1), b = matrix_random(rig, nrow, ncol, KERN_F32, 1),
                  y = matrix_new(nrow, ncol, rig->dtype);
    double *want = zeros(nrow * ncol), *scaled = zeros(nrow * ncol);
    for (int64_t i = 0; i < nrow * ncol; i++) {
        want[i] = at(&a, i / ncol, i % ncol) + at(&b, i / ncol, i % ncol);
        scaled[i] = at(&b, i / ncol, i % ncol) * -0.75;
    }
    rig->ops->add(rig->stream, view(&y), cview(&a), cview(&b), nrow, ncol);
    check_matrix(rig, &y, want, 1e-7, "a + b");
    rig->ops->add(rig->stream, view(&b), cview(&a), cview(&b), nrow, ncol);
    check_matrix(rig, &b, want, 1e-7, "b += a");
    rig->ops->add(rig->stream, view(&a), cview(&a), cview(&y), nrow, ncol);
    struct matrix c = matrix_random(rig, nrow, ncol, KERN_F32, 1);
    for (int64_t i = 0; i < nrow * ncol; i++)
        scaled[i] = at(&c, i / ncol, i % ncol) * -0.75;
    rig->ops->scale(rig->stream, view(&y), cview(&c), -0.75f, nrow, ncol);
    check_matrix(rig, &y, scaled, 1e-7, "scale");
    must_free(want), must_free(scaled);
    matrix_free(&a), matrix_free(&b), matrix_free(&c), matrix_free(&y);
}

static void swiglu(struct rig *rig, int64_t nrow, int64_t ncol)
{
    struct matrix g = matrix_random(rig, nrow, ncol, rig->dtype, 12), u = matrix_random(rig, nrow, ncol, rig->dtype, 2);
    struct matrix dy = matrix_random(rig, nrow, ncol, rig->dtype, 1), y = matrix_new(nrow, ncol, rig->dtype);
    double *want = zeros(nrow * ncol), *dgate = zeros(nrow * ncol), *dup = zeros(nrow * ncol);
    put(&g, 0, 0, -120); /* beyond exp's range */
    for (int64_t i = 0; i < nrow * ncol; i++) {
        double x = at(&g, i / ncol, i % ncol), up = at(&u, i / ncol, i % ncol), d = at(&dy, i / ncol, i % ncol),
               s = 1 / (1 + exp(-x));
        want[i] = silu(x) * up;
        dup[i] = d * silu(x);
        dgate[i] = d * up * s * (1 + x * (1 - s));
    }
    rig->ops->swiglu(rig->stream, view(&y), cview(&g), cview(&u), nrow, ncol);
    check_matrix(rig, &y, want, 1e-6, "swiglu");
    struct kern_swiglu_grad r = { nrow, ncol, cview(&g), cview(&u), cview(&dy), view(&g), view(&u), view(&dy) };
    rig->ops->swiglu_grad(rig->stream, &r);
    check_matrix(rig, &g, dgate, 1e-6, "dgate over gate");
    check_matrix(rig, &u, dup, 1e-6, "dup over up");
    check_matrix(rig, &dy, want, 1e-6, "y anew over dy");
    must_free(want), must_free(dgate), must_free(dup);
    matrix_free(&g), matrix_free(&u), matrix_free(&dy), matrix_free(&y);
}

static void sum_rows(struct rig *rig, int64_t nrow, int64_t ncol)
{
    struct matrix x = matrix_random(rig, nrow, ncol, rig->dtype, 1);
    double *want = zeros(ncol), *total = zeros(1), want_total = 0;
    float *dst = float_zeros(ncol), *scratch = float_zeros(kern_sum_rows_scratch(nrow, ncol)),
          *column = float_zeros(nrow);
    for (int64_t j = 0; j < ncol; j++) {
        dst[j] = 3;
        want[j] = 3;
        for (int64_t i = 0; i < nrow; i++)
            want[j] += at(&x, i, j);
    }
    rig->ops->sum_rows(rig->stream, dst, cview(&x), nrow, ncol, scratch);
    check_floats(rig, dst, ncol, want, 2e-6, "sum of rows");
    for (int64_t i = 0; i < nrow; i++)
        want_total += (double)(column[i] = (float)at(&x, i, 0));
    rig->ops->sum(rig->stream, total, column, nrow);
    assert_true(fabs(*total - want_total) <= 1e-12 * (double)nrow);
    must_free(want), must_free(dst), must_free(scratch), must_free(column), must_free(total);
    matrix_free(&x);
}

static void elementwise(struct rig *rig)
{
    for (int i = 0; i < NSHAPE; i++) {
        sums(rig, shapes[i].nrow, shapes[i].ncol);
        swiglu(rig, shapes[i].nrow, shapes[i].ncol);
        sum_rows(rig, shapes[i].nrow, shapes[i].ncol);
    }
}

enum { NTOK = 150, NVOCAB = 40 };

static int32_t *choose(struct rig *rig)
{
    int32_t *index = must_alloc(NTOK * sizeof(*index));
    for (int i = 0; i < NTOK; i++)
        index[i] = (int32_t)((rig_uniform(rig) + 1) / 2 * NVOCAB);
    return index;
}

static void embedding(struct rig *rig, int64_t dim)
{
    struct matrix w = matrix_random(rig, NVOCAB, dim, rig->dtype, 1), y = matrix_new(NTOK, dim, rig->dtype),
                  dy = matrix_random(rig, NTOK, dim, rig->dtype, 1);
    struct matrix dw = matrix_random(rig, NVOCAB, dim, KERN_F32, 1);
    int32_t *index = choose(rig);
    double *want = zeros(NTOK * dim), *want_dw = zeros(NVOCAB * dim);
    for (int64_t i = 0; i < NVOCAB * dim; i++)
        want_dw[i] = at(&dw, i / dim, i % dim);
    for (int64_t i = 0; i < NTOK * dim; i++) {
        want[i] = at(&w, index[i / dim], i % dim);
        want_dw[index[i / dim] * dim + i % dim] += at(&dy, i / dim, i % dim);
    }
    rig->ops->gather_rows(rig->stream, view(&y), cview(&w), index, NTOK, dim, NVOCAB);
    check_matrix(rig, &y, want, 0, "gather");
    rig->ops->scatter_add(rig->stream, view(&dw), cview(&dy), index, NTOK, dim, NVOCAB);
    check_matrix(rig, &dw, want_dw, 1e-6, "scatter");
    must_free(want), must_free(want_dw), must_free(index);
    matrix_free(&w), matrix_free(&y), matrix_free(&dy), matrix_free(&dw);
}

/* The same through a transposed matrix, as LoRA's A of an embedding. */
static void embedding_cols(struct rig *rig)
{
    enum { R = 4 };
    struct matrix a = matrix_random(rig, R, NVOCAB, rig->dtype, 1), s = matrix_new(NTOK, R, rig->dtype),
                  ds = matrix_random(rig, NTOK, R, rig->dtype, 1);
    struct matrix da = matrix_random(rig, R, NVOCAB, KERN_F32, 1);
    int32_t *index = choose(rig);
    double want[NTOK * R], want_da[R * NVOCAB];
    for (int i = 0; i < R * NVOCAB; i++)
        want_da[i] = at(&da, i / NVOCAB, i % NVOCAB);
    for (int i = 0; i < NTOK * R; i++) {
        want[i] = at(&a, i % R, index[i / R]);
        want_da[i % R * NVOCAB + index[i / R]] += at(&ds, i / R, i % R);
    }
    rig->ops->gather_cols(rig->stream, view(&s), cview(&a), index, NTOK, R, NVOCAB);
    check_matrix(rig, &s, want, 0, "gather columns");
    rig->ops->scatter_add_cols(rig->stream, view(&da), cview(&ds), index, NTOK, R, NVOCAB);
    check_matrix(rig, &da, want_da, 1e-6, "scatter columns");
    must_free(index);
    matrix_free(&a), matrix_free(&s), matrix_free(&ds), matrix_free(&da);
}

static void indices(struct rig *rig)
{
    char message[KERN_MESSAGE_BYTES];
    embedding(rig, 72);
    embedding(rig, 1301); /* more than a block of threads adds in one pass */
    embedding_cols(rig);
    /* a bad index is reported at the next synchronisation; until then, later kernels do nothing */
    struct matrix w = matrix_random(rig, 3, 4, rig->dtype, 1), y = matrix_random(rig, 2, 4, rig->dtype, 1),
                  before = matrix_copy(&y);
    int32_t *bad = must_alloc(2 * sizeof(*bad)), *good = must_alloc(2 * sizeof(*good));
    bad[0] = good[0] = 0, bad[1] = 3, good[1] = 2;
    rig->ops->gather_rows(rig->stream, view(&y), cview(&w), bad, 2, 4, 3);
    rig->ops->gather_rows(rig->stream, view(&y), cview(&w), good, 2, 4, 3);
    assert_memory_equal(y.data, before.data, (size_t)(2 * y.pitch * kern_dtype_bytes(y.dtype)));
    assert_int_equal(rig->device->stream_status(rig->stream, message), KERN_ERR_ARG);
    assert_int_equal(rig->device->stream_sync(rig->stream, message), KERN_ERR_ARG);
    assert_string_equal(message, "row 1: index 3 is not one of 3");
    assert_int_equal(rig->device->stream_sync(rig->stream, message), 0);
    must_free(bad), must_free(good);
    matrix_free(&w), matrix_free(&y), matrix_free(&before);
}

static void dropout(struct rig *rig)
{
    enum { NROW = 9, NCOL = 1500 };
    struct matrix x = matrix_random(rig, NROW, NCOL, rig->dtype, 1), y = matrix_new(NROW, NCOL, rig->dtype);
    struct kern_dropout d = {
        .p = 0.3f, .rng = { 0x123456789abcdefu, 17, 0xdeadbeef }, .token0 = ((int64_t)1 << 33) + 1, .width = 1501
    };
    double *want = zeros(NROW * NCOL), *uniform = zeros(NROW * NCOL);
    int64_t dropped = 0;
    for (int64_t i = 0; i < NROW * NCOL; i++) {
        want[i] = at(&x, i / NCOL, i % NCOL) * dropout_ref(&d, i / NCOL, i % NCOL);
        dropped += want[i] == 0;
        uniform[i] = -2 + 3 * uniform_ref(&d.rng, 7 + (uint64_t)i);
    }
    assert_in_range(dropped, NROW * NCOL * 27 / 100, NROW * NCOL * 33 / 100);
    rig->ops->dropout(rig->stream, view(&y), cview(&x), NROW, NCOL, &d);
    check_matrix(rig, &y, want, 1e-6, "dropout");
    struct kern_rng_offset *rng_offset = must_alloc(sizeof(*rng_offset));
    *rng_offset = (struct kern_rng_offset){ .token0 = 1000, .step = 3 };
    struct kern_dropout from = d;
    from.token0 -= rng_offset->token0, from.rng.step -= rng_offset->step, from.rng_offset = rng_offset;
    rig->ops->dropout(rig->stream, view(&y), cview(&x), NROW, NCOL, &from);
    check_matrix(rig, &y, want, 1e-6, "dropout at an rng offset");
    must_free(rng_offset);
    float *u = float_zeros(NROW * NCOL);
    rig->ops->uniform(rig->stream, u, NROW * NCOL, d.rng, 7, -2, 1);
    check_floats(rig, u, NROW * NCOL, uniform, 1e-6, "uniform");
    must_free(want), must_free(uniform), must_free(u);
    matrix_free(&x), matrix_free(&y);
}

/* A column whose elements lie apart, as one of the rows of a transposed matrix; what lies between them stays. */
static void columns(struct rig *rig)
{
    enum { NROW = 3000, PITCH = 7 };
    struct matrix x = matrix_random(rig, NROW, PITCH, rig->dtype, 1),
                  y = matrix_random(rig, NROW, PITCH, rig->dtype, 1);
    double *want = zeros(NROW * PITCH);
    struct kern_mat to = view(&y);
    struct kern_cmat from = cview(&x);
    const int64_t nbytes = kern_dtype_bytes(rig->dtype);
    to.data = (char *)to.data + 2 * nbytes;
    from.data = (const char *)from.data + 5 * nbytes;
    for (int64_t i = 0; i < NROW * PITCH; i++)
        want[i] = i % PITCH == 2 ? 2 * at(&x, i / PITCH, 5) : at(&y, i / PITCH, i % PITCH);
    rig->ops->cast(rig->stream, to, from, NROW, 1);
    rig->ops->add(rig->stream, to, kern_const(to), from, NROW, 1);
    check_matrix(rig, &y, want, 1e-7, "a column");
    must_free(want);
    matrix_free(&x), matrix_free(&y);
}

/* Special fp32 values: ties, the largest, infinities, NaN, subnormals. */
static void casts(struct rig *rig)
{
    static const uint32_t from[] = {
        0x3f800000, 0x3f808000, 0x3f818000, 0x3f808001, 0x3f807fff, 0x7f7fffff, 0x7f800000,
        0xff800000, 0x00000001, 0x00008000, 0x00018000, 0x80008001, 0x7f800001, 0xffffffff
    };
    static const uint16_t to[] = { 0x3f80, 0x3f80, 0x3f82, 0x3f81, 0x3f80, 0x7f80, 0x7f80,
                                   0xff80, 0x0000, 0x0000, 0x0002, 0x8001, 0x7fc0, 0xffff };
    enum { N = sizeof(to) / sizeof(to[0]) };
    uint16_t *got = must_alloc(sizeof(to));
    uint32_t *values = must_alloc(sizeof(from)), *back = must_alloc(sizeof(from));
    memcpy(values, from, sizeof(from));
    struct kern_mat narrow = { got, N, KERN_BF16 }, wide = { back, N, KERN_F32 };
    rig->ops->cast(rig->stream, narrow, (struct kern_cmat){ values, N, KERN_F32 }, 1, N);
    rig->ops->cast(rig->stream, wide, kern_const(narrow), 1, N);
    for (int i = 0; i < N; i++) {
        const bool nan = (from[i] & 0x7fffffff) > 0x7f800000; /* any NaN is accepted */
        if (nan ? (got[i] & 0x7fff) <= 0x7f80 : got[i] != to[i])
            fail_msg("%08x became %04x, wanted %04x", from[i], got[i], to[i]);
        assert_int_equal(back[i], (uint32_t)got[i] << 16);
    }
    must_free(got), must_free(values), must_free(back);
}

#define TEST(name) \
    static void test_##name(void **state) \
    { \
        (void)state; \
        rig_run_all(name); \
    }
TEST(elementwise)
TEST(indices)
TEST(dropout)
TEST(columns)
TEST(casts)

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_elementwise), cmocka_unit_test(test_indices),
                                        cmocka_unit_test(test_dropout), cmocka_unit_test(test_columns),
                                        cmocka_unit_test(test_casts) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
