/* SPDX-License-Identifier: Apache-2.0 */
/* DoRA against fp64: norms, scaling, and the gradient of the magnitude. */
#include "harness.h"

#include <math.h>
#include <stdlib.h>

enum { NROW = 150, NIN = 1100, NOUT = 45, R = 5 };

static float *random_floats(struct rig *rig, int64_t n)
{
    float *x = float_zeros(n);
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(1.5 + rig_uniform(rig));
    return x;
}

static void norms(struct rig *rig)
{
    struct matrix w = matrix_random(rig, NOUT, NIN, rig->dtype, 1), a = matrix_random(rig, R, NIN, rig->dtype, 1),
                  b = matrix_random(rig, NOUT, R, rig->dtype, 1);
    struct kern_dora_norm d = { .nrow = NOUT,
                                .ncol = NIN,
                                .scale = 0.7f,
                                .w = cview(&w),
                                .a = cview(&a),
                                .b = cview(&b),
                                .norm = float_zeros(NOUT) };
    double *want = zeros(NOUT);
    for (d.r = 0; d.r <= R; d.r += R) {
        for (int64_t i = 0; i < NOUT; i++) {
            double sum = 0;
            for (int64_t j = 0; j < NIN; j++) {
                double x = at(&w, i, j);
                for (int64_t k = 0; k < d.r; k++)
                    x += (double)d.scale * at(&b, i, k) * at(&a, k, j);
                sum += x * x;
            }
            want[i] = sqrt(sum);
        }
        rig->ops->dora_norm(rig->stream, &d);
        check_floats(rig, d.norm, NOUT, want, 1e-6, d.r ? "norms" : "norms of W");
    }
    must_free(want), must_free(d.norm);
    matrix_free(&w), matrix_free(&a), matrix_free(&b);
}

/* With and without bias and `add`; the last overwrites `add`. */
static void scales(struct rig *rig)
{
    struct matrix u = matrix_random(rig, NROW, NOUT, rig->dtype, 1), bias = matrix_random(rig, 1, NOUT, rig->dtype, 1),
                  add = matrix_random(rig, NROW, NOUT, rig->dtype, 1);
    struct matrix y = matrix_new(NROW, NOUT, rig->dtype);
    float *m = random_floats(rig, NOUT), *norm = random_floats(rig, NOUT);
    double *want = zeros(NROW * NOUT);
    for (int how = 0; how < 3; how++) {
        const struct kern_cmat none = { NULL, 0, KERN_F32 };
        const struct kern_dora_scale d = { .nrow = NROW,
                                           .ncol = NOUT,
                                           .m = m,
                                           .norm = norm,
                                           .minus = how == 2,
                                           .u = cview(&u),
                                           .bias = how ? cview(&bias) : none,
                                           .add = how ? cview(&add) : none,
                                           .y = how == 2 ? view(&add) : view(&y) };
        for (int64_t i = 0; i < NROW * NOUT; i++) {
            const int64_t row = i / NOUT, col = i % NOUT;
            want[i] = ((double)m[col] / (double)norm[col] - (how == 2)) * at(&u, row, col) +
                      (how ? at(&bias, 0, col) + at(&add, row, col) : 0);
        }
        rig->ops->dora_scale(rig->stream, &d);
        check_matrix(rig, how == 2 ? &add : &y, want, 2e-6, "scaled");
    }
    must_free(want), must_free(m), must_free(norm);
    matrix_free(&u), matrix_free(&bias), matrix_free(&add), matrix_free(&y);
}

static void gradients(struct rig *rig)
{
    struct matrix u = matrix_random(rig, NROW, NOUT, rig->dtype, 1), dy = matrix_random(rig, NROW, NOUT, rig->dtype, 1);
    float *norm = random_floats(rig, NOUT), *dm = float_zeros(NOUT),
          *scratch = float_zeros(kern_sum_rows_scratch(NROW, NOUT));
    const struct kern_dora_grad d = {
        .nrow = NROW, .ncol = NOUT, .dy = cview(&dy), .u = cview(&u), .norm = norm, .dm = dm, .scratch = scratch
    };
    double *want = zeros(NOUT);
    want[3] = dm[3] = 1;
    for (int64_t i = 0; i < NROW * NOUT; i++)
        want[i % NOUT] += at(&dy, i / NOUT, i % NOUT) * at(&u, i / NOUT, i % NOUT) / (double)norm[i % NOUT];
    rig->ops->dora_grad(rig->stream, &d);
    check_floats(rig, dm, NOUT, want, 2e-6, "dm");
    must_free(want), must_free(norm), must_free(dm), must_free(scratch);
    matrix_free(&u), matrix_free(&dy);
}

static void all(struct rig *rig)
{
    norms(rig);
    scales(rig);
    gradients(rig);
}

static void test_dora(void **state)
{
    (void)state;
    rig_run_all(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_dora) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
