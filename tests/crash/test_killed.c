/* SPDX-License-Identifier: Apache-2.0 */
/* Every verb, killed before each of its operations. The output is wholly old or wholly new, left-over files are found
 * and removed, and the next attempt succeeds, even after a second kill. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "sweep.h"
#include "tree.h"
#include "verbs.h"

#include <stdio.h>
#include <stdlib.h>

/* Returns true if the output may be missing: only where names cannot be exchanged, between moving the old one away and
 * moving the new one in. */
static bool may_be_missing(const struct verb *v)
{
    return !v->old || v->no_exchange;
}

static enum verb_state judge(const struct verb *v, uint32_t rank, unsigned n, bool cleaned, const char *when)
{
    const char *why;
    enum verb_state state = verb_state(v, &ground, ground.root, cleaned, &why);
    if (state == STATE_BROKEN || (state == STATE_OLD && !v->old) || (state == STATE_NONE && !may_be_missing(v)))
        verb_fail(v, ground.root, "killed at operation %u of rank %u, %s: neither old nor new (%s)", n, rank, when,
                  why);
    return state;
}

static void clean(const struct verb *v, uint32_t rank, unsigned n)
{
    struct verb_leftovers seen, removed;
    struct fsdpck_error err = { 0 };
    enum verb_state before = judge(v, rank, n, false, "before clean");
    bool exact = verb_is_exactly(&ground, ground.root, before);
    if (verb_clean(v, &ground, ground.root, false, false, &seen, &err) != 0 ||
        verb_clean(v, &ground, ground.root, true, false, &removed, &err) != 0)
        verb_fail(v, ground.root, "killed at operation %u of rank %u: cannot be cleaned: %s: %s", n, rank, err.file,
                  err.message);
    if (!exact && seen.nfound == 0)
        verb_fail(v, ground.root, "killed at operation %u of rank %u: left-overs were not seen", n, rank);
    if (seen.nalive > 0)
        verb_fail(v, ground.root, "killed at operation %u of rank %u: a dead writer's left-overs count as alive", n,
                  rank);
    enum verb_state after = judge(v, rank, n, true, "after clean");
    if ((before != after && before != STATE_NONE) || !verb_is_exactly(&ground, ground.root, after))
        verb_fail(v, ground.root,
                  "killed at operation %u of rank %u: something is left after clean (%u seen, %u removed)", n, rank,
                  seen.nfound, removed.nremoved);
}

/* The attempt after the crash, amid its left-overs; with force, as the output may exist. */
static void succeed(const struct verb *v, uint32_t rank, unsigned n)
{
    struct faulty *f[VERB_MAX_RANKS];
    struct verb_how how = { .force = true };
    struct verb_result result;
    const char *why;
    verb_tables(v, &ground, f, &how);
    verb_run(v, &ground, &how, &result);
    for (uint32_t i = 0; i < verb_writers(v); i++)
        if (result.code[i] != 0)
            verb_fail(v, ground.root, "killed at operation %u of rank %u: the next attempt fails: %s: %s", n, rank,
                      result.err[i].file, result.err[i].message);
    if (verb_state(v, &ground, ground.root, false, &why) != STATE_NEW)
        verb_fail(
            v, ground.root,
            "killed at operation %u of rank %u: the next attempt succeeds, but the output is not the new one (%s)", n,
            rank, why);
    if (!v->no_exchange &&
        !verb_is_exactly(&ground, ground.root,
                         STATE_NEW)) /* without exchange, the old one is kept until the new one is in place */
        verb_fail(v, ground.root, "killed at operation %u of rank %u: the next attempt leaves what the dead ones left",
                  n, rank);
    verb_tables_free(f);
}

static bool kill_once(const struct verb *v, uint32_t rank, unsigned n, unsigned nthreads)
{
    ground_reset(&ground, v);
    bool killed = verb_run_killed(v, &ground, rank, n, nthreads, v->old);
    clean(v, rank, n);
    return killed;
}

/* Two crashes in a row, without a clean between. */
static void kill_twice(const struct verb *v, uint32_t rank, unsigned n, unsigned m)
{
    ground_reset(&ground, v);
    verb_run_killed(v, &ground, rank, n, 1, v->old);
    judge(v, rank, n, false, "once");
    verb_run_killed(v, &ground, rank, m, 1, true);
    judge(v, rank, m, false, "twice");
    succeed(v, rank, m);
    clean(v, rank, m);
}

static void test_killed(void **state)
{
    (void)state;
    for (size_t i = 0; i < nverbs; i++) {
        const struct verb *v = &verbs[i];
        ground_set_up(&ground, v);
        for (uint32_t rank = 0; rank < verb_writers(v); rank++) {
            unsigned nkilled = 0;
            for (unsigned n = 0; n < ground.nops[rank]; n = sweep_next(n))
                nkilled += kill_once(v, rank, n, 1);
            assert_true(nkilled > 0);
        }
    }
}

static void test_killed_twice(void **state)
{
    (void)state;
    uint64_t random = 3;
    for (size_t i = 0; i < nverbs; i++) {
        const struct verb *v = &verbs[i];
        ground_set_up(&ground, v);
        for (uint32_t rank = 0; rank < verb_writers(v); rank++)
            for (unsigned n = 0; n < ground.nops[rank]; n = sweep_next(n) + 2)
                kill_twice(v, rank, n, (unsigned)model_below(&random, ground.nops[rank]));
    }
}

/* With several threads per rank, the order of operations varies between runs. */
static void test_killed_with_threads(void **state)
{
    (void)state;
    uint64_t random = 4;
    for (size_t i = 0; i < nverbs; i++) {
        const struct verb *v = &verbs[i];
        ground_set_up(&ground, v);
        for (int run = 0; run < 12; run++) {
            uint32_t rank = (uint32_t)model_below(&random, verb_writers(v));
            kill_once(v, rank, (unsigned)model_below(&random, ground.nops[rank]), 4);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed),
        cmocka_unit_test(test_killed_twice),
        cmocka_unit_test(test_killed_with_threads),
    };
    return cmocka_run_group_tests(tests, group_set_up, group_tear_down);
}
