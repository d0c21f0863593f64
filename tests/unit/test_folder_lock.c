/* SPDX-License-Identifier: Apache-2.0 */
/* The lock of a folder: it names its owner to others, and is taken over if the owner is provably gone. */
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

#include <fsdpck/lock.h>

#include "below.h"
#include "save_case.h"
#include "tree.h"

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

static void refused(const char *folder, const struct fsdpck_options *opt, const char *words)
{
    struct fsdpck_folder_lock *lock;
    struct fsdpck_error err = { 0 };
    assert_int_equal(fsdpck_folder_lock(folder, "run", opt, &lock, &err), FSDPCK_ERR_BUSY);
    assert_ptr_equal(lock, NULL);
    assert_true(strstr(err.message, words) != NULL);
}

static void taken(const char *folder, const struct fsdpck_options *opt)
{
    struct fsdpck_folder_lock *lock;
    struct fsdpck_error err = { 0 };
    assert_int_equal(fsdpck_folder_lock(folder, "run", opt, &lock, &err), 0);
    assert_true(fsdpck_folder_is_locked(lock));
    fsdpck_folder_unlock(lock);
    assert_tree(folder, "");
}

static void test_second(void **state)
{
    struct fsdpck_folder_lock *lock;
    struct fsdpck_error err = { 0 };
    char words[80];
    assert_int_equal(fsdpck_folder_lock(*state, "run", NULL, &lock, &err), 0);
    snprintf(words, sizeof words, "another run is at work in it: process %d on host '", (int)getpid());
    refused(*state, NULL, words);
    fsdpck_folder_unlock(lock);
    taken(*state, NULL);
}

/* The lock ends with its owner; the file remains, and the next owner takes it over. */
static void test_killed(void **state)
{
    struct fsdpck_folder_lock *lock;
    int ready[2], status;
    char byte;
    assert_int_equal(pipe(ready), 0);
    pid_t owner = fork();
    assert_true(owner >= 0);
    if (owner == 0) {
        struct fsdpck_error err = { 0 };
        if (fsdpck_folder_lock(*state, "run", NULL, &lock, &err) != 0 || write(ready[1], "x", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    refused(*state, NULL, "another run is at work in it");
    kill(owner, SIGKILL);
    assert_int_equal(waitpid(owner, &status, 0), owner);
    assert_true(tree_exists(*state, ".fsdpck-lock"));
    taken(*state, NULL);
    close(ready[0]);
    close(ready[1]);
}

static void test_elsewhere(void **state)
{
    tree_file(*state, ".fsdpck-lock",
              "{\"host\":\"elsewhere\",\"boot\":\"0e0e0e0e-0000-4000-8000-000000000000\",\"pid\":77,\"save_id\":\"\"}");
    refused(*state, NULL, "another run may be at work in it: process 77 on host 'elsewhere'");
    tree_file(*state, ".fsdpck-lock", "{\"ho");
    taken(*state, NULL); /* killed at its start, before locking */
}

static void test_removed(void **state)
{
    struct fsdpck_folder_lock *lock;
    struct fsdpck_error err = { 0 };
    assert_int_equal(fsdpck_folder_lock(*state, "run", NULL, &lock, &err), 0);
    assert_int_equal(unlink(below(*state, ".fsdpck-lock")), 0);
    assert_false(fsdpck_folder_is_locked(lock));
    tree_file(*state, ".fsdpck-lock", "another's");
    assert_false(fsdpck_folder_is_locked(lock));
    fsdpck_folder_unlock(lock);
    assert_tree(*state, ".fsdpck-lock=another's\n");
}

/* Without file locks: a lock file of this boot may have a live owner; a new file belongs to the caller. */
static void test_no_locks(void **state)
{
    struct fsdpck_folder_lock *lock;
    struct fsdpck_error err = { 0 };
    struct faulty *f = faulty_new(*state);
    const struct fsdpck_options opt = { .io = faulty_io(f) };
    faulty_no_locks(f);
    taken(*state, &opt);
    assert_int_equal(fsdpck_folder_lock(*state, "run", &opt, &lock, &err), 0);
    refused(*state, &opt, "the file system has no locks");
    fsdpck_folder_unlock(lock);
    taken(*state, &opt);
    faulty_free(f);
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = { T(test_second), T(test_killed), T(test_elsewhere), T(test_removed),
                                        T(test_no_locks) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
