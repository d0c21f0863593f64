/* SPDX-License-Identifier: Apache-2.0 */
/* Every verb, with a power loss after each of its changes: whatever was not fsynced is lost, partly written or
 * reordered. The output is wholly old or wholly new, and new once the verb has returned. A control shows that the test
 * can fail: it does if any one fsync is left out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "seen.h"
#include "../support/sanitized.h"
#include "tree.h"
#include "verbs.h"

#include <stdio.h>
#include <stdlib.h>

/* Seeds 4k lose everything that is not safe, seeds 4k + 1 lose nothing (like FAULTY_ALL), others are random. */
static const int seeds[] = { 0, FAULTY_ALL, 2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23 };
enum { NSEEDS = sizeof seeds / sizeof seeds[0], NSEEDS_EACH = 5 };

static struct seen good; /* states after crashes of one verb that were judged good */

/* One run without faults, with one table for all ranks, because they share a machine. */
static struct faulty *record(const struct verb *v)
{
    struct faulty *f[VERB_MAX_RANKS];
    struct verb_how how = { .force = v->old };
    struct verb_result result;
    seen_forget(&good);
    ground_set_up(&ground, v);
    ground_reset(&ground, v);
    verb_tables(v, &ground, f, &how);
    for (uint32_t i = 1; i < verb_writers(v); i++)
        how.io[i] = how.io[0];
    verb_run(v, &ground, &how, &result);
    for (uint32_t i = 0; i < verb_writers(v); i++)
        assert_int_equal(result.code[i], 0);
    for (uint32_t i = 1; i < VERB_MAX_RANKS; i++)
        faulty_free(f[i]);
    return f[0];
}

static bool may_be(const struct verb *v, enum verb_state state, bool before_clean)
{
    bool missing = !v->old || (before_clean && v->no_exchange);
    return state == STATE_NEW || (state == STATE_OLD && v->old) || (state == STATE_NONE && missing);
}

/* Returns NULL, or what is wrong with the state after the crash. */
static const char *check(const struct verb *v, const struct faulty *f, size_t nevents, int seed, int ignored)
{
    const char *why;
    bool complete = nevents == faulty_nevents(f);
    uint64_t digest = faulty_after_crash(f, nevents, seed, ignored, NULL) + complete;
    if (seen_has(&good, digest))
        return NULL;
    tree_remove(ground.crash);
    faulty_after_crash(f, nevents, seed, ignored, ground.crash);
    enum verb_state before = verb_state(v, &ground, ground.crash, false, &why);
    if (!may_be(v, before, true))
        return "neither old nor new";
    if (verb_clean(v, &ground, ground.crash, true, true, NULL, NULL) != 0)
        return "cannot be cleaned";
    enum verb_state after = verb_state(v, &ground, ground.crash, true, &why);
    if (!may_be(v, after, false) || (before != after && before != STATE_NONE))
        return "neither old nor new once cleaned";
    if (complete && after != STATE_NEW)
        return "not the new one although the verb had returned";
    if (!verb_is_exactly(&ground, ground.crash, after))
        return "something is left after clean";
    seen_add(&good, digest);
    return NULL;
}

/* Of the states one in STEP, and the first and the last; and fsyncs of one verb in so many. */
enum { STEP = SANITIZED ? 13 : 1, VERBS = SANITIZED ? 6 : 1 };

static void test_power_loss(void **state)
{
    (void)state;
    for (size_t i = 0; i < nverbs; i++) {
        struct faulty *f = record(&verbs[i]);
        char event[300];
        const size_t last = faulty_nevents(f);
        for (size_t n = 0; n <= last; n = n == last || n + STEP < last ? n + STEP : last)
            for (int s = 0; s < NSEEDS_EACH; s++) {
                const char *wrong = check(&verbs[i], f, n, seeds[s], -1);
                if (wrong != NULL)
                    verb_fail(&verbs[i], ground.crash, "%s, after event %zu ('%s'), seed %d", wrong, n,
                              n > 0 ? faulty_event_text(f, n - 1, event, sizeof event) : "", seeds[s]);
            }
        faulty_free(f);
    }
}

/* Returns true if leaving out fsync k breaks a state. */
static bool is_caught(const struct verb *v, const struct faulty *f, int k)
{
    for (int s = 0; s < NSEEDS; s++)
        for (size_t n = faulty_nevents(f) + 1; n-- > 0;)
            if (check(v, f, n, seeds[s], k) != NULL)
                return true;
    return false;
}

static void test_every_fsync_matters(void **state)
{
    (void)state;
    for (size_t i = 0; i < nverbs; i += VERBS) {
        struct faulty *f = record(&verbs[i]);
        assert_true(faulty_nfsyncs(f) > 0);
        uint32_t spare = 0;
        for (int k = 0; k < (int)faulty_nfsyncs(f); k++)
            spare |= is_caught(&verbs[i], f, k) ? 0 : 1u << k;
        if (spare != verbs[i].spare_fsyncs)
            verb_fail(&verbs[i], ground.root,
                      "of %zu fsyncs those in %#x can be left out and no crash shows it, %#x are expected to",
                      faulty_nfsyncs(f), spare, verbs[i].spare_fsyncs);
        faulty_free(f);
    }
}

static int tear_down(void **state)
{
    (void)state;
    seen_forget(&good);
    ground_free(&ground);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_power_loss),
        cmocka_unit_test(test_every_fsync_matters),
    };
    return cmocka_run_group_tests(tests, group_set_up, tear_down);
}
