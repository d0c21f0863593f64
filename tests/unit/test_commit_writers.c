/* SPDX-License-Identifier: Apache-2.0 */
/* Several writers of one output: one works, the others are refused; a dead writer blocks nobody. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "below.h"
#include "save_case.h"
#include "save_steps.h"
#include "tree.h"

static const char other_uuid[] = "33333333-3333-4333-9333-333333333333";

static int setup(void **state)
{
    *state = tree_new();
    return 0;
}

static int teardown(void **state)
{
    tree_remove(*state);
    free(*state);
    return 0;
}

static void test_two_writers(void **state)
{
    struct fsdpck_error err;
    struct fsdpck_commit *a, *b;
    assert_int_equal(
        save_begin(&fsdpck_io_posix, below(*state, "out"), FSDPCK_COMMIT_CHECKPOINT, SAVE_UUID, false, &a, &err), 0);
    assert_int_equal(
        save_begin(&fsdpck_io_posix, below(*state, "./out/"), FSDPCK_COMMIT_CHECKPOINT, other_uuid, true, &b, &err),
        FSDPCK_ERR_BUSY);
    assert_non_null(strstr(err.message, SAVE_UUID));
    assert_non_null(strstr(err.file, "out"));
    tree_file(fsdpck_commit_dir(a), "index.json", SAVE_NEW);
    assert_int_equal(fsdpck_commit_finish(a, &err), 0);
    assert_tree(*state, "out/\nout/index.json=" SAVE_NEW "\n");
    assert_int_equal(
        save_begin(&fsdpck_io_posix, below(*state, "out"), FSDPCK_COMMIT_CHECKPOINT, other_uuid, true, &b, &err), 0);
    fsdpck_commit_abandon(b);
    assert_tree(*state, "out/\nout/index.json=" SAVE_NEW "\n");
}

static void test_other_outputs_are_free(void **state)
{
    struct fsdpck_error err;
    struct fsdpck_commit *a, *b;
    assert_int_equal(
        save_begin(&fsdpck_io_posix, below(*state, "a"), FSDPCK_COMMIT_CHECKPOINT, SAVE_UUID, false, &a, &err), 0);
    assert_int_equal(save_begin(&fsdpck_io_posix, below(*state, "b"), FSDPCK_COMMIT_FILE, other_uuid, false, &b, &err),
                     0);
    fsdpck_commit_abandon(b);
    fsdpck_commit_abandon(a);
    fsdpck_commit_abandon(NULL);
    assert_tree(*state, "");
}

/* A killed writer leaves its lock file, which must not block others. */
static void test_stale_lock(void **state)
{
    struct fsdpck_error err;
    struct fsdpck_commit *c;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        save_begin(&fsdpck_io_posix, below(*state, "out"), FSDPCK_COMMIT_CHECKPOINT, other_uuid, false, &c, &err);
        raise(SIGKILL);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_true(tree_exists(*state, ".out.fsdpck-lock"));
    assert_int_equal(save_directory(&fsdpck_io_posix, below(*state, "out"), false, NULL, &err), 0);
    assert_false(tree_exists(*state, ".out.fsdpck-lock"));
    assert_true(tree_exists(*state, "out/index.json"));
    assert_false(tree_exists(*state, "out.tmp-33333333-3333-4333-9333-333333333333")); /* its writer is dead */
}

/* Many processes at once: never two inside, while the lock file is created and removed all the time. */
static void contend(const char *root)
{
    for (int i = 0; i < 50; i++) {
        struct fsdpck_error err;
        struct fsdpck_commit *c;
        char uuid[] = "44444444-4444-4444-9444-444444444444";
        snprintf(uuid, 9, "%08x", (unsigned)(getpid() * 64 + i));
        uuid[8] = '-';
        int rc = save_begin(&fsdpck_io_posix, below(root, "out"), FSDPCK_COMMIT_CHECKPOINT, uuid, true, &c, &err);
        if (rc == FSDPCK_ERR_BUSY)
            continue;
        if (rc != 0 || mkdir(below(root, "inside"), 0777) != 0 || rmdir(below(root, "inside")) != 0)
            _exit(1);
        fsdpck_commit_abandon(c);
    }
    _exit(0);
}

static void test_contention(void **state)
{
    enum { NPROCESSES = 4 };
    pid_t children[NPROCESSES];
    for (int i = 0; i < NPROCESSES; i++)
        if ((children[i] = fork()) == 0)
            contend(*state);
    for (int i = 0; i < NPROCESSES; i++) {
        int status;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_int_equal(status, 0);
    }
    assert_tree(*state, "");
}

static void test_lock_is_not_written_through_a_link(void **state)
{
    struct fsdpck_error err;
    tree_file(*state, "precious", "keep");
    assert_int_equal(symlink("precious", below(*state, ".out.fsdpck-lock")), 0);
    assert_int_equal(save_directory(&fsdpck_io_posix, below(*state, "out"), false, NULL, &err), FSDPCK_ERR_IO);
    assert_tree(*state, ".out.fsdpck-lock->precious\nprecious=keep\n");
}

static void test_file_system_without_locks(void **state)
{
    struct fsdpck_error err;
    struct faulty *f = faulty_new(*state);
    faulty_no_locks(f);
    assert_int_equal(save_directory(faulty_io(f), below(*state, "out"), false, NULL, &err), 0);
    assert_tree(*state, "out/\nout/index.json=" SAVE_NEW "\n");
    faulty_free(f);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_two_writers),
        T(test_other_outputs_are_free),
        T(test_stale_lock),
        T(test_contention),
        T(test_lock_is_not_written_through_a_link),
        T(test_file_system_without_locks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
