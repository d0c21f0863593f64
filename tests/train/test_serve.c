/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of serve/ on their own: the weights of losses against finite differences, and ranges of memory against a map of
 * bytes. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "serve/losses.h"
#include "serve/ranges.h"

enum { N = 9 };

static uint32_t seed = 1;

static double draw(double low, double high)
{
    seed = seed * 1664525u + 1013904223u;
    return low + (high - low) * (double)(seed >> 8) / 16777216.0;
}

struct sequence {
    float p[N], q[N], advantages[N], weights[N], mask[N], low[N], high[N];
    struct serve_datum d;
};

/* Ratios from 0.5 to 2; places without advantage or weight are among them. */
static void draw_sequence(struct sequence *s)
{
    for (int i = 0; i < N; i++) {
        s->p[i] = (float)draw(-4, -0.1);
        s->q[i] = s->p[i] - (float)draw(-0.69, 0.69);
        s->advantages[i] = i == 3 ? 0 : (float)draw(-2, 2);
        s->weights[i] = i == 5 ? 0 : (float)draw(-1, 3);
        s->mask[i] = i % 3 ? 1 : 0;
        s->low[i] = (float)draw(0.6, 0.9);
        s->high[i] = (float)draw(1.1, 1.6);
    }
    s->q[3] = 0; /* as prompts have it */
    s->d = (struct serve_datum){ .n = N,
                                 .weights = s->weights,
                                 .logprobs = s->q,
                                 .advantages = s->advantages,
                                 .mask = s->mask,
                                 .target_logprobs = s->p };
}

static double sum_at(const struct serve_pass *pass, struct sequence *s, int i, double by)
{
    const float p = s->p[i];
    s->p[i] = (float)((double)p + by);
    const double sum = losses_sum(pass, &s->d);
    s->p[i] = p;
    return sum;
}

/* The distance of the ratio to the next kink. */
static double to_kink(const struct serve_pass *pass, const struct sequence *s, int i)
{
    const double ratio = exp((double)s->p[i] - (double)s->q[i]),
                 low = s->d.clip_low ? (double)s->low[i] : pass->clip_low,
                 high = s->d.clip_high ? (double)s->high[i] : pass->clip_high;
    return fmin(fabs(ratio - low), fabs(ratio - high));
}

static void check_slopes(enum serve_loss loss, bool own_thresholds)
{
    const double step = 1e-2;
    const struct serve_pass pass = { .loss = loss, .clip_low = 0.8, .clip_high = 1.2, .beta = 0.3 };
    for (int round = 0; round < 50; round++) {
        struct sequence s;
        float weights[N];
        draw_sequence(&s);
        s.d.clip_low = own_thresholds ? s.low : NULL;
        s.d.clip_high = own_thresholds ? s.high : NULL;
        losses_weigh(&pass, &s.d, weights);
        for (int i = 0; i < N; i++) {
            const double slope = (sum_at(&pass, &s, i, step) - sum_at(&pass, &s, i, -step)) / (2 * step);
            if (loss == SERVE_PPO && to_kink(&pass, &s, i) < 4 * step)
                continue;
            assert_true(fabs((double)weights[i] + slope) < 1e-3 * (1 + fabs(slope)));
        }
    }
}

static void test_slopes(void **state)
{
    (void)state;
    check_slopes(SERVE_CROSS_ENTROPY, false);
    check_slopes(SERVE_IMPORTANCE_SAMPLING, false);
    check_slopes(SERVE_PPO, false);
    check_slopes(SERVE_PPO, true);
    check_slopes(SERVE_DRO, false);
}

/* Where no gradient flows through the ratio: by the formulas. */
static void test_ratios(void **state)
{
    struct sequence s;
    float weights[N];
    (void)state;
    draw_sequence(&s);
    const struct serve_pass cispo = { .loss = SERVE_CISPO, .clip_low = 0.7, .clip_high = 1.3 },
                            gspo = { .loss = SERVE_GSPO, .clip_low = 0.01, .clip_high = 100 };
    double mean = 0, n = 0;
    for (int i = 0; i < N; i++) {
        mean += (double)s.mask[i] * ((double)s.p[i] - (double)s.q[i]);
        n += (double)s.mask[i];
    }
    losses_weigh(&cispo, &s.d, weights);
    for (int i = 0; i < N; i++) {
        const double ratio = exp((double)s.p[i] - (double)s.q[i]), cut = fmin(fmax(ratio, 0.7), 1.3);
        assert_true(fabs((double)weights[i] - cut * (double)s.advantages[i] * (double)s.weights[i]) < 1e-5);
    }
    losses_weigh(&gspo, &s.d, weights);
    for (int i = 0; i < N; i++)
        assert_true(fabs((double)weights[i] - exp(mean / n) * (double)s.advantages[i] * (double)s.weights[i]) < 1e-5);
}

/* A prompt's places, q 0 and A 0, add nothing, however far p is. */
static void test_prompts(void **state)
{
    (void)state;
    for (int loss = 0; loss < SERVE_NLOSSES; loss++) {
        struct sequence s;
        float weights[N];
        draw_sequence(&s);
        s.p[3] = 0;
        s.q[3] = -1e4f;
        s.weights[5] = 0;
        s.p[5] = -INFINITY;
        const struct serve_pass pass = { .loss = (enum serve_loss)loss, .clip_low = 0.8, .clip_high = 1.2 };
        s.mask[3] = s.mask[5] = 0;
        losses_weigh(&pass, &s.d, weights);
        assert_true(isfinite(losses_sum(&pass, &s.d)));
        for (int i = 0; i < N; i++)
            assert_true(isfinite(weights[i]));
    }
}

static void test_ranges(void **state)
{
    enum { SIZE = 400, MOST = 60 };
    struct ranges r = { 0 };
    struct range taken[MOST];
    unsigned char map[SIZE] = { 0 };
    size_t ntaken = 0;
    (void)state;
    assert_true(ranges_give(&r, 0, SIZE));
    for (int round = 0; round < 20000; round++) {
        const size_t nbytes = (size_t)draw(1, 40);
        if (ntaken < MOST && draw(0, 1) < 0.55) {
            size_t first;
            const size_t largest = ranges_largest(&r);
            assert_int_equal(ranges_take(&r, nbytes, &first), nbytes <= largest);
            if (nbytes > largest)
                continue;
            for (size_t i = first; i < first + nbytes; i++)
                assert_int_equal(map[i]++, 0);
            taken[ntaken++] = (struct range){ first, nbytes };
        } else if (ntaken) {
            const size_t k = (size_t)draw(0, (double)ntaken);
            memset(map + taken[k].first, 0, taken[k].nbytes);
            assert_true(ranges_give(&r, taken[k].first, taken[k].nbytes));
            taken[k] = taken[--ntaken];
        }
    }
    while (ntaken--)
        assert_true(ranges_give(&r, taken[ntaken].first, taken[ntaken].nbytes));
    assert_int_equal(r.n, 1);
    assert_int_equal(ranges_largest(&r), SIZE);
    ranges_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_slopes), cmocka_unit_test(test_ratios),
                                        cmocka_unit_test(test_prompts), cmocka_unit_test(test_ranges) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
