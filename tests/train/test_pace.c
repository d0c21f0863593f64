/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks are called slow, by times that are made up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "run/pace.h"

enum { NRANKS = 4 };

/* Adds steps until a judgement. Rank q computes ntok[q] tokens at rate[q] seconds each. */
static bool judged(struct pace *p, const int64_t *ntok, const double *rate, char line[240])
{
    double busy[NRANKS];
    bool slow = false;
    for (int step = 0; step < PACE_STEPS; step++) {
        assert_false(slow);
        for (int q = 0; q < NRANKS; q++)
            busy[q] = rate[q] * (double)ntok[q];
        slow = pace_add(p, NRANKS, busy, ntok, line);
    }
    return slow;
}

static void test_slow(void **state)
{
    static const int64_t even[NRANKS] = { 100, 100, 100, 100 }, uneven[NRANKS] = { 200, 200, 100, 0 };
    static const double alike[NRANKS] = { 0.01, 0.011, 0.012, 0.013 }, slow[NRANKS] = { 0.01, 0.01, 0.02, 0.01 },
                        short_steps[NRANKS] = { 1e-5, 1e-5, 4e-5, 1e-5 };
    struct pace p = { 0 };
    char line[240] = "";
    (void)state;
    assert_false(judged(&p, even, alike, line));
    assert_false(judged(&p, uneven, alike, line)); /* more packets are no slow rank */
    assert_false(judged(&p, even, short_steps, line));
    assert_true(judged(&p, uneven, slow, line));
    assert_non_null(strstr(line, "rank 2 is slow: it computed for 2.00 s a step, and others need 1.00 s"));
    assert_false(judged(&p, even, slow, line)); /* once */
}

static void test_few(void **state)
{
    static const int64_t one[NRANKS] = { 100, 0, 0, 0 };
    static const double rate[NRANKS] = { 1, 0, 0, 0 };
    struct pace p = { 0 };
    char line[240];
    (void)state;
    assert_false(judged(&p, one, rate, line));
    struct micro_batch micros[] = { { .ntok = 1 }, { .ntok = 2 }, { .ntok = 4 }, { .ntok = 8 }, { .ntok = 16 } };
    const struct step_plan plan = { .micros = micros, .nmicros = 5 };
    int64_t ntok[2];
    pace_tokens(&plan, 2, 2, ntok); /* packets of two, in turn */
    assert_int_equal(ntok[0], 1 + 2 + 16);
    assert_int_equal(ntok[1], 4 + 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_slow), cmocka_unit_test(test_few) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
