/* SPDX-License-Identifier: Apache-2.0 */
/* LoRA's low-rank products by segments, with dropout, against fp64. */
#include "harness.h"
#include "philox_ref.h"

#include <stdlib.h>

enum { NROW = 150, NIN = 70, NOUT = 45, R = 5 };

struct lora_case {
    struct matrix x, dy, s, ds, a[2], b[2];
    float *da[2], *db[2];
    struct kern_lora_segment segments[2];
    struct kern_lora lora;
    struct kern_rng_offset *rng_offset;
    double *s_ref, *ds_ref, *da_ref[2], *db_ref[2];
};

static void lora_new(struct rig *rig, struct lora_case *c)
{
    *c = (struct lora_case){ .x = matrix_random(rig, NROW, NIN, rig->dtype, 1),
                             .dy = matrix_random(rig, NROW, NOUT, rig->dtype, 1),
                             .s = matrix_random(rig, NROW, R, KERN_F32, 1),
                             .ds = matrix_random(rig, NROW, R, KERN_F32, 1),
                             .s_ref = zeros(NROW * R),
                             .ds_ref = zeros(NROW * R) };
    c->rng_offset = must_alloc(sizeof(*c->rng_offset));
    *c->rng_offset = (struct kern_rng_offset){ .token0 = 40, .step = 4 };
    for (int i = 0; i < 2; i++) {
        const int64_t r = i ? R : 2;
        c->a[i] = matrix_random(rig, r, NIN, rig->dtype, 1);
        c->b[i] = matrix_random(rig, NOUT, r, rig->dtype, 1);
        c->da[i] = float_zeros(r * NIN);
        c->db[i] = float_zeros(NOUT * r);
        c->da_ref[i] = zeros(r * NIN);
        c->db_ref[i] = zeros(NOUT * r);
        c->da[i][3] = 1;
        c->da_ref[i][3] = 1;
        c->segments[i] = (struct kern_lora_segment){ .row0 = i ? 60 : 0,
                                                     .nrow = i ? 85 : 50,
                                                     .r = r,
                                                     .scale = i ? 0.5f : 2.0f,
                                                     .a = cview(&c->a[i]),
                                                     .b = cview(&c->b[i]),
                                                     .da = c->da[i],
                                                     .db = c->db[i],
                                                     .pitch_da = NIN,
                                                     .pitch_db = r,
                                                     .dropout = { .p = i ? 0.2f : 0,
                                                                  .rng = { 5, 2, 7 },
                                                                  .token0 = 260,
                                                                  .width = NIN,
                                                                  .rng_offset = c->rng_offset } };
    }
    c->lora = (struct kern_lora){ .nrow = NROW,
                                  .nin = NIN,
                                  .nout = NOUT,
                                  .segments = c->segments,
                                  .nsegments = 2,
                                  .x = cview(&c->x),
                                  .dy = cview(&c->dy),
                                  .s = view(&c->s),
                                  .ds = view(&c->ds) };
}

/* Rows and columns outside of all segments stay unchanged. */
static void reference(struct lora_case *c)
{
    for (int i = 0; i < NROW * R; i++) {
        c->s_ref[i] = at(&c->s, i / R, i % R);
        c->ds_ref[i] = at(&c->ds, i / R, i % R);
    }
    for (int i = 0; i < 2; i++) {
        const struct kern_lora_segment *s = &c->segments[i];
        for (int64_t row = s->row0; row < s->row0 + s->nrow; row++)
            for (int64_t k = 0; k < s->r; k++) {
                double down = 0, up = 0;
                for (int64_t j = 0; j < NIN; j++)
                    down += at(&c->x, row, j) * dropout_ref(&s->dropout, row, j) * at(&c->a[i], k, j);
                for (int64_t j = 0; j < NOUT; j++) {
                    up += (double)s->scale * at(&c->dy, row, j) * at(&c->b[i], j, k);
                    c->db_ref[i][j * s->r + k] += (double)s->scale * at(&c->dy, row, j) * down;
                }
                for (int64_t j = 0; j < NIN; j++)
                    c->da_ref[i][k * NIN + j] += up * at(&c->x, row, j) * dropout_ref(&s->dropout, row, j);
                c->s_ref[row * R + k] = (double)s->scale * down;
                c->ds_ref[row * R + k] = up;
            }
    }
}

static void segments(struct rig *rig)
{
    struct lora_case c;
    lora_new(rig, &c);
    reference(&c);
    rig->ops->lora_down(rig->stream, &c.lora);
    check_matrix(rig, &c.s, c.s_ref, 2e-6, "S");
    rig->ops->lora_grad_b(rig->stream, &c.lora);
    rig->ops->lora_up_grad(rig->stream, &c.lora);
    check_matrix(rig, &c.ds, c.ds_ref, 2e-6, "dS");
    rig->ops->lora_grad_a(rig->stream, &c.lora);
    for (int i = 0; i < 2; i++) {
        const int64_t r = c.segments[i].r;
        check_floats(rig, c.da[i], r * NIN, c.da_ref[i], 2e-6, "dA");
        check_floats(rig, c.db[i], NOUT * r, c.db_ref[i], 2e-6, "dB");
        must_free(c.da[i]), must_free(c.db[i]), must_free(c.da_ref[i]), must_free(c.db_ref[i]);
        matrix_free(&c.a[i]), matrix_free(&c.b[i]);
    }
    must_free(c.s_ref), must_free(c.ds_ref), must_free(c.rng_offset);
    matrix_free(&c.x), matrix_free(&c.dy), matrix_free(&c.s), matrix_free(&c.ds);
}

static void test_segments(void **state)
{
    (void)state;
    rig_run_all(segments);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_segments) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
