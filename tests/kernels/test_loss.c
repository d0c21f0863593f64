/* SPDX-License-Identifier: Apache-2.0 */
/* Cross-entropy and the chunked head against fp64: all rows or selected ones, frozen or not, with LoRA and dropout. */
#include "harness.h"
#include "philox_ref.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* loss and (softmax - onehot) · scale of one row of logits. */
static double row_reference(const double *logits, int64_t n, int64_t target, double scale, double *grad)
{
    double top = -INFINITY, sum = 0;
    for (int64_t j = 0; j < n; j++)
        top = fmax(top, logits[j]);
    for (int64_t j = 0; j < n; j++)
        sum += exp(logits[j] - top);
    for (int64_t j = 0; j < n; j++)
        grad[j] = target < 0 ? 0 : (exp(logits[j] - top) / sum - (j == target)) * scale;
    return target < 0 ? 0 : log(sum) + top - logits[target];
}

static void entropy_shape(struct rig *rig, int64_t nrow, int64_t ncol)
{
    struct matrix logits = matrix_random(rig, nrow, ncol, rig->dtype, 20);
    double *want = zeros(nrow * ncol), *row = zeros(ncol), *want_loss = zeros(nrow);
    int32_t *target = must_alloc((size_t)nrow * sizeof(*target));
    float *loss = float_zeros(nrow);
    for (int64_t i = 0; i < nrow; i++) {
        target[i] = i % 4 == 3 ? -100 : (int32_t)(i * 31 % ncol);
        for (int64_t j = 0; j < ncol; j++)
            row[j] = at(&logits, i, j);
        want_loss[i] = row_reference(row, ncol, target[i], 0.125, want + i * ncol);
    }
    struct kern_cross_entropy e = { nrow, ncol, cview(&logits), target, 0.125f, loss, view(&logits), NULL };
    rig->ops->cross_entropy(rig->stream, &e);
    check_floats(rig, loss, nrow, want_loss, 1e-6, "loss");
    check_matrix(rig, &logits, want, 1e-6, "gradient over logits");
    must_free(want), must_free(row), must_free(want_loss), must_free(target), must_free(loss);
    matrix_free(&logits);
}

/* A bf16 gradient over fp32 logits; each row overwrites its logits. */
static void entropy_over(struct rig *rig, int64_t nrow, int64_t ncol)
{
    struct matrix logits = matrix_random(rig, nrow, ncol, KERN_F32, 20),
                  grad = { nrow, ncol, 2 * logits.pitch, KERN_BF16, logits.data };
    double *want = zeros(nrow * ncol), *row = zeros(ncol), *want_loss = zeros(nrow);
    int32_t *target = must_alloc((size_t)nrow * sizeof(*target));
    float *loss = float_zeros(nrow);
    for (int64_t i = 0; i < nrow; i++) {
        target[i] = i == 1 ? -1 : (int32_t)(i * 977 % ncol);
        for (int64_t j = 0; j < ncol; j++)
            row[j] = at(&logits, i, j);
        want_loss[i] = row_reference(row, ncol, target[i], 0.5, want + i * ncol);
    }
    struct kern_cross_entropy e = { nrow, ncol, cview(&logits), target, 0.5f, loss, view(&grad), NULL };
    rig->ops->cross_entropy(rig->stream, &e);
    check_floats(rig, loss, nrow, want_loss, 1e-6, "loss");
    check_matrix(rig, &grad, want, 1e-6, "bf16 gradient over fp32 logits");
    must_free(want), must_free(row), must_free(want_loss), must_free(target), must_free(loss);
    matrix_free(&logits);
}

static void entropy(struct rig *rig)
{
    char message[KERN_MESSAGE_BYTES];
    entropy_shape(rig, 5, 1);
    entropy_shape(rig, 9, 130);
    entropy_shape(rig, 6, 2500);
    entropy_shape(rig, 3, 4104);
    entropy_over(rig, 3, 5003);
    entropy_over(rig, 3, 6008);
    entropy_shape(rig, 2, 33000); /* more than a block of threads reads in one pass */
    entropy_over(rig, 3, 33003);
    entropy_over(rig, 2, 33008);
    int32_t *target = must_alloc(sizeof(*target));
    float *logits = float_zeros(4), *loss = float_zeros(1);
    *target = 4;
    struct kern_cross_entropy e = { 1, 4, { logits, 4, KERN_F32 }, target, 1, loss, { NULL, 0, KERN_F32 }, NULL };
    rig->ops->cross_entropy(rig->stream, &e);
    assert_int_equal(rig->device->stream_sync(rig->stream, message), KERN_ERR_ARG);
    assert_string_equal(message, "row 0: target 4 is not one of 4");
    /* a NaN among the logits gives a NaN loss */
    for (int i = 0; i < 4; i++) {
        *target = 2;
        for (int j = 0; j < 4; j++)
            logits[j] = j == i ? NAN : (float)(j + 1);
        rig->ops->cross_entropy(rig->stream, &e);
        assert_true(isnan(*loss));
    }
    /* logits of -inf add nothing, even whole groups of eight */
    float *row = float_zeros(40);
    for (int j = 0; j < 40; j++)
        row[j] = j < 2 || j > 20 ? -INFINITY : 1;
    e.ncol = 40;
    e.logits = (struct kern_cmat){ row, 40, KERN_F32 };
    rig->ops->cross_entropy(rig->stream, &e);
    check_floats(rig, loss, 1, (const double[]){ log(19) }, 1e-6, "loss beside -inf");
    must_free(target), must_free(logits), must_free(loss), must_free(row);
}

enum { NTOK = 90, DIM = 24, NVOCAB = 77, R = 3 };

struct head_case {
    struct matrix h, w, a, b, dh;
    float *loss, *dw, *da, *db, *weights;
    double *want_loss, *want_dh, *want_dw, *want_da, *want_db;
    int32_t *rows, *target; /* (NTOK) */
    struct kern_head head;
};

/* To nearest, ties to even. */
static double to_bf16(double x)
{
    int exponent;
    frexp(x, &exponent);
    const double unit = ldexp(1, exponent - 8);
    return rint(x / unit) * unit;
}

/* All contributions of one token. */
static void token_reference(struct head_case *c, int64_t i, int64_t token)
{
    const double scale = (double)c->head.lora.scale;
    double x[DIM], s[R] = { 0 }, ds[R] = { 0 }, logits[NVOCAB] = { 0 }, grad[NVOCAB];
    for (int j = 0; j < DIM; j++)
        x[j] = at(&c->h, token, j) * dropout_ref(&c->head.lora.dropout, token, j);
    for (int k = 0; k < c->head.lora.r; k++)
        for (int j = 0; j < DIM; j++)
            s[k] += x[j] * at(&c->a, k, j);
    for (int v = 0; v < NVOCAB; v++) {
        for (int j = 0; j < DIM; j++)
            logits[v] += at(&c->h, token, j) * at(&c->w, v, j);
        for (int k = 0; k < c->head.lora.r; k++)
            logits[v] += scale * s[k] * at(&c->b, v, k);
        if (c->head.output == KERN_BF16)
            logits[v] = to_bf16(logits[v]);
    }
    c->want_loss[i] = row_reference(logits, NVOCAB, c->target[i],
                                    (double)c->head.grad_scale * (c->head.weights ? (double)c->weights[i] : 1), grad);
    for (int v = 0; v < NVOCAB; v++) {
        for (int j = 0; j < DIM; j++) {
            c->want_dw[v * DIM + j] += grad[v] * at(&c->h, token, j);
            c->want_dh[token * DIM + j] += grad[v] * at(&c->w, v, j);
        }
        for (int k = 0; k < c->head.lora.r; k++) {
            c->want_db[v * R + k] += scale * grad[v] * s[k];
            ds[k] += scale * grad[v] * at(&c->b, v, k);
        }
    }
    for (int k = 0; k < c->head.lora.r; k++)
        for (int j = 0; j < DIM; j++) {
            c->want_da[k * DIM + j] += ds[k] * x[j];
            c->want_dh[token * DIM + j] += ds[k] * at(&c->a, k, j) * dropout_ref(&c->head.lora.dropout, token, j);
        }
}

static void head_new(struct rig *rig, struct head_case *c, bool chosen, bool lora, float p)
{
    *c = (struct head_case){ .h = matrix_random(rig, NTOK, DIM, rig->dtype, 1),
                             .w = matrix_random(rig, NVOCAB, DIM, rig->dtype, 1),
                             .a = matrix_random(rig, R, DIM, rig->dtype, 1),
                             .b = matrix_random(rig, NVOCAB, R, rig->dtype, 1),
                             .dh = matrix_random(rig, NTOK, DIM, rig->dtype, 1),
                             .loss = float_zeros(NTOK),
                             .dw = float_zeros(NVOCAB * DIM),
                             .da = float_zeros(R * DIM),
                             .db = float_zeros(NVOCAB * R),
                             .weights = float_zeros(NTOK),
                             .want_loss = zeros(NTOK),
                             .want_dh = zeros(NTOK * DIM),
                             .want_dw = zeros(NVOCAB * DIM),
                             .want_da = zeros(R * DIM),
                             .want_db = zeros(NVOCAB * R),
                             .rows = must_alloc(NTOK * sizeof(int32_t)),
                             .target = must_alloc(NTOK * sizeof(int32_t)) };
    for (int i = 0; i < NTOK; i++) {
        c->target[i] = i % 7 == 2 ? -1 : i * 5 % NVOCAB;
        c->weights[i] = i % 5 == 1 ? 0 : 0.75f - 0.25f * (float)(i % 9);
    }
    for (int i = 0, n = 0; i < NTOK; i++) /* ascending */
        if (i % 3 != 1)
            c->rows[n++] = i;
    c->head = (struct kern_head){ .ntok = NTOK,
                                  .d = DIM,
                                  .nvocab = NVOCAB,
                                  .h = cview(&c->h),
                                  .w = cview(&c->w),
                                  .nrow = chosen ? NTOK / 3 * 2 : NTOK - 4,
                                  .rows = chosen ? c->rows : NULL,
                                  .target = c->target,
                                  .grad_scale = 0.05f,
                                  .loss = c->loss,
                                  .dh = view(&c->dh),
                                  .dw = c->dw,
                                  .compute = rig->dtype,
                                  .chunk = 32 };
    if (lora)
        c->head.lora = (struct kern_head_lora){ .r = R,
                                                .scale = 1.5f,
                                                .a = cview(&c->a),
                                                .b = cview(&c->b),
                                                .da = c->da,
                                                .db = c->db,
                                                .dropout = { .p = p, .rng = { 9, 1, 2 }, .token0 = 40, .width = DIM } };
}

/* Few bits, so that products are exact in fp32 and round predictably. */
static void make_coarse(struct matrix *m)
{
    for (int64_t i = 0; i < m->nrow; i++)
        for (int64_t j = 0; j < m->ncol; j++)
            put(m, i, j, rint(at(m, i, j) * 16) / 16);
}

/* Weights that are known only when the losses are. */
struct late {
    struct rig *rig;
    struct head_case *c;
    float *weights; /* (NTOK) */
    int64_t nrow;   /* that have their weights */
};

static void weigh_late(void *ctx, int64_t row, int64_t n)
{
    struct late *late = ctx;
    check_stream(late->rig);
    assert_int_equal(row, late->nrow);
    for (int64_t i = row; i < row + n; i++) {
        assert_true(fabs((double)late->c->loss[i] - late->c->want_loss[i]) < 0.1);
        late->weights[i] = late->c->weights[i];
    }
    late->nrow += n;
}

enum weights { NO_WEIGHTS, WEIGHTS, LATE_WEIGHTS };

static void head_one(struct rig *rig, bool chosen, bool lora, float p, enum kern_dtype output, enum weights weights)
{
    struct head_case c;
    head_new(rig, &c, chosen, lora, p);
    struct late late = { .rig = rig, .c = &c, .weights = float_zeros(NTOK) };
    c.head.output = output;
    c.head.weights = weights ? c.weights : NULL;
    if (output == KERN_BF16)
        make_coarse(&c.h), make_coarse(&c.w);
    for (int64_t i = 0; i < c.head.nrow; i++)
        token_reference(&c, i, chosen ? c.rows[i] : i);
    c.head.scratch = must_alloc(kern_head_scratch(&c.head));
    if (weights == LATE_WEIGHTS) {
        c.head.weights = late.weights;
        c.head.weigh = weigh_late;
        c.head.ctx = &late;
    }
    kern_head_run(rig->device, rig->stream, &c.head);
    assert_int_equal(late.nrow, weights == LATE_WEIGHTS ? c.head.nrow : 0);
    /* bf16: the gradient of the logits, S and dS are rounded on the way. */
    const double tolerance = rig->dtype == KERN_BF16 ? 1e-2 : 3e-6,
                 loss_tolerance = rig->dtype == KERN_BF16 && lora ? 3e-3 : 2e-6;
    check_floats(rig, c.loss, c.head.nrow, c.want_loss, loss_tolerance, "loss");
    check_matrix(rig, &c.dh, c.want_dh, tolerance, "dh");
    check_floats(rig, c.dw, NVOCAB * DIM, c.want_dw, tolerance, "dw");
    check_floats(rig, c.da, R * DIM, c.want_da, tolerance, "da");
    check_floats(rig, c.db, NVOCAB * R, c.want_db, tolerance, "db");
    matrix_free(&c.h), matrix_free(&c.w), matrix_free(&c.a), matrix_free(&c.b), matrix_free(&c.dh);
    must_free(c.rows), must_free(c.target);
    must_free(c.loss), must_free(c.dw), must_free(c.da), must_free(c.db), must_free(c.weights),
        must_free(c.head.scratch), must_free(late.weights);
    must_free(c.want_loss), must_free(c.want_dh), must_free(c.want_dw), must_free(c.want_da), must_free(c.want_db);
}

static void head(struct rig *rig)
{
    head_one(rig, false, false, 0, KERN_F32, NO_WEIGHTS);
    head_one(rig, true, false, 0, KERN_F32, NO_WEIGHTS);
    head_one(rig, true, true, 0, KERN_F32, NO_WEIGHTS);
    head_one(rig, false, true, 0.25f, KERN_F32, NO_WEIGHTS);
    head_one(rig, false, false, 0, KERN_BF16, NO_WEIGHTS);
    head_one(rig, true, false, 0, KERN_BF16, NO_WEIGHTS);
    head_one(rig, true, true, 0, KERN_F32, WEIGHTS);
    head_one(rig, false, true, 0.25f, KERN_F32, WEIGHTS);
    head_one(rig, false, false, 0, KERN_BF16, WEIGHTS);
    head_one(rig, true, true, 0, KERN_F32, LATE_WEIGHTS);
    head_one(rig, false, false, 0, KERN_BF16, LATE_WEIGHTS);
}

static void test_entropy(void **state)
{
    (void)state;
    rig_run_all(entropy);
}

static void test_head(void **state)
{
    (void)state;
    rig_run_all(head);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_entropy), cmocka_unit_test(test_head) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
