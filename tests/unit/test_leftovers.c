/* SPDX-License-Identifier: Apache-2.0 */
/* fsdpck_leftovers(): which files it finds, which owners it considers dead, and which files it removes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utime.h>

#include "base/hash.h"
#include "below.h"
#include "leftover_case.h"
#include "tree.h"

/* Writes a writer file by hand. */
static void writer(struct leftover_case *x, const char *name, const char *host, const char *boot)
{
    char text[256];
    snprintf(text, sizeof text, "{\"host\":\"%s\",\"boot\":\"%s\",\"pid\":1,\"save_id\":\"" A "\"}", host, boot);
    tree_file(x->root, name, text);
}

/* A writer that is killed during its work. */
static void kill_writer(struct leftover_case *x, const char *name, const char *uuid)
{
    struct fsdpck_commit *c;
    int status;
    pid_t child = fork();
    if (child == 0) {
        if (leftover_begin(x, name, uuid, &c) == 0)
            tree_file(fsdpck_commit_dir(c), "sub/data", "half");
        raise(SIGKILL);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
}

/* ---- */

static void test_nothing(void **state)
{
    struct leftover_case *x = *state;
    tree_file(x->root, "out/index.json", "new");
    tree_file(x->root, "out.tmp-1234/x", "mine");
    tree_file(x->root, "out.tmp/x", "mine");
    tree_file(x->root, "other.tmp-" A "/x", "another output's");
    assert_int_equal(leftover_list(x, "out", true), 0);
    assert_string_equal(x->report, "");
    assert_int_equal(leftover_list(x, "missing", true), 0);
    assert_string_equal(x->report, "");
    assert_int_not_equal(leftover_list(x, "no/such/place", true), 0);
    assert_true(tree_exists(x->root, "out.tmp-1234/x") && tree_exists(x->root, "out.tmp/x") &&
                tree_exists(x->root, "other.tmp-" A "/x"));
}

static void test_writer_at_work(void **state)
{
    struct leftover_case *x = *state;
    struct fsdpck_commit *c;
    assert_int_equal(leftover_begin(x, "out", A, &c), 0);
    char *before = tree_dump(x->root);
    assert_int_equal(leftover_list(x, "out", true), 0);
    assert_string_equal(x->report, "out.tmp-" A " alive: locked by a writer\n");
    assert_tree(x->root, before);
    free(before);
    fsdpck_commit_abandon(c);
    assert_int_equal(leftover_list(x, "out", true), 0);
    assert_string_equal(x->report, "");
    assert_tree(x->root, "");
}

static void test_killed_writer(void **state)
{
    struct leftover_case *x = *state;
    tree_file(x->root, "out/index.json", "{\"format\":\"fsdpck\"}");
    kill_writer(x, "out", A);
    char *before = tree_dump(x->root);
    assert_int_equal(leftover_list(x, "out", false), 0);
    assert_string_equal(x->report, "out.tmp-" A " dead: writer is gone\n.out.fsdpck-lock dead: writer is gone\n");
    assert_tree(x->root, before);
    free(before);
    assert_int_equal(leftover_list(x, "out", true), 0);
    assert_string_equal(x->report,
                        "out.tmp-" A " dead removed: writer is gone\n.out.fsdpck-lock dead removed: writer is gone\n");
    assert_tree(x->root, "out/\nout/index.json={\"format\":\"fsdpck\"}\n");
}

static void test_everything_in_a_directory(void **state)
{
    struct leftover_case *x = *state;
    struct fsdpck_commit *c;
    tree_dir(x->root, "runs");
    kill_writer(x, "runs/step-1", A);
    assert_int_equal(leftover_begin(x, "runs/step-2", B, &c), 0);
    assert_int_equal(leftover_list(x, "runs", true), 0);
    assert_non_null(strstr(x->report, "runs/step-1.tmp-" A " dead removed"));
    assert_non_null(strstr(x->report, "runs/step-2.tmp-" B " alive:"));
    fsdpck_commit_abandon(c);
    assert_tree(x->root, "runs/\n");
}

/* ---- dead or alive */

struct witness {
    const char *host, *boot;
    bool no_locks;
    bool alive;
    const char *why;
};

static void test_witnesses(void **state)
{
    static const struct witness witnesses[] = {
        { HERE, BOOT, false, false, "writer is gone" },
        { HERE, OTHER_BOOT, false, false, "started anew" },
        { "elsewhere", OTHER_BOOT, false, true, "made on host 'elsewhere'" },
        { "container", BOOT, false, false, "writer is gone" },
        { HERE, "", false, false, "writer is gone" },
        { HERE, BOOT, true, true, "no locks" },
        { HERE, OTHER_BOOT, true, false, "started anew" },
        { "elsewhere", "", true, true, "elsewhere" },
    };
    struct leftover_case *x = *state;
    for (size_t i = 0; i < sizeof witnesses / sizeof witnesses[0]; i++) {
        const struct witness *w = &witnesses[i];
        struct leftover_case *y;
        leftover_setup((void **)&y);
        if (w->no_locks)
            faulty_no_locks(y->f);
        tree_file(y->root, "out.tmp-" A "/data", "half");
        writer(y, ".out.writer-" A, w->host, w->boot);
        assert_int_equal(leftover_list(y, "out", true), 0);
        assert_non_null(strstr(y->report, w->why));
        assert_non_null(strstr(y->report, w->alive ? " alive: " : " dead removed: "));
        assert_int_equal(tree_exists(y->root, "out.tmp-" A "/data"), w->alive);
        assert_int_equal(tree_exists(y->root, ".out.writer-" A), w->alive);
        leftover_teardown((void **)&y);
    }
    assert_tree(x->root, "");
}

static void test_no_witness(void **state)
{
    struct leftover_case *x = *state;
    tree_file(x->root, "out.tmp-" A "/data", "whose?");
    assert_int_equal(leftover_list(x, "out", true), 0);
    assert_string_equal(x->report, "out.tmp-" A " alive: nothing says who made it\n");
    assert_tree(x->root, "out.tmp-" A "/\nout.tmp-" A "/data=whose?\n");
}

static void test_witness_is_torn(void **state)
{
    struct leftover_case *x = *state;
    tree_file(x->root, ".out.writer-" A, "{\"ho");
    tree_file(x->root, ".out.writer-" B, "");
    tree_file(x->root, ".out.fsdpck-lock", "");
    tree_dir(x->root, "out.tmp-" A);
    assert_int_equal(leftover_list(x, "out", true), 0);
    assert_non_null(strstr(x->report, "stopped at its start"));
    assert_tree(x->root, "");
}

/* ---- old outputs */

static void test_old_one_moves_back(void **state)
{
    struct leftover_case *x = *state;
    tree_file(x->root, "out.old-" A "/index.json", "old");
    tree_file(x->root, "out.tmp-" A "/index.json", "new");
    writer(x, ".out.writer-" A, HERE, OTHER_BOOT);
    assert_int_equal(leftover_list(x, "out", false), 0);
    assert_non_null(strstr(x->report, "out.old-" A " dead: "));
    assert_non_null(strstr(x->report, "clean moves it back"));
    assert_false(tree_exists(x->root, "out"));
    assert_int_equal(leftover_list(x, "out", true), 0);
    assert_non_null(strstr(x->report, "out.old-" A " dead removed: "));
    assert_non_null(strstr(x->report, "moved back"));
    assert_tree(x->root, "out/\nout/index.json=old\n");
}

static void test_old_one_waits_for_a_writer(void **state)
{
    struct leftover_case *x = *state;
    struct fsdpck_commit *c;
    tree_file(x->root, "out.old-" A "/index.json", "old");
    writer(x, ".out.writer-" A, HERE, OTHER_BOOT);
    assert_int_equal(leftover_begin(x, "out", B, &c), 0);
    assert_int_equal(leftover_list(x, "out", true), 0);
    assert_true(tree_exists(x->root, "out.old-" A "/index.json"));
    fsdpck_commit_abandon(c);
    assert_int_equal(leftover_list(x, "out", true), 0);
    assert_tree(x->root, "out/\nout/index.json=old\n");
}

static void test_old_one_is_not_needed(void **state)
{
    struct leftover_case *x = *state;
    tree_file(x->root, "out/index.json", "new");
    tree_file(x->root, "out.old-" A "/index.json", "old");
    writer(x, ".out.writer-" A, HERE, BOOT);
    assert_int_equal(leftover_list(x, "out", false), 0);
    assert_string_equal(x->report, "out.old-" A " dead: writer is gone\n");
    assert_int_equal(leftover_list(x, "out", true), 0);
    assert_tree(x->root, "out/\nout/index.json=new\n");
}

static void age(struct leftover_case *x, const char *name, time_t when)
{
    struct utimbuf t = { when, when };
    assert_int_equal(utime(below(x->root, name), &t), 0);
}

static void test_youngest_old_one_moves_back(void **state)
{
    for (int youngest = 0; youngest < 2; youngest++) {
        struct leftover_case *x;
        leftover_setup((void **)&x);
        tree_file(x->root, "out.old-" A "/index.json", "a");
        tree_file(x->root, "out.old-" B "/index.json", "b");
        writer(x, ".out.writer-" A, HERE, BOOT);
        writer(x, ".out.writer-" B, HERE, BOOT);
        age(x, "out.old-" A, youngest == 0 ? 2000000 : 1000000);
        age(x, "out.old-" B, youngest == 1 ? 2000000 : 1000000);
        assert_int_equal(leftover_list(x, "out", true), 0);
        assert_true(tree_exists(x->root, "out"));
        if (tree_exists(x->root, "out.old-" A)) /* an older one that comes first waits for the next clean */
            assert_int_equal(leftover_list(x, "out", true), 0);
        assert_tree(x->root, youngest == 0 ? "out/\nout/index.json=a\n" : "out/\nout/index.json=b\n");
        leftover_teardown((void **)&x);
    }
    (void)state;
}

static void test_old_one_of_someone_else(void **state)
{
    struct leftover_case *x = *state;
    tree_file(x->root, "out.old-" A "/index.json", "old");
    writer(x, ".out.writer-" A, "elsewhere", OTHER_BOOT);
    assert_int_equal(leftover_list(x, "out", true), 0);
    assert_non_null(strstr(x->report, " alive: made on host 'elsewhere'"));
    assert_true(tree_exists(x->root, "out.old-" A "/index.json"));
    assert_false(tree_exists(x->root, "out"));
}

/* ---- written in place */

static void test_unfinished_in_place(void **state)
{
    struct leftover_case *x = *state;
    tree_file(x->root, "out/index.json", "old");
    tree_file(x->root, "out/notes", "mine");
    tree_file(x->root, "out/__0_0-" A ".distcp", "half");
    tree_file(x->root, "out/assets.tmp-" A "/config.json", "half");
    tree_file(x->root, "out/index.json.tmp-" A, "half");
    writer(x, "out/.writer-" A, HERE, BOOT);
    assert_int_equal(leftover_list(x, "out", false), 0);
    assert_non_null(strstr(x->report, "out/__0_0-" A ".distcp dead: writer is gone\n"));
    assert_non_null(strstr(x->report, "out/index.json.tmp-" A " dead: writer is gone\n"));
    assert_int_equal(leftover_list(x, "out", true), 0);
    assert_non_null(strstr(x->report, "out/__0_0-" A ".distcp dead removed: writer is gone\n"));
    assert_tree(x->root, "out/\nout/index.json=old\nout/notes=mine\n");
}

static void test_in_place_of_someone_else(void **state)
{
    struct leftover_case *x = *state;
    tree_file(x->root, "out/__0_0-" A ".distcp", "half");
    writer(x, "out/.writer-" A, "elsewhere", OTHER_BOOT);
    char *before = tree_dump(x->root);
    assert_int_equal(leftover_list(x, "out", true), 0);
    assert_non_null(strstr(x->report, "out/__0_0-" A ".distcp alive: made on host 'elsewhere'\n"));
    assert_tree(x->root, before);
    free(before);
}

/* The journal of another save than the present one must not touch the present one. */
static void test_journal_is_of_another_save(void **state)
{
    struct leftover_case *x = *state;
    tree_file(x->root, "out/index.json", "of b");
    tree_file(x->root, "out/__0_0-" B ".distcp", "b");
    tree_file(x->root, "out/.metadata", "b");
    tree_file(x->root, "out/.metadata.tmp-" A, "a");
    tree_file(x->root, "out/.commit-" A,
              "{\"record\":\"index.json\",\"hash\":\"00000000000000000000000000000000\",\"replaces\":[\".metadata\"]}");
    writer(x, "out/.writer-" A, HERE, BOOT);
    assert_int_equal(leftover_list(x, "out", true), 0);
    assert_tree(x->root, "out/\nout/.metadata=b\nout/__0_0-" B ".distcp=b\nout/index.json=of b\n");
}

/* A journal in a directory from elsewhere may only name checkpoint files. */
static void test_journal_is_hostile(void **state)
{
    struct leftover_case *x = *state;
    struct fsdpck_hash128 hash;
    char text[512], hex[33];
    fsdpck_hash("record", 6, &hash);
    for (int i = 0; i < 16; i++)
        snprintf(hex + 2 * i, 3, "%02x", hash.bytes[i]);
    snprintf(text, sizeof text, "{\"record\":\"index.json\",\"hash\":\"%s\",\"replaces\":[\"../precious\"]}", hex);
    tree_file(x->root, "precious", "keep");
    tree_file(x->root, "out/index.json", "record");
    tree_file(x->root, "out/.commit-" A, text);
    writer(x, "out/.writer-" A, HERE, BOOT);
    assert_int_equal(leftover_list(x, "out", true), 0);
    assert_true(tree_exists(x->root, "precious"));
    assert_true(tree_exists(x->root, "out/index.json"));
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, leftover_setup, leftover_teardown)
    const struct CMUnitTest tests[] = {
        T(test_nothing),
        T(test_writer_at_work),
        T(test_killed_writer),
        T(test_everything_in_a_directory),
        T(test_witnesses),
        T(test_no_witness),
        T(test_witness_is_torn),
        T(test_old_one_moves_back),
        T(test_old_one_waits_for_a_writer),
        T(test_old_one_is_not_needed),
        T(test_youngest_old_one_moves_back),
        T(test_old_one_of_someone_else),
        T(test_unfinished_in_place),
        T(test_in_place_of_someone_else),
        T(test_journal_is_of_another_save),
        T(test_journal_is_hostile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
