/* SPDX-License-Identifier: Apache-2.0 */
/* AdamW, sums of squares, the exact sum, and Philox's known answers. */
#include "harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NELEM = 20011 };

static void adamw(struct rig *rig)
{
    float *p = float_zeros(NELEM), *m = float_zeros(NELEM), *v = float_zeros(NELEM), *g = float_zeros(NELEM);
    double *rp = zeros(NELEM), *rm = zeros(NELEM), *rv = zeros(NELEM);
    struct matrix rounded = matrix_new(1, NELEM, KERN_BF16);
    const struct kern_adamw_range range = { NELEM, p, m, v, g, 0.1, rounded.data };
    struct kern_adamw a = { &range, 1, 0.5, 1e-2, 0.9, 0.99, 1e-8, 0 };
    for (int i = 0; i < NELEM; i++)
        rp[i] = (double)(p[i] = (float)rig_uniform(rig));
    for (a.t = 1; a.t <= 4; a.t++) {
        for (int i = 0; i < NELEM; i++) {
            g[i] = i % 100 ? (float)rig_uniform(rig) : 0;
            double grad = (double)g[i] * a.grad_scale;
            rp[i] -= a.lr * range.weight_decay * rp[i];
            rm[i] = a.beta1 * rm[i] + (1 - a.beta1) * grad;
            rv[i] = a.beta2 * rv[i] + (1 - a.beta2) * grad * grad;
            rp[i] -= a.lr * (rm[i] / (1 - pow(a.beta1, (double)a.t))) /
                     (sqrt(rv[i] / (1 - pow(a.beta2, (double)a.t))) + a.eps);
        }
        rig->ops->adamw(rig->stream, &a);
    }
    check_floats(rig, p, NELEM, rp, 1e-6, "p");
    for (int i = 0; i < NELEM; i++)
        assert_true(fabs(at(&rounded, 0, i) - (double)p[i]) <= 0x1p-8 * fabs((double)p[i]));
    matrix_free(&rounded);
    check_floats(rig, m, NELEM, rm, 1e-6, "m");
    check_floats(rig, v, NELEM, rv, 1e-6, "v");
    must_free(p), must_free(m), must_free(v), must_free(g), must_free(rp), must_free(rm), must_free(rv);
}

static void sum_squares(struct rig *rig)
{
    struct matrix x = matrix_random(rig, 140, 2101, rig->dtype, 3);
    double *got = zeros(140);
    const struct kern_rows rows = { cview(&x), 140, 2101 };
    rig->ops->sum_squares(rig->stream, got, &rows, 1);
    for (int i = 0; i < 140; i++) {
        double want = 0;
        for (int j = 0; j < 2101; j++)
            want += pow(at(&x, i, j), 2);
        assert_true(fabs(got[i] - want) <= 1e-12 * want);
    }
    must_free(got);
    matrix_free(&x);
}

/* A list of ranges gives the same bits as its members one by one: random lengths, empty ranges, any alignment. Memory
 * between the ranges stays unchanged. */
enum { NRANGES = 150, LIST_NELEM = 1 << 16 };

static void make_ranges(struct rig *rig, float *const x[4], uint16_t *rounded, struct kern_adamw_range ranges[NRANGES])
{
    int64_t at = 0;
    for (int i = 0; i < NRANGES; i++) {
        const bool large = i % 40 == 7;
        int64_t nelem = (int64_t)(fabs(rig_uniform(rig)) * (large ? 9000 : 60)) * (i % 5 != 3),
                gap = (int64_t)(fabs(rig_uniform(rig)) * 12);
        ranges[i] = (struct kern_adamw_range){
            nelem, x[0] + at, x[1] + at, x[2] + at, x[3] + at, i % 3 ? 0 : 0.1, i % 4 ? rounded + at : NULL
        };
        at += nelem + gap;
    }
    assert_true(at <= LIST_NELEM);
}

static void adamw_list(struct rig *rig)
{
    float *x[2][4];
    uint16_t *rounded[2];
    struct kern_adamw_range ranges[2][NRANGES];
    const uint64_t seed = rig->random;
    for (int which = 0; which < 2; which++) {
        for (int k = 0; k < 4; k++)
            x[which][k] = float_zeros(LIST_NELEM);
        rig->random = seed;
        for (int i = 0; i < LIST_NELEM * 4; i++)
            x[which][i % 4][i / 4] = (float)(i % 4 == 2 ? fabs(rig_uniform(rig)) : rig_uniform(rig));
        rounded[which] = (uint16_t *)float_zeros(LIST_NELEM / 2);
        make_ranges(rig, x[which], rounded[which], ranges[which]);
    }
    struct kern_adamw a = { ranges[0], NRANGES, 0.5, 1e-2, 0.9, 0.99, 1e-8, 3 };
    rig->ops->adamw(rig->stream, &a);
    a.nranges = 1;
    for (int i = 0; i < NRANGES; i++) {
        a.ranges = &ranges[1][i];
        rig->ops->adamw(rig->stream, &a);
    }
    a.nranges = 0;
    rig->ops->adamw(rig->stream, &a);
    check_stream(rig);
    assert_memory_equal(rounded[0], rounded[1], LIST_NELEM * sizeof(uint16_t));
    must_free(rounded[0]), must_free(rounded[1]);
    for (int k = 0; k < 4; k++) {
        assert_memory_equal(x[0][k], x[1][k], LIST_NELEM * sizeof(float));
        must_free(x[0][k]), must_free(x[1][k]);
    }
}

static void sum_squares_list(struct rig *rig)
{
    enum { N = 100, MOST = 60 };
    struct matrix x[N];
    struct kern_rows list[N];
    double *together = zeros(N * MOST), *alone = zeros(N * MOST);
    int64_t at = 0;
    for (int i = 0; i < N; i++) {
        int64_t nrow = (int64_t)(fabs(rig_uniform(rig)) * (i % 9 ? 3 : MOST)),
                ncol = 1 + (int64_t)(fabs(rig_uniform(rig)) * (i % 7 ? 40 : 3000));
        x[i] = matrix_random(rig, nrow, ncol, i % 2 ? KERN_F32 : rig->dtype, 1);
        list[i] = (struct kern_rows){ cview(&x[i]), nrow, ncol };
    }
    rig->ops->sum_squares(rig->stream, together, list, N);
    for (int i = 0; i < N; i++) {
        rig->ops->sum_squares(rig->stream, alone + at, &list[i], 1);
        at += list[i].nrow;
    }
    check_stream(rig);
    assert_memory_equal(together, alone, N * MOST * sizeof(double));
    assert_true(at > N);
    for (int i = 0; i < N; i++)
        matrix_free(&x[i]);
    must_free(together), must_free(alone);
}

/* Results of torch 2.15 for p = [1, -2, 0.5], grads t·[0.1, -0.3, 0.002], lr 0.01, betas 0.9 and 0.999, eps 1e-8,
 * weight_decay 0.1, after 3 steps. */
static void test_torch(void **state)
{
    (void)state;
    char message[KERN_MESSAGE_BYTES];
    const struct kern_device *device = rig_device();
    struct kern_stream *stream;
    struct kern_pool *pool = kern_pool_new(1);
    assert_non_null(pool);
    assert_int_equal(device->stream_new(0, pool, &stream, message), 0);
    static const float want[3] = { 0.967800856f, -1.96480393f, 0.469299436f };
    float *p = float_zeros(3), *m = float_zeros(3), *v = float_zeros(3), *g = float_zeros(3);
    p[0] = 1, p[1] = -2, p[2] = 0.5f;
    for (int t = 1; t <= 3; t++) {
        g[0] = 0.1f * (float)t, g[1] = -0.3f * (float)t, g[2] = 0.002f * (float)t;
        const struct kern_adamw_range range = { 3, p, m, v, g, 0.1, NULL };
        const struct kern_adamw a = { &range, 1, 1, 0.01, 0.9, 0.999, 1e-8, t };
        device->ops->adamw(stream, &a);
    }
    for (int i = 0; i < 3; i++)
        assert_true(fabsf(p[i] - want[i]) < 2e-7f);
    must_free(p), must_free(m), must_free(v), must_free(g);
    device->stream_free(stream);
    kern_pool_free(pool);
}

/* Random123's kat_vectors: counter, key, result. */
static void test_philox(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } known[] = {
        { { 0, 0, 0, 0 }, { 0, 0 }, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
        { { 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff },
          { 0xffffffff, 0xffffffff },
          { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
        { { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 },
          { 0xa4093822, 0x299f31d0 },
          { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
    };
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        uint32_t out[4];
        kern_philox4x32(known[i].counter, known[i].key, out);
        assert_memory_equal(out, known[i].out, sizeof(out));
    }
}

/* The exact sum does not depend on how the numbers are distributed, and rounds once. */
static void test_exact(void **state)
{
    (void)state;
    static const struct {
        double x[4], sum;
    } known[] = {
        { { 0, 0, 0, 0 }, 0 },
        { { 0x1p-1074, 0, 0, 0 }, 0x1p-1074 },
        { { 0x1p-1074, 0x1p-1022, 0, 0 }, 0x1p-1022 + 0x1p-1074 },
        { { 1, 0x1p-53, 0, 0 }, 1 },                   /* a tie, to even */
        { { 1, 0x1p-53, 0x1p-1074, 0 }, 1 + 0x1p-52 }, /* just above a tie */
        { { 1 + 0x1p-52, 0x1p-53, 0, 0 }, 1 + 0x1p-51 },
        { { 1e300, 1, 1e-300, 1e300 }, 2e300 },
        { { 0x1.fffffffffffffp1023, 0x1.fffffffffffffp1023, 0, 0 }, INFINITY },
        { { 0.1, 0.2, 0.3, 0.4 }, 1.0 },
    };
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        struct kern_exact sum = { { 0 } };
        kern_exact_add(&sum, known[i].x, 4);
        if (kern_exact_value(&sum) != known[i].sum)
            fail_msg("%zu: %a, wanted %a", i, kern_exact_value(&sum), known[i].sum);
    }
    struct kern_exact bad = { { 0 } };
    kern_exact_add(&bad, &(double){ INFINITY }, 1);
    assert_true(isnan(kern_exact_value(&bad)));
}

static void test_exact_shares(void **state)
{
    (void)state;
    enum { N = 5000 };
    struct rig rig = { .random = 1 };
    double x[N];
    struct kern_exact whole = { { 0 } }, part[3] = { { { 0 } }, { { 0 } }, { { 0 } } }, added = { { 0 } };
    for (int i = 0; i < N; i++)
        x[i] = ldexp(fabs(rig_uniform(&rig)), (int)(rig_uniform(&rig) * 60));
    kern_exact_add(&whole, x, N);
    for (int i = N; i-- > 0;)
        kern_exact_add(&part[i % 3], &x[i], 1);
    for (int i = 0; i < 3; i++)
        for (int j = 0; j <= KERN_EXACT_LIMBS; j++)
            added.limb[j] += part[i].limb[j];
    double a = kern_exact_value(&whole), b = kern_exact_value(&added), sum = 0;
    assert_memory_equal(&a, &b, sizeof(a));
    for (int i = 0; i < N; i++)
        sum += x[i];
    assert_true(fabs(sum - a) <= 1e-12 * a);
}

static void test_adamw(void **state)
{
    (void)state;
    rig_run_all(adamw);
}

static void test_sum_squares(void **state)
{
    (void)state;
    rig_run_all(sum_squares);
}

static void test_lists(void **state)
{
    (void)state;
    rig_run_all(adamw_list);
    rig_run_all(sum_squares_list);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_adamw),       cmocka_unit_test(test_sum_squares),
                                        cmocka_unit_test(test_lists),       cmocka_unit_test(test_torch),
                                        cmocka_unit_test(test_philox),      cmocka_unit_test(test_exact),
                                        cmocka_unit_test(test_exact_shares) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
