/* Every allocation of every verb fails once: the verb says that memory is out, and leaves everything as it was. Leaks and wild pointers on the way
 * are for AddressSanitizer to find. */
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

static struct ground ground;

static void complain(const char *what, unsigned n, int code, const struct fsdpck_error *err, const char *why)
{
    print_error("%s, allocation %u fails: %s (code %d: '%s': %s)\n", what, n, why, code, err->file, err->message);
    fail();
}

/* The verb with allocation n failing; how many it made. */
static unsigned run_verb(const struct verb *v, unsigned n, bool *failed)
{
    struct fsdpck_io io = model_fast_io();
    struct verb_how how = { .io = { &io }, .force = v->old };
    struct verb_result r;
    const char *why;
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
        complain(v->name, n, r.code[0], &r.err[0], "it succeeds, and the output is not the new one");
    return made;
}

static void test_verbs(void **state)
{
    (void)state;
    for (size_t i = 0; i < nverbs; i++) {
        const struct verb *v = &verbs[i];
        bool failed;
        if (v->kind == VERB_SAVE || v->mount || v->no_exchange)
            continue;
        ground_set_up(&ground, v);
        unsigned n = 0, nfailed = 0, made = run_verb(v, UINT_MAX, &failed);
        assert_false(failed);
        for (; n < made; n = sweep_next(n)) {
            run_verb(v, n, &failed);
            nfailed += failed;
        }
        print_message("%s: %u allocations, %u failed\n", v->name, made, nfailed);
        assert_true(nfailed * 2 > made / SWEEP_STEP / 7); /* what needs no memory may go on without, but that is rare */
    }
}

/* ---- what only reads */

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
    return fsdpck_leftovers(ground.root, false, NULL, NULL, NULL, err);
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

static void each_allocation(const char *name, int (*reader)(struct fsdpck_error *, unsigned *))
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
    each_allocation("verify", verify);
    each_allocation("diff", diff);
    each_allocation("leftovers", leftovers);
}

static int set_up(void **state)
{
    (void)state;
    ground_new(&ground);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    ground_free(&ground);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_verbs),
        cmocka_unit_test(test_readers),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
