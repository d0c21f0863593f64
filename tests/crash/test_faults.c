/* SPDX-License-Identifier: Apache-2.0 */
/* Every verb, with each of its operations failing once: ENOSPC, EIO, EACCES, ENOMEM, EINTR, a short transfer. Either
 * the fault is harmless and the new output is complete, or the verb reports what failed and where, and leaves
 * everything unchanged. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "sweep.h"
#include "tree.h"
#include "verbs.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct fault {
    const struct verb *v;
    uint32_t rank;
    unsigned n;
    int sys_errno; /* 0: a short transfer */
};

static void wrong(const struct fault *x, const char *what, const struct verb_result *r)
{
    verb_fail(x->v, ground.root, "%s, operation %u of rank %u: %s (its rank says %d, errno %d: '%s': %s)",
              x->sys_errno ? strerror(x->sys_errno) : "a short transfer", x->n, x->rank, what, r->code[x->rank],
              r->err[x->rank].sys_errno, r->err[x->rank].file, r->err[x->rank].message);
}

static bool has_hint(const struct verb_result *r, uint32_t rank, const char *text)
{
    return strstr(r->err[rank].hint, text) != NULL;
}

/* Returns true if the output may be new despite the error: failures after the commit, and a rank that cannot see the
 * commit. */
static bool may_stand(const struct fault *x, const struct verb_result *r)
{
    return has_hint(r, x->rank, "the new one stands") || has_hint(r, x->rank, "cannot see whether");
}

/* The rank with the fault must name the file; the others must report that the save was given up. */
static void check_errors(const struct fault *x, const struct verb_result *r)
{
    const struct fsdpck_error *err = &r->err[x->rank];
    int want = x->sys_errno == ENOMEM ? FSDPCK_ERR_NOMEM : FSDPCK_ERR_IO;
    if (err->code != r->code[x->rank] || err->code != want || err->sys_errno != x->sys_errno)
        wrong(x, "the error does not tell the fault", r);
    if (err->message[0] == '\0' || err->file[0] == '\0')
        wrong(x, "the error does not name the file", r);
    for (uint32_t i = 0; i < verb_writers(x->v); i++)
        if ((r->code[i] == 0 && !may_stand(x, r)) || (r->code[i] != 0 && r->err[i].message[0] == '\0'))
            wrong(x, "another rank does not know that the save failed", r);
}

static void check_after(const struct fault *x, const struct verb_result *r, bool failed)
{
    const char *why;
    struct fsdpck_error err = { 0 };
    struct verb_leftovers left;
    enum verb_state old = x->v->old ? STATE_OLD : STATE_NONE;
    bool stands = !failed || may_stand(x, r);
    if (!stands && !verb_is_exactly(&ground, ground.root, old))
        wrong(x, "it failed and left something", r);
    if (verb_clean(x->v, &ground, ground.root, true, false, NULL, &err) !=
        0) /* left over from a fault in the final cleanup */
        wrong(x, "cannot be cleaned", r);
    enum verb_state state = verb_state(x->v, &ground, ground.root, true, &why);
    bool exactly = verb_is_exactly(&ground, ground.root, state);
    if (x->sys_errno == EACCES && !failed) /* without write access beside the output, it is written in place: names
                                              differ, but nothing is left over */
        exactly = verb_clean(x->v, &ground, ground.root, false, false, &left, &err) == 0 && left.nfound == 0;
    if (state != (stands ? STATE_NEW : old) || !exactly)
        wrong(x, stands ? "it succeeded and the new one does not stand" : "it failed and the old one does not stand",
              r);
}

static bool run_fault(const struct fault *x)
{
    struct faulty *f[VERB_MAX_RANKS];
    struct verb_how how = { .force = x->v->old };
    struct verb_result r;
    bool failed = false;
    ground_reset(&ground, x->v);
    verb_tables(x->v, &ground, f, &how);
    faulty_fail_at(f[x->rank], x->n, x->sys_errno);
    verb_run(x->v, &ground, &how, &r);
    bool hit = faulty_hit(f[x->rank]);
    verb_tables_free(f);
    for (uint32_t i = 0; i < verb_writers(x->v); i++)
        failed |= r.code[i] != 0;
    if (failed && (x->sys_errno == 0 || x->sys_errno == EINTR))
        wrong(x, "this is no reason to fail", &r);
    if (failed)
        check_errors(x, &r);
    check_after(x, &r, failed);
    return hit;
}

static void each_operation(int sys_errno)
{
    for (size_t i = 0; i < nverbs; i++) {
        struct fault x = { .v = &verbs[i], .sys_errno = sys_errno };
        ground_set_up(&ground, x.v);
        for (x.rank = 0; x.rank < verb_writers(x.v); x.rank++) {
            unsigned nhits = 0;
            for (x.n = 0; x.n < ground.nops[x.rank]; x.n = sweep_next(x.n))
                nhits += run_fault(&x);
            assert_true(nhits > 0);
        }
    }
}

static void test_no_space(void **state)
{
    (void)state;
    each_operation(ENOSPC);
}

static void test_input_output_error(void **state)
{
    (void)state;
    each_operation(EIO);
}

static void test_no_permission(void **state)
{
    (void)state;
    each_operation(EACCES);
}

static void test_no_memory_in_the_kernel(void **state)
{
    (void)state;
    each_operation(ENOMEM);
}

static void test_interrupted(void **state)
{
    (void)state;
    each_operation(EINTR);
}

static void test_short_transfers(void **state)
{
    (void)state;
    each_operation(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_space),        cmocka_unit_test(test_input_output_error),
        cmocka_unit_test(test_no_permission),   cmocka_unit_test(test_interrupted),
        cmocka_unit_test(test_short_transfers), cmocka_unit_test(test_no_memory_in_the_kernel),
    };
    return cmocka_run_group_tests(tests, group_set_up, group_tear_down);
}
