/* SPDX-License-Identifier: Apache-2.0 */
/* RMSNorm, q/k-norm and rotary positions against fp64. */
#include "harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct shape {
    int64_t nrow, ngroup, ncol;
};
/* Groups of few columns, of as many as part of a warp or a warp processes in one pass, and of more than a block keeps
 * in registers. */
static const struct shape shapes[] = { { 1, 1, 1 },   { 5, 1, 7 },    { 130, 1, 576 }, { 3, 1, 2500 }, { 200, 3, 20 },
                                       { 7, 3, 128 }, { 40, 2, 100 }, { 6, 1, 200 },   { 3, 1, 4100 }, { 2, 1, 8300 } };
enum { NSHAPE = sizeof(shapes) / sizeof(shapes[0]) };

static const double eps = 1e-5;

static double rstd_of(const struct matrix *x, struct shape s, int64_t row, int64_t group)
{
    double sum = 0;
    for (int64_t j = 0; j < s.ncol; j++)
        sum += pow(at(x, row, group * s.ncol + j), 2);
    return 1 / sqrt(sum / (double)s.ncol + (double)(float)eps);
}

static void forward_one(struct rig *rig, struct shape s, bool in_place)
{
    struct matrix x = matrix_random(rig, s.nrow, s.ngroup * s.ncol, rig->dtype, 2),
                  gamma = matrix_random(rig, 1, s.ncol, rig->dtype, 1);
    struct matrix y = in_place ? x : matrix_new(s.nrow, s.ngroup * s.ncol, rig->dtype);
    double *want = zeros(s.nrow * s.ngroup * s.ncol), *want_rstd = zeros(s.nrow * s.ngroup);
    for (int64_t i = 0; i < s.nrow * s.ngroup; i++) {
        want_rstd[i] = rstd_of(&x, s, i / s.ngroup, i % s.ngroup);
        for (int64_t j = 0; j < s.ncol; j++)
            want[i * s.ncol + j] = at(&x, i / s.ngroup, i % s.ngroup * s.ncol + j) * want_rstd[i] * at(&gamma, 0, j);
    }
    float *rstd = float_zeros(s.nrow * s.ngroup);
    struct kern_rmsnorm r = { s.nrow, s.ngroup, s.ncol, cview(&x), cview(&gamma), (float)eps, view(&y), rstd };
    rig->ops->rmsnorm(rig->stream, &r);
    check_matrix(rig, &y, want, 1e-6, "y");
    check_floats(rig, rstd, s.nrow * s.ngroup, want_rstd, 1e-6, "rstd");
    must_free(want), must_free(want_rstd), must_free(rstd);
    matrix_free(&gamma);
    if (!in_place)
        matrix_free(&y);
    matrix_free(&x);
}

static void forward(struct rig *rig)
{
    for (int i = 0; i < NSHAPE; i++) {
        forward_one(rig, shapes[i], false);
        forward_one(rig, shapes[i], true);
    }
}

/* The expected results in fp64, by the formulas of norm.h. */
static void grad_reference(struct shape s, const struct matrix *x, const struct matrix *dy, const struct matrix *gamma,
                           const struct matrix *add, double *dx, double *dgamma)
{
    for (int64_t i = 0; i < s.nrow * s.ngroup; i++) {
        const int64_t row = i / s.ngroup, col0 = i % s.ngroup * s.ncol;
        double rstd = rstd_of(x, s, row, i % s.ngroup), mean = 0;
        for (int64_t j = 0; j < s.ncol; j++)
            mean += at(dy, row, col0 + j) * at(gamma, 0, j) * at(x, row, col0 + j) * rstd / (double)s.ncol;
        for (int64_t j = 0; j < s.ncol; j++) {
            double xh = at(x, row, col0 + j) * rstd;
            dx[i * s.ncol + j] = rstd * (at(dy, row, col0 + j) * at(gamma, 0, j) - xh * mean) + at(add, row, col0 + j);
            dgamma[j] += at(dy, row, col0 + j) * xh;
        }
    }
}

static void grad_one(struct rig *rig, struct shape s)
{
    const int64_t ncol = s.ngroup * s.ncol;
    struct matrix x = matrix_random(rig, s.nrow, ncol, rig->dtype, 2),
                  dy = matrix_random(rig, s.nrow, ncol, rig->dtype, 1);
    struct matrix gamma = matrix_random(rig, 1, s.ncol, rig->dtype, 1),
                  add = matrix_random(rig, s.nrow, ncol, rig->dtype, 1), dx = matrix_copy(&dy);
    double *want = zeros(s.nrow * ncol), *want_gamma = zeros(s.ncol);
    float *rstd = float_zeros(s.nrow * s.ngroup), *dgamma = float_zeros(s.ncol),
          *scratch = float_zeros(kern_rmsnorm_scratch(s.nrow, s.ncol));
    for (int64_t j = 0; j < s.ncol; j++)
        want_gamma[j] = dgamma[j] = 0.5f;
    for (int64_t i = 0; i < s.nrow * s.ngroup; i++)
        rstd[i] = (float)rstd_of(&x, s, i / s.ngroup, i % s.ngroup);
    grad_reference(s, &x, &dy, &gamma, &add, want, want_gamma);
    struct kern_rmsnorm_grad r = { .nrow = s.nrow,
                                   .ngroup = s.ngroup,
                                   .ncol = s.ncol,
                                   .x = cview(&x),
                                   .dy = cview(&dx),
                                   .gamma = cview(&gamma),
                                   .rstd = rstd,
                                   .add = cview(&add),
                                   .dx = view(&dx),
                                   .dgamma = dgamma,
                                   .scratch = scratch };
    rig->ops->rmsnorm_grad(rig->stream, &r);
    check_matrix(rig, &dx, want, 3e-6, "dx over dy");
    check_floats(rig, dgamma, s.ncol, want_gamma, 3e-6, "dgamma");

    /* gamma is frozen; `add` is dx's memory */
    r.dy = cview(&dy);
    r.add = cview(&add);
    r.dx = view(&add);
    r.dgamma = NULL;
    rig->ops->rmsnorm_grad(rig->stream, &r);
    check_matrix(rig, &add, want, 3e-6, "dx over add");
    must_free(want), must_free(want_gamma), must_free(rstd), must_free(dgamma), must_free(scratch);
    struct matrix *all[] = { &x, &dy, &gamma, &add, &dx };
    for (size_t i = 0; i < 5; i++)
        matrix_free(all[i]);
}

static void grad(struct rig *rig)
{
    for (int i = 0; i < NSHAPE; i++)
        grad_one(rig, shapes[i]);
}

enum { NROW = 37, NHEAD = 3, NPOS = 50 };

static void rope_dim(struct rig *rig, int64_t dim, int64_t rotary, bool adjacent)
{
    struct kern_rope params = { .kind = KERN_ROPE_DEFAULT, .dim = rotary, .theta = 10000 };
    struct matrix x = matrix_random(rig, NROW, NHEAD * dim, rig->dtype, 1), before = matrix_copy(&x);
    float *cosines = float_zeros(NPOS * rotary / 2), *sines = float_zeros(NPOS * rotary / 2);
    double *scratch = zeros(rotary / 2), *want = zeros(NROW * NHEAD * dim);
    int32_t *positions = must_alloc(NROW * sizeof(*positions));
    kern_rope_tables(&params, NPOS, cosines, sines, scratch);
    for (int64_t i = 0; i < NROW; i++) {
        positions[i] = (int32_t)(i * 7 % NPOS);
        for (int64_t h = 0; h < NHEAD; h++) {
            double *head = want + (i * NHEAD + h) * dim;
            for (int64_t j = 0; j < rotary / 2; j++) {
                double angle = (double)positions[i] * pow(10000, -2.0 * (double)j / (double)rotary);
                const int64_t a = adjacent ? 2 * j : j, b = adjacent ? 2 * j + 1 : rotary / 2 + j;
                double low = at(&x, i, h * dim + a), high = at(&x, i, h * dim + b);
                head[a] = low * cos(angle) - high * sin(angle);
                head[b] = high * cos(angle) + low * sin(angle);
            }
            for (int64_t j = rotary; j < dim; j++)
                head[j] = at(&x, i, h * dim + j);
        }
    }
    struct kern_rope_apply r = { NROW, NHEAD, dim, rotary, view(&x), cosines, sines, positions, false, adjacent };
    rig->ops->rope(rig->stream, &r);
    check_matrix(rig, &x, want, 1e-6, "rope");
    /* the inverse of a rotation is its transpose, which the gradient needs */
    for (int64_t i = 0; i < NROW * NHEAD * dim; i++)
        want[i] = at(&before, i / (NHEAD * dim), i % (NHEAD * dim));
    r.inverse = true;
    rig->ops->rope(rig->stream, &r);
    check_matrix(rig, &x, want, rig->dtype == KERN_BF16 ? 1e-2 : 1e-6, "rope and back");
    must_free(cosines), must_free(sines), must_free(scratch), must_free(want), must_free(positions);
    matrix_free(&x);
    matrix_free(&before);
}

static void rope(struct rig *rig)
{
    rope_dim(rig, 2, 2, false);
    rope_dim(rig, 2, 2, true);
    rope_dim(rig, 22, 22, false);
    rope_dim(rig, 22, 22, true);
    rope_dim(rig, 64, 64, false);
    rope_dim(rig, 64, 64, true);
    rope_dim(rig, 64, 32, false);
    rope_dim(rig, 64, 32, true);
    rope_dim(rig, 22, 6, false);
    rope_dim(rig, 22, 6, true);
    rope_dim(rig, 700, 620, false);
    rope_dim(rig, 700, 620, true);
}

/* inv_freq of transformers 5 (float32 there) for head_dim 16, theta 10000, and each scaling; original context 64. */
struct scaling {
    struct kern_rope rope;
    double factor;
    double inv_freq[8];
};

static void test_scalings(void **state)
{
    (void)state;
#include "rope_scalings.inc"
    for (size_t i = 0; i < sizeof(scalings) / sizeof(scalings[0]); i++) {
        double inv_freq[8], factor = kern_rope_frequencies(&scalings[i].rope, inv_freq);
        assert_true(fabs(factor - scalings[i].factor) < 1e-6);
        for (int j = 0; j < 8; j++)
            if (fabs(inv_freq[j] - scalings[i].inv_freq[j]) > 1e-6 * scalings[i].inv_freq[j])
                fail_msg("scaling %zu, frequency %d: %.9g, wanted %.9g", i, j, inv_freq[j], scalings[i].inv_freq[j]);
    }
}

static void test_forward(void **state)
{
    (void)state;
    rig_run_all(forward);
}

static void test_grad(void **state)
{
    (void)state;
    rig_run_all(grad);
}

static void test_rope(void **state)
{
    (void)state;
    rig_run_all(rope);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_forward), cmocka_unit_test(test_grad),
                                        cmocka_unit_test(test_rope), cmocka_unit_test(test_scalings) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
