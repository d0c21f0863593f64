/* SPDX-License-Identifier: Apache-2.0 */
/* Products against fp64: layouts, odd shapes, sums, bias, low-rank segments with dropout. */
#include "harness.h"
#include "philox_ref.h"

#include <stdlib.h>
#include <string.h>

/* (nrow, ncol) dense: the matrix, or its transpose. */
static double *widened(const struct matrix *m, bool trans, int64_t nrow, int64_t ncol)
{
    double *out = zeros(nrow * ncol);
    for (int64_t i = 0; i < nrow; i++)
        for (int64_t j = 0; j < ncol; j++)
            out[i * ncol + j] = trans ? at(m, j, i) : at(m, i, j);
    return out;
}

/* Both are widened first: at() would cost most of the time. */
ONE_THREAD static void reference(double *want, const struct matrix *a, bool trans_a, const struct matrix *b,
                                 bool trans_b, int64_t m, int64_t n, int64_t k, double alpha)
{
    double *rows = widened(a, trans_a, m, k), *cols = widened(b, !trans_b, n, k);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;
            for (int64_t l = 0; l < k; l++)
                sum += rows[i * k + l] * cols[j * k + l];
            want[i * n + j] += alpha * sum;
        }
    must_free(rows);
    must_free(cols);
}

struct shape {
    int64_t m, n, k;
};

static void add_rest(double *want, const struct matrix *add, const struct matrix *bias)
{
    for (int64_t i = 0; i < add->nrow; i++)
        for (int64_t j = 0; j < add->ncol; j++)
            want[i * add->ncol + j] += at(add, i, j) + at(bias, 0, j);
}

/* A GPU rounds a bf16 C after each part. */
static void check_parts(struct rig *rig, const struct matrix *c, const double *want, int nparts)
{
    const bool by_part = c->dtype == KERN_BF16 && strncmp(rig->device->name, "cuda", 4) == 0;
    check_matrix(rig, c, want, 2e-6 + (by_part ? (nparts - 1) * 0x1p-8 : 0), "c");
}

static void one_plain(struct rig *rig, struct shape s, bool trans_a, bool trans_b, enum kern_dtype out, bool accumulate)
{
    struct matrix a = matrix_random(rig, trans_a ? s.k : s.m, trans_a ? s.m : s.k, rig->dtype, 1);
    struct matrix b = matrix_random(rig, trans_b ? s.n : s.k, trans_b ? s.k : s.n, rig->dtype, 1);
    struct matrix c = matrix_random(rig, s.m, s.n, out, 1);
    double *want = zeros(s.m * s.n);
    for (int64_t i = 0; accumulate && i < s.m * s.n; i++)
        want[i] = at(&c, i / s.n, i % s.n);
    reference(want, &a, trans_a, &b, trans_b, s.m, s.n, s.k, 1);
    struct kern_gemm g = { .m = s.m,
                           .n = s.n,
                           .k = s.k,
                           .a = cview(&a),
                           .b = cview(&b),
                           .c = view(&c),
                           .trans_a = trans_a,
                           .trans_b = trans_b,
                           .alpha = 1 };
    if (accumulate)
        g.add = cview(&c);
    rig->ops->gemm(rig->stream, &g);
    check_matrix(rig, &c, want, 2e-6, "c");
    must_free(want);
    matrix_free(&a);
    matrix_free(&b);
    matrix_free(&c);
}

static void plain(struct rig *rig)
{
    static const struct shape shapes[] = { { 1, 1, 1 },      { 3, 5, 7 },     { 64, 48, 33 },
                                           { 130, 257, 19 }, { 300, 16, 70 }, { 16, 300, 130 },
                                           { 5, 270, 1100 }, { 1030, 70, 2 }, { 2, 3, 0 } };
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        for (int layout = 0; layout < 3; layout++)
            for (int accumulate = 0; accumulate < 2; accumulate++) {
                one_plain(rig, shapes[i], layout == 2, layout == 1, KERN_F32, accumulate);
                one_plain(rig, shapes[i], layout == 2, layout == 1, KERN_BF16, accumulate);
            }
}

/* The kinds differ, though all have the same shapes, so a library's cached choice for one must not serve another. sum:
 * 0 none, 1 C itself, 2 another matrix, with longer rows. */
static void one_kind(struct rig *rig, bool trans_a, bool trans_b, int sum, bool with_bias)
{
    enum { N = 24 };
    struct matrix a = matrix_random(rig, N, N, rig->dtype, 1), b = matrix_random(rig, N, N, rig->dtype, 1),
                  c = matrix_random(rig, N, N, rig->dtype, 1);
    struct matrix other = matrix_random(rig, N, N + 16, rig->dtype, 1), bias = matrix_random(rig, 1, N, rig->dtype, 1);
    const struct matrix *add = sum == 2 ? &other : &c;
    double *want = zeros(N * N);
    for (int64_t i = 0; i < N * N; i++)
        want[i] = (sum ? at(add, i / N, i % N) : 0) + (with_bias ? at(&bias, 0, i % N) : 0);
    reference(want, &a, trans_a, &b, trans_b, N, N, N, 1);
    struct kern_gemm g = { .m = N,
                           .n = N,
                           .k = N,
                           .a = cview(&a),
                           .b = cview(&b),
                           .c = view(&c),
                           .trans_a = trans_a,
                           .trans_b = trans_b,
                           .alpha = 1 };
    if (sum)
        g.add = cview(add);
    if (with_bias)
        g.bias = cview(&bias);
    rig->ops->gemm(rig->stream, &g);
    check_matrix(rig, &c, want, 2e-6, "c");
    must_free(want);
    struct matrix *all[] = { &a, &b, &c, &other, &bias };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        matrix_free(all[i]);
}

static void one_shape(struct rig *rig)
{
    for (int layout = 0; layout < 3; layout++)
        for (int sum = 2; sum >= 0; sum--)
            for (int with_bias = 0; with_bias < 2; with_bias++)
                one_kind(rig, layout == 2, layout == 1, sum, with_bias);
}

/* More shapes than the cache of primitives holds, then the first ones again. */
static void many_shapes(struct rig *rig)
{
    for (int64_t i = 0; i < 400; i++) {
        int64_t width = i % 320;
        one_plain(rig, (struct shape){ 8 + width % 16, 8 + width / 16, 8 }, false, false, KERN_F32, false);
    }
}

/* Every strategy of our packed products: transposed, several strips, blocks of rows; with partial tiles, strips and
 * units. */
static void variants(struct rig *rig)
{
    static const struct shape shapes[] = { { 64, 200, 64 },  { 70, 530, 66 },  { 513, 65, 34 }, { 700, 1100, 10 },
                                           { 100, 90, 130 }, { 110, 17, 131 }, { 16, 330, 70 }, { 1, 1, 2 } };
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        for (int layout = 0; layout < 3; layout++)
            one_plain(rig, shapes[i], layout == 2, layout == 1, layout == 2 ? KERN_F32 : rig->dtype, layout == 2);
}

/* Like a layer with adapters: all rows, no mask, several parts, a bias, a sum; few rows and many. */
static void layer(struct rig *rig, int64_t m, bool trans_b)
{
    enum { N = 150, K = 40, R = 6, R2 = 70 };
    struct matrix x = matrix_random(rig, m, K, rig->dtype, 1),
                  w = matrix_random(rig, trans_b ? N : K, trans_b ? K : N, rig->dtype, 1);
    struct matrix s = matrix_random(rig, m, R, rig->dtype, 1),
                  b = matrix_random(rig, trans_b ? N : R, trans_b ? R : N, rig->dtype, 1);
    struct matrix s2 = matrix_random(rig, m, R2, rig->dtype, 1),
                  b2 = matrix_random(rig, trans_b ? N : R2, trans_b ? R2 : N, rig->dtype, 1);
    struct matrix add = matrix_random(rig, m, N, rig->dtype, 1), bias = matrix_random(rig, 1, N, rig->dtype, 1),
                  c = matrix_new(m, N, rig->dtype);
    struct kern_lowrank low[2] = {
        { .nrow = m, .r = R, .s = cview(&s), .b = cview(&b), .trans_b = trans_b, .alpha = 1 },
        { .nrow = m, .r = R2, .s = cview(&s2), .b = cview(&b2), .trans_b = trans_b, .alpha = 1 }
    };
    double *want = zeros(m * N);
    reference(want, &x, false, &w, trans_b, m, N, K, 1);
    reference(want, &s, false, &b, trans_b, m, N, R, 1);
    reference(want, &s2, false, &b2, trans_b, m, N, R2, 1);
    add_rest(want, &add, &bias);
    struct kern_gemm g = { .m = m,
                           .n = N,
                           .k = K,
                           .a = cview(&x),
                           .b = cview(&w),
                           .c = view(&c),
                           .trans_b = trans_b,
                           .alpha = 1,
                           .add = cview(&add),
                           .bias = cview(&bias),
                           .lowrank = low,
                           .nlowrank = 2 };
    rig->ops->gemm(rig->stream, &g);
    check_parts(rig, &c, want, 3);
    must_free(want);
    struct matrix *all[] = { &x, &w, &s, &b, &s2, &b2, &add, &bias, &c };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        matrix_free(all[i]);
}

static void layers(struct rig *rig)
{
    for (int64_t m = 20; m < 700; m += 300)
        for (int trans_b = 0; trans_b < 2; trans_b++)
            layer(rig, m, trans_b);
}

/* fp32 by bf16 and bf16 by fp32. */
static void mixed(struct rig *rig)
{
    struct matrix a = matrix_random(rig, 70, 40, KERN_F32, 1), b = matrix_random(rig, 33, 40, rig->dtype, 1),
                  c = matrix_new(70, 33, rig->dtype);
    double *want = zeros(70 * 33);
    reference(want, &a, false, &b, true, 70, 33, 40, 0.5);
    struct kern_gemm g = {
        .m = 70, .n = 33, .k = 40, .a = cview(&a), .b = cview(&b), .c = view(&c), .trans_b = true, .alpha = 0.5f
    };
    rig->ops->gemm(rig->stream, &g);
    check_matrix(rig, &c, want, 2e-6, "mixed c");
    must_free(want);
    matrix_free(&a);
    matrix_free(&b);
    matrix_free(&c);
}

/* Two segments with rows between and after them, one with dropout; a third that overlaps both; bias; a sum that is not
 * C. */
static void all_at_once(struct rig *rig)
{
    enum { M = 300, N = 90, K = 50, R = 6 };
    struct matrix x = matrix_random(rig, M, K, rig->dtype, 1), w = matrix_random(rig, N, K, rig->dtype, 1),
                  c = matrix_new(M, N, rig->dtype);
    struct matrix add = matrix_random(rig, M, N, rig->dtype, 1), bias = matrix_random(rig, 1, N, rig->dtype, 1);
    struct matrix s = matrix_random(rig, M, R, rig->dtype, 1), b0 = matrix_random(rig, N, R, rig->dtype, 1),
                  b1 = matrix_random(rig, R, N, KERN_F32, 1);
    struct kern_rng_offset *rng_offset = must_alloc(sizeof(*rng_offset));
    *rng_offset = (struct kern_rng_offset){ .token0 = 900, .step = 2 };
    struct kern_lowrank low[3] = {
        { .row0 = 10, .nrow = 200, .r = R, .s = cview(&s), .b = cview(&b0), .trans_b = true, .alpha = 2 },
        { .row0 = 250,
          .nrow = 31,
          .r = R,
          .s = cview(&s),
          .b = cview(&b1),
          .alpha = 0.25f,
          .dropout = { .p = 0.4f, .rng = { 7, 1, 11 }, .token0 = 100, .width = N, .rng_offset = rng_offset } },
        { .row0 = 100, .nrow = 160, .r = R, .s = cview(&s), .b = cview(&b0), .trans_b = true, .alpha = 1 },
    };
    double *want = zeros(M * N);
    reference(want, &x, false, &w, true, M, N, K, 1.5);
    for (int64_t i = 0; i < M; i++)
        for (int64_t j = 0; j < N; j++)
            for (int64_t l = 0; l < R; l++) {
                if (i >= 100 && i < 260)
                    want[i * N + j] += at(&s, i, l) * at(&b0, j, l);
                if (i >= 10 && i < 210)
                    want[i * N + j] += 2 * at(&s, i, l) * at(&b0, j, l);
                if (i >= 250 && i < 281)
                    want[i * N + j] += 0.25 * at(&s, i, l) * at(&b1, l, j) * dropout_ref(&low[1].dropout, i, j);
            }
    add_rest(want, &add, &bias);
    struct kern_gemm g = { .m = M,
                           .n = N,
                           .k = K,
                           .a = cview(&x),
                           .b = cview(&w),
                           .c = view(&c),
                           .trans_b = true,
                           .alpha = 1.5f,
                           .add = cview(&add),
                           .bias = cview(&bias),
                           .lowrank = low,
                           .nlowrank = 3 };
    rig->ops->gemm(rig->stream, &g);
    check_parts(rig, &c, want, 4);
    must_free(want), must_free(rng_offset);
    struct matrix *all[] = { &x, &w, &c, &add, &bias, &s, &b0, &b1 };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        matrix_free(all[i]);
}

static void test_plain(void **state)
{
    (void)state;
    rig_run_all(plain);
}

static void test_variants(void **state)
{
    (void)state;
    rig_run_all(variants);
}

static void test_layers(void **state)
{
    (void)state;
    rig_run_all(layers);
}

static void test_mixed(void **state)
{
    (void)state;
    rig_run_all(mixed);
}

static void test_one_shape(void **state)
{
    (void)state;
    rig_run_all(one_shape);
}

static void test_many_shapes(void **state)
{
    (void)state;
    rig_run_all(many_shapes);
}

static void test_all_at_once(void **state)
{
    (void)state;
    rig_run_all(all_at_once);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_plain),      cmocka_unit_test(test_variants),
                                        cmocka_unit_test(test_layers),     cmocka_unit_test(test_mixed),
                                        cmocka_unit_test(test_one_shape),  cmocka_unit_test(test_many_shapes),
                                        cmocka_unit_test(test_all_at_once) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
