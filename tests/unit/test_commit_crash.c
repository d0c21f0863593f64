/* SPDX-License-Identifier: Apache-2.0 */
/* The commit protocol under faults: killed before every operation, every operation failing once, and power lost after
 * every change. OUT is always wholly old or wholly new, and clean removes everything else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fsdpck/check.h>

#include "save_case.h"
#include "seen.h"
#include "tree.h"

enum { NSEEDS = 10 };

static struct seen good; /* states after crashes of one case that were judged good */

struct ground {
    char *top, *root, *crash, *boot;
};

static void ground_new(struct ground *g)
{
    g->top = tree_new();
    g->root = tree_path(g->top, "root");
    g->crash = tree_path(g->top, "crash");
    g->boot = tree_path(g->top, "boot_id");
    tree_file(g->top, "boot_id", "22222222-2222-4222-9222-222222222222\n");
    tree_dir(g->top, "root");
}

static void ground_free(struct ground *g)
{
    tree_remove(g->top);
    free(g->top);
    free(g->root);
    free(g->crash);
    free(g->boot);
}

/* Cleans up after a crash. other_boot: the machine was rebooted. */
static int clean(const struct save_case *c, const struct ground *g, const char *root, bool other_boot, unsigned kill_at,
                 bool *killed)
{
    struct fsdpck_error err = { 0 };
    struct faulty *f = faulty_new(root);
    struct fsdpck_options opt = { .io = faulty_io(f) };
    char *out = tree_path(root, c->out);
    if (other_boot)
        faulty_redirect(f, "/proc/sys/kernel/random/boot_id", g->boot);
    if (kill_at != UINT32_MAX)
        faulty_kill_at(f, kill_at);
    int rc = fsdpck_leftovers(out, FSDPCK_CLEAN_DEAD, &opt, NULL, NULL, &err);
    if (killed != NULL)
        *killed = faulty_hit(f);
    if (rc != 0 && err.sys_errno == ENOENT && !tree_exists(root, "p/q"))
        rc = 0; /* not even the parent directory of OUT was created */
    free(out);
    faulty_free(f);
    return rc;
}

static struct faulty *start(const struct save_case *c, const struct ground *g)
{
    seen_forget(&good);
    tree_remove(g->root);
    tree_dir(g->top, "root");
    save_case_setup(c, g->root);
    struct faulty *f = faulty_new(g->root);
    save_case_lies(c, f, g->root);
    return f;
}

static void fail_with_tree(const struct save_case *c, const char *root, const char *what, long at)
{
    char *dump = tree_dump(root);
    print_error("%s: %s %ld:\n%s", c->name, what, at, dump);
    free(dump);
    fail();
}

/* ---- power loss, and kill -9 */

static const char *check_crash(const struct save_case *c, const struct ground *g, const struct faulty *f,
                               size_t nevents, int seed, int ignored)
{
    bool complete = nevents == faulty_nevents(f);
    uint64_t digest = faulty_after_crash(f, nevents, seed, ignored, NULL) + 2 * complete + (seed >= 0);
    if (seen_has(&good, digest))
        return NULL;
    tree_remove(g->crash);
    faulty_after_crash(f, nevents, seed, ignored, g->crash);
    if (!save_case_is_whole(c, g->crash))
        return "neither old nor new";
    if (clean(c, g, g->crash, seed >= 0, UINT32_MAX, NULL) != 0)
        return "cannot be cleaned";
    if (!save_case_is_new(c, g->crash) && (complete || !save_case_is_old(c, g->crash)))
        return complete ? "not the new one although finish had returned" : "neither old nor new once cleaned";
    seen_add(&good, digest);
    return NULL;
}

static void explore(const struct save_case *c, const struct ground *g, const struct faulty *f)
{
    char text[600], event[300];
    for (size_t n = 0; n <= faulty_nevents(f); n++)
        for (int seed = FAULTY_ALL; seed < NSEEDS; seed++) {
            const char *wrong = check_crash(c, g, f, n, seed, -1);
            if (wrong == NULL)
                continue;
            snprintf(text, sizeof text, "%s (seed %d, after '%s'), event", wrong, seed,
                     n > 0 ? faulty_event_text(f, n - 1, event, sizeof event) : "");
            fail_with_tree(c, g->crash, text, (long)n);
        }
}

static void test_crashes(void **state)
{
    (void)state;
    for (size_t i = 0; i < nsave_cases; i++) {
        struct fsdpck_error err = { 0 };
        struct ground g;
        ground_new(&g);
        struct faulty *f = start(&save_cases[i], &g);
        if (save_case_run(&save_cases[i], faulty_io(f), g.root, &err) != 0)
            fail_msg("%s: %s", save_cases[i].name, err.message);
        if (!save_case_is_new(&save_cases[i], g.root))
            fail_with_tree(&save_cases[i], g.root, "not the new one after", 0);
        explore(&save_cases[i], &g, f);
        faulty_free(f);
        ground_free(&g);
    }
}

/* Returns true if leaving out fsync k breaks a state. */
static bool is_caught(const struct save_case *c, const struct ground *g, const struct faulty *f, int k)
{
    for (int seed = 0; seed < 20 * NSEEDS; seed++)
        for (size_t n = faulty_nevents(f) + 1; n-- > 0;)
            if (check_crash(c, g, f, n, seed, k) != NULL)
                return true;
    return false;
}

/* Every fsync is needed: the test above fails without it. This also proves that it can fail. */
static void test_every_fsync_matters(void **state)
{
    (void)state;
    for (size_t i = 0; i < nsave_cases; i++) {
        struct ground g;
        ground_new(&g);
        struct faulty *f = start(&save_cases[i], &g);
        assert_int_equal(save_case_run(&save_cases[i], faulty_io(f), g.root, NULL), 0);
        assert_true(faulty_nfsyncs(f) > 0);
        for (int k = 0; k < (int)faulty_nfsyncs(f); k++)
            if (k != save_cases[i].spare_fsync - 1 && !is_caught(&save_cases[i], &g, f, k))
                fail_msg("%s: fsync %d of %zu can be left out and no crash shows it", save_cases[i].name, k,
                         faulty_nfsyncs(f));
        faulty_free(f);
        ground_free(&g);
    }
}

/* ---- the process sees its operations fail */

/* One run with a fault; returns true if the operation was reached. */
static bool run_fault(const struct save_case *c, const struct ground *g, unsigned n, bool kill, int sys_errno)
{
    struct fsdpck_error err = { 0 };
    struct faulty *f = start(c, g);
    if (kill)
        faulty_kill_at(f, n);
    else
        faulty_fail_at(f, n, sys_errno);
    int rc = save_case_run(c, faulty_io(f), g->root, &err);
    bool hit = faulty_hit(f);
    faulty_free(f);
    if (!kill && (sys_errno == EINTR || sys_errno == 0) && rc != 0)
        fail_with_tree(c, g->root, "an interrupted or short transfer is a failure, operation", (long)n);
    if (rc != 0 && (err.code != rc || err.message[0] == '\0'))
        fail_with_tree(c, g->root, "a failure without words, operation", (long)n);
    if (!save_case_is_whole(c, g->root) && !save_case_is_new(c, g->root))
        fail_with_tree(c, g->root, "neither old nor new, operation", (long)n);
    bool undone = rc != 0 && !kill;
    bool in_place_committed = undone && strstr(err.hint, "the new one stands") != NULL;
    if (undone && !in_place_committed && !save_case_is_old(c, g->root))
        fail_with_tree(c, g->root, "failed and left something, operation", (long)n);
    if (clean(c, g, g->root, false, UINT32_MAX, NULL) != 0)
        fail_with_tree(c, g->root, "cannot be cleaned, operation", (long)n);
    if (!save_case_is_new(c, g->root) && (rc == 0 || !save_case_is_old(c, g->root)))
        fail_with_tree(c, g->root,
                       rc == 0 ? "not new after success, operation" : "neither old nor new once cleaned, operation",
                       (long)n);
    return hit;
}

static void each_operation(bool kill, int sys_errno)
{
    for (size_t i = 0; i < nsave_cases; i++) {
        struct ground g;
        ground_new(&g);
        struct faulty *f = start(&save_cases[i], &g);
        assert_int_equal(save_case_run(&save_cases[i], faulty_io(f), g.root, NULL), 0);
        unsigned nops = faulty_nops(f), nhits = 0;
        faulty_free(f);
        for (unsigned n = 0; n < nops; n++)
            nhits += run_fault(&save_cases[i], &g, n, kill, sys_errno);
        assert_true(nhits > 0);
        ground_free(&g);
    }
}

static void test_killed(void **state)
{
    (void)state;
    each_operation(true, 0);
}

static void test_no_space(void **state)
{
    (void)state;
    each_operation(false, ENOSPC);
}

static void test_input_output_error(void **state)
{
    (void)state;
    each_operation(false, EIO);
}

static void test_no_permission(void **state)
{
    (void)state;
    each_operation(false, EACCES);
}

static void test_interrupted(void **state)
{
    (void)state;
    each_operation(false, EINTR);
}

static void test_short_transfers(void **state)
{
    (void)state;
    each_operation(false, 0);
}

/* ---- clean itself is killed */

static void kill_clean(const struct save_case *c, const struct ground *g, const struct faulty *f, size_t nevents)
{
    bool killed = true;
    for (unsigned n = 0; killed; n++) {
        tree_remove(g->crash);
        faulty_after_crash(f, nevents, FAULTY_ALL, -1, g->crash);
        clean(c, g, g->crash, false, n, &killed);
        if (!save_case_is_whole(c, g->crash))
            fail_with_tree(c, g->crash, "clean was killed and left neither old nor new, operation", (long)n);
        if (clean(c, g, g->crash, false, UINT32_MAX, NULL) != 0 ||
            (!save_case_is_old(c, g->crash) && !save_case_is_new(c, g->crash)))
            fail_with_tree(c, g->crash, "clean was killed and cannot go on, operation", (long)n);
    }
}

static void test_clean_is_killed(void **state)
{
    (void)state;
    for (size_t i = 0; i < nsave_cases; i++) {
        struct ground g;
        if (!save_cases[i].old)
            continue;
        ground_new(&g);
        struct faulty *f = start(&save_cases[i], &g);
        assert_int_equal(save_case_run(&save_cases[i], faulty_io(f), g.root, NULL), 0);
        for (size_t n = 0; n <= faulty_nevents(f); n += 2)
            kill_clean(&save_cases[i], &g, f, n);
        faulty_free(f);
        ground_free(&g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crashes),
        cmocka_unit_test(test_every_fsync_matters),
        cmocka_unit_test(test_killed),
        cmocka_unit_test(test_no_space),
        cmocka_unit_test(test_input_output_error),
        cmocka_unit_test(test_no_permission),
        cmocka_unit_test(test_interrupted),
        cmocka_unit_test(test_short_transfers),
        cmocka_unit_test(test_clean_is_killed),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    seen_forget(&good);
    return failed;
}
