/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of models that make pictures against plain fp64 references. */
#include "harness.h"

#include <kernels/image.h>

#include <math.h>
#include <stdio.h>

static float *random_floats(struct rig *rig, int64_t n)
{
    float *x = float_zeros(n);
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)rig_uniform(rig);
    return x;
}

static void modulate_one(struct rig *rig, int64_t nrow, int64_t ncol, bool in_place)
{
    struct matrix x = matrix_random(rig, nrow, ncol, rig->dtype, 2),
                  y = in_place ? x : matrix_new(nrow, ncol, rig->dtype);
    float *shift = random_floats(rig, ncol), *scale = random_floats(rig, ncol);
    double *want = zeros(nrow * ncol);
    for (int64_t i = 0; i < nrow; i++) {
        double mean = 0, variance = 0;
        for (int64_t j = 0; j < ncol; j++)
            put(&x, i, j, at(&x, i, j) + 5), mean += at(&x, i, j) / (double)ncol;
        for (int64_t j = 0; j < ncol; j++)
            variance += pow(at(&x, i, j) - mean, 2) / (double)ncol;
        for (int64_t j = 0; j < ncol; j++)
            want[i * ncol + j] =
                (at(&x, i, j) - mean) / sqrt(variance + (double)1e-6f) * (1 + (double)scale[j]) + (double)shift[j];
    }
    const struct kern_modulate m = { nrow, ncol, cview(&x), shift, scale, 1e-6f, view(&y) };
    rig->device->images->modulate(rig->stream, &m);
    check_matrix(rig, &y, want, 3e-6, "modulated");
    must_free(want), must_free(shift), must_free(scale);
    if (!in_place)
        matrix_free(&y);
    matrix_free(&x);
}

static void modulate(struct rig *rig)
{
    modulate_one(rig, 1, 7, false);
    modulate_one(rig, 40, 32, true);
    modulate_one(rig, 19, 3072, false);
    modulate_one(rig, 2, 9001, true);
}

/* over: dx takes the place of dy, and the residual's gradient is another matrix; else of the residual's. */
static void modulate_grad_one(struct rig *rig, int64_t nrow, int64_t ncol, bool over)
{
    struct matrix x = matrix_random(rig, nrow, ncol, rig->dtype, 2), dy = matrix_random(rig, nrow, ncol, rig->dtype, 1),
                  add = matrix_random(rig, nrow, ncol, rig->dtype, 1);
    float *scale = random_floats(rig, ncol);
    double *want = zeros(nrow * ncol);
    for (int64_t i = 0; i < nrow; i++) {
        double mean = 0, variance = 0, of_g = 0, of_product = 0;
        for (int64_t j = 0; j < ncol; j++)
            mean += at(&x, i, j) / (double)ncol;
        for (int64_t j = 0; j < ncol; j++)
            variance += pow(at(&x, i, j) - mean, 2) / (double)ncol;
        const double rstd = 1 / sqrt(variance + (double)1e-6f);
        for (int64_t j = 0; j < ncol; j++) {
            const double g = at(&dy, i, j) * (1 + (double)scale[j]);
            of_g += g / (double)ncol;
            of_product += g * (at(&x, i, j) - mean) * rstd / (double)ncol;
        }
        for (int64_t j = 0; j < ncol; j++)
            want[i * ncol + j] = at(&add, i, j) + rstd * (at(&dy, i, j) * (1 + (double)scale[j]) - of_g -
                                                          (at(&x, i, j) - mean) * rstd * of_product);
    }
    const struct kern_modulate_grad g = { nrow,  ncol,  cview(&x),   cview(&dy),
                                          scale, 1e-6f, cview(&add), view(over ? &dy : &add) };
    rig->device->images->modulate_grad(rig->stream, &g);
    check_matrix(rig, over ? &dy : &add, want, 3e-6, "gradient of modulated");
    must_free(want), must_free(scale);
    matrix_free(&x), matrix_free(&dy), matrix_free(&add);
}

static void modulate_grad(struct rig *rig)
{
    modulate_grad_one(rig, 3, 7, false);
    modulate_grad_one(rig, 40, 32, true);
    modulate_grad_one(rig, 5, 2100, false);
    modulate_grad_one(rig, 3, 9000, true);
}

static void square_error_one(struct rig *rig, int64_t nrow, int64_t ncol, bool wants_gradient)
{
    struct matrix x = matrix_random(rig, nrow, ncol, KERN_F32, 1), target = matrix_random(rig, nrow, ncol, KERN_F32, 1),
                  dx = matrix_new(nrow, ncol, rig->dtype);
    float *loss = float_zeros(nrow);
    double *losses = zeros(nrow), *gradient = zeros(nrow * ncol);
    for (int64_t i = 0; i < nrow; i++)
        for (int64_t j = 0; j < ncol; j++) {
            const double d = at(&x, i, j) - at(&target, i, j);
            losses[i] += 0.5 * d * d;
            gradient[i * ncol + j] = 2 * 0.25 * d;
        }
    const struct kern_square_error e = { nrow, ncol,  cview(&x), cview(&target),
                                         0.5f, 0.25f, loss,      wants_gradient ? view(&dx) : (struct kern_mat){ 0 } };
    rig->device->images->square_error(rig->stream, &e);
    check_floats(rig, loss, nrow, losses, 1e-6, "squared error");
    if (wants_gradient)
        check_matrix(rig, &dx, gradient, 1e-6, "gradient of the squared error");
    must_free(losses), must_free(gradient), must_free(loss);
    matrix_free(&x), matrix_free(&target), matrix_free(&dx);
}

static void square_error(struct rig *rig)
{
    square_error_one(rig, 1, 3, true);
    square_error_one(rig, 37, 128, true);
    square_error_one(rig, 20, 301, false);
}

static void gate_and_silu(struct rig *rig)
{
    const int64_t nrow = 37, ncol = 1100;
    struct matrix x = matrix_random(rig, nrow, ncol, rig->dtype, 4),
                  add = matrix_random(rig, nrow, ncol, rig->dtype, 1);
    float *gate = random_floats(rig, ncol);
    double *gated = zeros(nrow * ncol), *silu = zeros(nrow * ncol);
    for (int64_t i = 0; i < nrow; i++)
        for (int64_t j = 0; j < ncol; j++) {
            gated[i * ncol + j] = at(&add, i, j) + (double)gate[j] * at(&x, i, j);
            silu[i * ncol + j] = at(&x, i, j) / (1 + exp(-at(&x, i, j)));
        }
    const struct kern_gate g = { nrow, ncol, gate, cview(&x), cview(&add), view(&add) };
    rig->device->images->gate(rig->stream, &g);
    rig->device->images->silu(rig->stream, view(&x), cview(&x), nrow, ncol);
    check_matrix(rig, &add, gated, 1e-6, "gated");
    check_matrix(rig, &x, silu, 1e-6, "silu");
    must_free(gated), must_free(silu), must_free(gate);
    matrix_free(&x), matrix_free(&add);
}

/* Pictures have no gaps. */
static struct matrix picture(struct rig *rig, int64_t npixel, int64_t nchannel, double offset)
{
    struct matrix m = matrix_random(rig, npixel, nchannel, rig->dtype, 1);
    m.pitch = nchannel; /* rows are not longer than they were */
    for (int64_t i = 0; i < npixel; i++)
        for (int64_t j = 0; j < nchannel; j++)
            put(&m, i, j, rig_uniform(rig) + offset);
    return m;
}

static void picture_free(struct matrix *m)
{
    must_free(m->data);
}

static double tap_of(const struct matrix *x, int64_t height, int64_t width, int64_t row, int64_t col, int64_t channel)
{
    return row < 0 || col < 0 || row >= height || col >= width ? 0 : at(x, row * width + col, channel);
}

static void conv_one(struct rig *rig, int64_t height, int64_t width, int64_t nin, int64_t nout, int64_t stride)
{
    const int64_t rows = height / stride, cols = width / stride, before = stride == 1;
    struct matrix x = picture(rig, height * width, nin, 0), w = picture(rig, nout, nin * 9, 0),
                  y = picture(rig, rows * cols, nout, 0);
    float *bias = random_floats(rig, nout);
    double *want = zeros(rows * cols * nout);
    for (int64_t i = 0; i < rows * cols; i++)
        for (int64_t o = 0; o < nout; o++) {
            double sum = (double)bias[o];
            for (int64_t tap = 0; tap < 9; tap++)
                for (int64_t c = 0; c < nin; c++)
                    sum += tap_of(&x, height, width, i / cols * stride + tap / 3 - before,
                                  i % cols * stride + tap % 3 - before, c) *
                           at(&w, o, c * 9 + tap);
            want[i * nout + o] = sum;
        }
    struct kern_conv c = { .height = height,
                           .width = width,
                           .nin = nin,
                           .nout = nout,
                           .stride = stride,
                           .x = cview(&x),
                           .weight = w.data,
                           .bias = bias,
                           .y = view(&y) };
    c.scratch = must_alloc(rig->device->images->conv_scratch(rig->stream, &c));
    rig->device->images->conv(rig->stream, &c);
    check_stream(rig);
    check_matrix(rig, &y, want, 2e-6, "convolution");
    must_free(c.scratch), must_free(want), must_free(bias);
    picture_free(&x), picture_free(&w), picture_free(&y);
}

static void conv(struct rig *rig)
{
    conv_one(rig, 1, 1, 3, 5, 1);
    conv_one(rig, 7, 5, 3, 16, 1);
    conv_one(rig, 70, 40, 4, 3, 1);
    conv_one(rig, 3, 1030, 2, 6, 1);
    conv_one(rig, 8, 6, 5, 4, 2);
    conv_one(rig, 2, 2, 1, 1, 2);
    conv_one(rig, 90, 64, 4, 8, 2);
    conv_one(rig, 9, 6, 8, 16, 1);
    conv_one(rig, 132, 130, 1, 1, 1); /* more than a device multiplies at once */
}

static void group_norm_one(struct rig *rig, int64_t npixel, int64_t nchannel, int64_t ngroup, bool silu, bool in_place)
{
    const int64_t width = nchannel / ngroup;
    struct matrix x = picture(rig, npixel, nchannel, 3), y = in_place ? x : picture(rig, npixel, nchannel, 0);
    float *gamma = random_floats(rig, nchannel), *beta = random_floats(rig, nchannel);
    double *want = zeros(npixel * nchannel), *scratch = zeros(kern_group_norm_scratch(npixel, nchannel, ngroup));
    for (int64_t g = 0; g < ngroup; g++) {
        const double n = (double)(npixel * width);
        double mean = 0, variance = 0;
        for (int64_t i = 0; i < npixel * width; i++)
            mean += at(&x, i / width, g * width + i % width) / n;
        for (int64_t i = 0; i < npixel * width; i++)
            variance += pow(at(&x, i / width, g * width + i % width) - mean, 2) / n;
        for (int64_t i = 0; i < npixel * width; i++) {
            const int64_t c = g * width + i % width;
            const double v =
                (at(&x, i / width, c) - mean) / sqrt(variance + (double)1e-6f) * (double)gamma[c] + (double)beta[c];
            want[i / width * nchannel + c] = silu ? v / (1 + exp(-v)) : v;
        }
    }
    const struct kern_group_norm g = {
        npixel, nchannel, ngroup, cview(&x), gamma, beta, 1e-6f, silu, view(&y), scratch
    };
    rig->device->images->group_norm(rig->stream, &g);
    check_stream(rig);
    check_matrix(rig, &y, want, 3e-6, "group norm");
    must_free(want), must_free(scratch), must_free(gamma), must_free(beta);
    if (!in_place)
        picture_free(&y);
    picture_free(&x);
}

static void group_norm(struct rig *rig)
{
    group_norm_one(rig, 1, 4, 2, false, false);
    group_norm_one(rig, 128, 6, 3, true, true);
    group_norm_one(rig, 300, 64, 32, false, false);
    group_norm_one(rig, 129, 1536, 8, true, false);
}

static void enlarge(struct rig *rig)
{
    const int64_t height = 3, width = 5, nchannel = 300;
    struct matrix x = picture(rig, height * width, nchannel, 0), y = picture(rig, 4 * height * width, nchannel, 0);
    double *want = zeros(4 * height * width * nchannel);
    for (int64_t i = 0; i < 4 * height * width; i++)
        for (int64_t c = 0; c < nchannel; c++)
            want[i * nchannel + c] = at(&x, i / (2 * width) / 2 * width + i % (2 * width) / 2, c);
    rig->device->images->enlarge(rig->stream, view(&y), cview(&x), height, width, nchannel);
    check_matrix(rig, &y, want, 0, "enlarged");
    must_free(want);
    picture_free(&x), picture_free(&y);
}

#define TEST(name) \
    static void test_##name(void **state) \
    { \
        (void)state; \
        rig_run_all(name); \
    }
TEST(modulate)
TEST(modulate_grad)
TEST(square_error)
TEST(gate_and_silu)
TEST(conv)
TEST(group_norm)
TEST(enlarge)

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_modulate),     cmocka_unit_test(test_modulate_grad),
                                        cmocka_unit_test(test_square_error), cmocka_unit_test(test_gate_and_silu),
                                        cmocka_unit_test(test_conv),         cmocka_unit_test(test_group_norm),
                                        cmocka_unit_test(test_enlarge) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
