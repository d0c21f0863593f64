/* SPDX-License-Identifier: Apache-2.0 */
/* What the computation of a micro-batch hides: small schedules, worked out by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "price/overlap.h"

static void expect(const struct overlap_use *uses, uint32_t n, double seconds, double exposed)
{
    const struct overlap o = overlap_run(uses, n);
    assert_true(o.seconds > seconds - 1e-9 && o.seconds < seconds + 1e-9);
    assert_true(o.exposed > exposed - 1e-9 && o.exposed < exposed + 1e-9);
}

static void without_communication(void **state)
{
    const struct overlap_use uses[] = { { .compute = 1 }, { .compute = 2 }, { .compute = 3 } };
    (void)state;
    expect(uses, 3, 6, 0);
    expect(uses, 0, 0, 0);
}

/* Without a prefetch, each use waits for its own gather. */
static void no_prefetch(void **state)
{
    const struct overlap_use uses[] = { { .compute = 1, .gather = 2 }, { .compute = 1, .gather = 2, .after = 1 } };
    (void)state;
    expect(uses, 2, 6, 4);
}

/* The second gather runs behind the first use; the third waits for the buffer of the first. */
static void prefetch_of_one(void **state)
{
    const struct overlap_use uses[] = { { .compute = 3, .gather = 1, .ahead = 1 },
                                        { .compute = 3, .gather = 2, .ahead = 1 },
                                        { .compute = 3, .gather = 2, .ahead = 1, .after = 1 } };
    (void)state;
    expect(uses, 3, 10, 1);
}

/* A link that is slower than the computation decides. */
static void slow_link(void **state)
{
    const struct overlap_use uses[] = { { .compute = 1, .gather = 5, .ahead = 2 },
                                        { .compute = 1, .gather = 5, .ahead = 2 },
                                        { .compute = 1, .gather = 5, .ahead = 2 } };
    (void)state;
    expect(uses, 3, 16, 13);
}

/* An exchange runs behind the next use; the next exchange waits for it. The last one is exposed. */
static void exchanges(void **state)
{
    const struct overlap_use uses[] = { { .compute = 2, .exchange = 1 }, { .compute = 2, .exchange = 3 } },
                             slow[] = { { .compute = 1, .exchange = 4 }, { .compute = 1, .exchange = 4 } };
    (void)state;
    expect(uses, 2, 7, 3);
    expect(slow, 2, 9, 7);
}

/* Gathers and exchanges share the link. */
static void shared_link(void **state)
{
    const struct overlap_use uses[] = { { .compute = 1, .exchange = 2 }, { .compute = 1, .gather = 2, .ahead = 0 } };
    (void)state;
    expect(uses, 2, 6, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_communication),
        cmocka_unit_test(no_prefetch),
        cmocka_unit_test(prefetch_of_one),
        cmocka_unit_test(slow_link),
        cmocka_unit_test(exchanges),
        cmocka_unit_test(shared_link),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
