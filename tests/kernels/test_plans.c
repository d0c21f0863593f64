/* SPDX-License-Identifier: Apache-2.0 */
/* A product may choose its plan by measurement only because every plan gives the same bits. Here random products run
 * under all plans that exist for any number of threads, and under the same plans with random pieces and blocks. */
#include "harness.h"

#include "cpu/packed.h"
#include "cpu/packed_plan.h"
#include "cpu/panels.h"
#include "cpu/stream.h"

#include <stdlib.h>
#include <string.h>

static int64_t below(struct rig *rig, int64_t n)
{
    return (int64_t)((rig_uniform(rig) + 1) / 2 * (double)n);
}

struct product {
    struct matrix x, w, s, b, add, bias, c, first;
    struct kern_lowrank low;
    struct cpu_product p;
};

/* layout: 0 x·W, 1 x·Wᵀ, 2 xᵀ·w. Adapters only where a layer has them. */
static void product_new(struct rig *rig, struct product *t, int layout)
{
    const int64_t m = 1 + below(rig, 200), n = 1 + below(rig, 260), k = 1 + below(rig, 300), r = 1 + below(rig, 40);
    const bool ta = layout == 2, tb = layout == 1;
    const enum kern_dtype out = below(rig, 2) ? KERN_F32 : rig->dtype;
    t->x = matrix_random(rig, ta ? k : m, ta ? m : k, rig->dtype, 1);
    t->w = matrix_random(rig, tb ? n : k, tb ? k : n, rig->dtype, 1);
    t->s = matrix_random(rig, m, r, rig->dtype, 1);
    t->b = matrix_random(rig, tb ? n : r, tb ? r : n, rig->dtype, 1);
    t->add = matrix_random(rig, m, n, rig->dtype, 1);
    t->bias = matrix_random(rig, 1, n, rig->dtype, 1);
    t->c = matrix_new(m, n, out);
    t->low =
        (struct kern_lowrank){ .nrow = m, .r = r, .s = cview(&t->s), .b = cview(&t->b), .trans_b = tb, .alpha = 1 };
    struct kern_gemm g = { m, n, k, cview(&t->x), cview(&t->w), view(&t->c), ta, tb, 1, { 0 }, { 0 }, NULL, 0 };
    if (below(rig, 2))
        g.add = cview(&t->add);
    if (below(rig, 2))
        g.bias = cview(&t->bias);
    if (!ta && below(rig, 2))
        g.lowrank = &t->low, g.nlowrank = 1;
    else
        g.alpha = 0.75f;
    t->p = (struct cpu_product){ .g = g };
}

static void product_free(struct product *t)
{
    struct matrix *all[] = { &t->x, &t->w, &t->s, &t->b, &t->add, &t->bias, &t->c };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        matrix_free(all[i]);
}

static void check_plan(struct rig *rig, const struct cpu_packed *w, const struct cpu_packed_plan *plan,
                       const struct product *t, const struct matrix *want)
{
    const size_t nbytes = (size_t)(t->c.nrow * t->c.pitch * kern_dtype_bytes(t->c.dtype));
    memset(t->c.data, 0x7b, nbytes); /* as matrix_new does */
    cpu_packed_run(w, plan);
    check_stream(rig);
    if (memcmp(t->c.data, want->data, nbytes) != 0)
        fail_msg(
            "%lldx%lldx%lld: other bits if transposed %d, A packed %d, B packed %d, %d vectors, pieces of %lldx%lld, "
            "blocks of %lld",
            (long long)t->p.g.m, (long long)t->p.g.n, (long long)t->p.g.k, plan->transposed, plan->pack_a, plan->pack_b,
            plan->nvec, (long long)plan->rows, (long long)plan->cols, (long long)plan->units);
}

/* Cuts a plan's pieces and blocks anew. */
static struct cpu_packed_plan recut(struct rig *rig, struct cpu_packed_plan plan)
{
    plan.rows = 1 + below(rig, 100);
    plan.cols = (1 + below(rig, 4)) * plan.nvec * CPU_PANEL_LANES;
    plan.units = 1 + below(rig, 120);
    return plan;
}

static void all_plans(struct rig *rig, struct product *t)
{
    static const unsigned nthreads[] = { 1, 2, 16, 300 };
    struct cpu_packed w;
    struct cpu_packed_plan plans[CPU_PACKED_PLANS];
    if (!cpu_packed_collect(rig->stream, &t->p, &w))
        return; /* no panels on this processor */
    assert_true(cpu_packed_plans(&w, 1, plans) > 0);
    cpu_packed_run(&w, &plans[0]);
    struct matrix want = matrix_copy(&t->c);
    for (size_t i = 0; i < sizeof(nthreads) / sizeof(nthreads[0]); i++) {
        const int n = cpu_packed_plans(&w, nthreads[i], plans);
        assert_true(n > 0 && n <= CPU_PACKED_PLANS);
        for (int j = 0; j < n; j++) {
            const struct cpu_packed_plan other = recut(rig, plans[j]);
            check_plan(rig, &w, &plans[j], t, &want);
            check_plan(rig, &w, &other, t, &want);
        }
    }
    matrix_free(&want);
}

static void random_products(struct rig *rig)
{
    for (int i = 0; i < (rig->slow ? 6 : 60); i++) {
        struct product t;
        product_new(rig, &t, i % 3);
        all_plans(rig, &t);
        product_free(&t);
    }
}

/* As on a processor without bf16 products: the panels of fp32 widen bf16. */
static void widened_products(struct rig *rig)
{
    if (rig->stream->panels[KERN_F32])
        rig->stream->panels[KERN_BF16] = rig->stream->panels[KERN_F32];
    random_products(rig);
}

static void test_plans(void **state)
{
    (void)state;
    rig_run_all(random_products);
}

static void test_widened(void **state)
{
    (void)state;
    rig_run_all(widened_products);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_plans), cmocka_unit_test(test_widened) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
