/* SPDX-License-Identifier: Apache-2.0 */
/* Every verb, with each of its allocations failing once. The verb reports that it is out of memory and leaves
 * everything unchanged. AddressSanitizer finds leaks and wild pointers on the way. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "failing_malloc.h"
#include "sweep.h"
#include "tree.h"
#include "verbs.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fsdpck/check.h>

static void complain(const char *what, unsigned n, int code, const struct fsdpck_error *err, const char *why)
{
    print_error("%s, allocation %u fails: %s (code %d: '%s': %s)\n", what, n, why, code, err->file, err->message);
    fail();
}

/* Runs the verb with allocation n failing; returns the number of allocations. */
static unsigned run_verb(const struct verb *v, unsigned n, bool *failed)
{
    struct fsdpck_io io = model_fast_io();
    struct verb_how how = { .io = { &io }, .force = v->old };
    struct verb_result r;
    const char *why = NULL;
    ground_reset(&ground, v);
    failing_malloc_begin(n);
    verb_run(v, &ground, &how, &r);
    unsigned made = failing_malloc_end();
    *failed = r.code[0] != 0;
    if (*failed && (r.code[0] != FSDPCK_ERR_NOMEM || r.err[0].code != FSDPCK_ERR_NOMEM || r.err[0].message[0] == '\0'))
        complain(v->name, n, r.code[0], &r.err[0], "that is not what it says");
    if (*failed && !verb_is_exactly(&ground, ground.root, v->old ? STATE_OLD : STATE_NONE))
        complain(v->name, n, r.code[0], &r.err[0], "something is left");
    if (!*failed && verb_state(v, &ground, ground.root, false, &why) != STATE_NEW)
        complain(v->name, n, r.code[0], &r.err[0], why ? why : "it succeeds, and the output is not the new one");
    return made;
}

static void each_allocation_of(const struct verb *v)
{
    bool failed;
    ground_set_up(&ground, v);
    unsigned nfailed = 0, made = run_verb(v, UINT_MAX, &failed);
    assert_false(failed);
    for (unsigned n = 0; n < made; n = sweep_next(n)) {
        run_verb(v, n, &failed);
        nfailed += failed;
    }
    assert_true(nfailed * 2 > made / SWEEP_STEP); /* optional cleanup may go on without memory, but that is rare */
}

static void test_verbs(void **state)
{
    (void)state;
    for (size_t i = 0; i < nverbs; i++)
        if (verbs[i].kind != VERB_SAVE && !verbs[i].mount && !verbs[i].no_exchange)
            each_allocation_of(&verbs[i]);
    each_allocation_of(&(const struct verb){ .name = "save by one rank", .kind = VERB_SAVE, .nranks = 1 });
}

/* ---- cleaning up after a killed verb */

/* Runs clean with allocation k failing, then once more; returns the number of allocations. */
static unsigned clean_after(const struct verb *v, unsigned killed_at, unsigned k)
{
    struct fsdpck_error err = { 0 };
    const struct fsdpck_io io = model_fast_io();
    const struct fsdpck_options opt = { .io = &io };
    const char *why = NULL;
    ground_reset(&ground, v);
    verb_run_killed(v, &ground, 0, killed_at, 1, true);
    enum verb_state before = verb_state(v, &ground, ground.root, false, &why);
    failing_malloc_begin(k);
    int rc = fsdpck_leftovers(ground.out, FSDPCK_CLEAN_DEAD, &opt, NULL, NULL, &err);
    unsigned made = failing_malloc_end();
    if (rc != 0 && (rc != FSDPCK_ERR_NOMEM || err.code != rc || err.message[0] == '\0'))
        complain(v->name, k, rc, &err, "that is not what clean says");
    if (verb_clean(v, &ground, ground.root, true, false, NULL, &err) != 0)
        complain(v->name, k, err.code, &err, "the second clean fails");
    enum verb_state after = verb_state(v, &ground, ground.root, true, &why);
    if ((before != after && before != STATE_NONE) || after == STATE_BROKEN ||
        !verb_is_exactly(&ground, ground.root, after))
        verb_fail(v, ground.root, "killed at %u, allocation %u of clean fails: neither old nor new (%s)", killed_at, k,
                  why);
    return made;
}

static void test_clean(void **state)
{
    (void)state;
    for (size_t i = 0; i < nverbs; i++) {
        if (!verbs[i].old || verbs[i].kind == VERB_SAVE)
            continue;
        ground_set_up(&ground, &verbs[i]);
        for (unsigned n = 16; n < ground.nops[0]; n += verbs[i].mount || verbs[i].no_exchange ? 7 : 40)
            for (unsigned k = 0, made = UINT_MAX; k < made; k += 3 * SWEEP_STEP)
                made = clean_after(&verbs[i], n, k);
    }
}

/* ---- verbs that only read */

static void ignore_problem(void *ctx, const struct fsdpck_problem *p)
{
    (void)p;
    ++*(unsigned *)ctx;
}

static int verify(struct fsdpck_error *err, unsigned *nwrong)
{
    const struct fsdpck_options opt = { .nthreads = 1, .memory_nbytes = 16 << 20 };
    struct fsdpck_verify_result result;
    int rc = fsdpck_verify(ground.checkpoint, NULL, false, &opt, ignore_problem, nwrong, &result, err);
    *nwrong += rc == 0 && result.nproblems > 0;
    return rc;
}

static void ignore_difference(void *ctx, const struct fsdpck_difference *d)
{
    (void)d;
    ++*(unsigned *)ctx;
}

static int diff(struct fsdpck_error *err, unsigned *nwrong)
{
    const struct fsdpck_options opt = { .nthreads = 1, .memory_nbytes = 16 << 20 };
    struct fsdpck_source *a = NULL, *b = NULL;
    struct fsdpck_diff_result result;
    int rc = fsdpck_source_open(ground.folder, NULL, &opt, &a, err);
    if (rc == 0)
        rc = fsdpck_source_open(ground.checkpoint, NULL, &opt, &b, err);
    if (rc == 0)
        rc = fsdpck_diff(a, b, -1, &opt, ignore_difference, nwrong, &result, err);
    fsdpck_source_close(a);
    fsdpck_source_close(b);
    return rc;
}

static int leftovers(struct fsdpck_error *err, unsigned *nwrong)
{
    (void)nwrong;
    return fsdpck_leftovers(ground.root, FSDPCK_CLEAN_NOTHING, NULL, NULL, NULL, err);
}

static unsigned run_reader(const char *name, int (*reader)(struct fsdpck_error *, unsigned *), unsigned n)
{
    struct fsdpck_error err = { 0 };
    unsigned nwrong = 0;
    failing_malloc_begin(n);
    int rc = reader(&err, &nwrong);
    unsigned made = failing_malloc_end();
    if (rc != 0 && (rc != FSDPCK_ERR_NOMEM || err.code != rc || err.message[0] == '\0'))
        complain(name, n, rc, &err, "that is not what it says");
    if (nwrong > 0)
        complain(name, n, rc, &err, "it finds what is not there");
    return made;
}

static void each_allocation_by(const char *name, int (*reader)(struct fsdpck_error *, unsigned *))
{
    unsigned made = run_reader(name, reader, UINT_MAX);
    assert_true(made > 0);
    for (unsigned n = 0; n < made; n = sweep_next(n))
        run_reader(name, reader, n);
}

static void test_readers(void **state)
{
    (void)state;
    ground_reset(&ground, &verbs[0]);
    each_allocation_by("verify", verify);
    each_allocation_by("diff", diff);
    each_allocation_by("leftovers", leftovers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_verbs),
        cmocka_unit_test(test_clean),
        cmocka_unit_test(test_readers),
    };
    return cmocka_run_group_tests(tests, group_set_up, group_tear_down);
}
