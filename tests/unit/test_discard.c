/* SPDX-License-Identifier: Apache-2.0 */
/* fsdpck_remove() and fsdpck_set_aside(): what they remove, what they refuse, and what a kill leaves over. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "below.h"
#include "leftover_case.h"
#include "tree.h"

#define INDEX \
    "{\"format\":\"fsdpck\",\"assets\":[{\"path\":\"original/" \
    "params.json\"},{\"path\":\"config.json\"}],\"hash\":\"\"}"

static void checkpoint(struct leftover_case *x, const char *name)
{
    char *dir = tree_path(x->root, name);
    tree_file(dir, "index.json", INDEX);
    tree_file(dir, "__0_0.distcp", "shard");
    tree_file(dir, "assets/config.json", "{}");
    tree_file(dir, "assets/original/params.json", "{}");
    free(dir);
}

static int discard(struct leftover_case *x, const struct fsdpck_io *io, const char *name, struct fsdpck_error *err)
{
    const struct fsdpck_options opt = { .io = io };
    memset(err, 0, sizeof *err);
    return fsdpck_remove(below(x->root, name), &opt, err);
}

static void test_removed_with_folders_of_assets(void **state)
{
    struct leftover_case *x = *state;
    struct fsdpck_error err;
    checkpoint(x, "step-000001");
    assert_int_equal(discard(x, faulty_io(x->f), "step-000001", &err), 0);
    assert_tree(x->root, "");
    assert_int_equal(discard(x, faulty_io(x->f), "step-000001", &err), FSDPCK_ERR_MISSING);
}

static void test_what_is_foreign_is_not_removed(void **state)
{
    static const char *const foreign[] = { "notes.txt", "assets/notes.txt", "assets/original/notes.txt", "my/notes.txt",
                                           "config.json" };
    struct leftover_case *x = *state;
    struct fsdpck_error err;
    struct fsdpck_commit *c;
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        char quoted[64];
        checkpoint(x, "out");
        tree_file(below(x->root, "out"), foreign[i], "mine");
        char *before = tree_dump(x->root);
        snprintf(quoted, sizeof quoted, "'%s'", foreign[i]);
        assert_int_equal(discard(x, faulty_io(x->f), "out", &err), FSDPCK_ERR_EXISTS);
        assert_non_null(strstr(err.message, quoted));
        assert_int_equal(leftover_begin(x, "out", A, &c), FSDPCK_ERR_EXISTS); /* --force */
        assert_tree(x->root, before);
        free(before);
        tree_remove(below(x->root, "out"));
    }
    checkpoint(x, "disk");
    char *before = tree_dump(x->root);
    assert_int_equal(symlink("disk", below(x->root, "link")), 0);
    assert_int_equal(discard(x, faulty_io(x->f), "link", &err), FSDPCK_ERR_EXISTS);
    assert_non_null(strstr(err.message, "symbolic link"));
    assert_int_equal(unlink(below(x->root, "link")), 0);
    assert_tree(x->root, before);
    free(before);
    assert_int_equal(leftover_begin(x, "disk", A, &c), 0);
    assert_int_equal(discard(x, faulty_io(x->f), "disk", &err), FSDPCK_ERR_BUSY);
    fsdpck_commit_abandon(c);
}

/* A removal killed before any of its operations leaves the checkpoint, or left-overs for `clean`. */
static void test_removal_is_killed(void **state)
{
    struct leftover_case *x = *state;
    struct fsdpck_error err;
    char *whole;
    checkpoint(x, "out");
    whole = tree_dump(x->root);
    int rc = -1;
    for (unsigned n = 0; rc != 0; n++) {
        tree_remove(below(x->root, "out"));
        checkpoint(x, "out");
        struct faulty *f = leftover_machine(x);
        faulty_kill_at(f, n);
        rc = discard(x, faulty_io(f), "out", &err);
        faulty_free(f);
        assert_int_equal(leftover_list(x, "out", true), 0);
        char *after = tree_dump(x->root);
        if (strcmp(after, "") != 0 && strcmp(after, whole) != 0)
            fail_msg("killed at operation %u, and cleaned, it left:\n%s", n, after);
        free(after);
        assert_true(n < 1000);
    }
    assert_tree(x->root, "");
    free(whole);
}

static void test_set_aside(void **state)
{
    struct leftover_case *x = *state;
    struct fsdpck_options opt = { .io = faulty_io(x->f) };
    struct fsdpck_error err = { 0 };
    char *aside = NULL;
    checkpoint(x, "step-000001");
    tree_file(x->root, "step-000001/notes.txt", "mine");
    assert_int_equal(fsdpck_set_aside(below(x->root, "step-000001"), &opt, &aside, &err), 0);
    assert_non_null(strstr(aside, "/step-000001.damaged-"));
    assert_false(tree_exists(x->root, "step-000001"));
    assert_int_equal(access(aside, F_OK), 0);
    assert_int_equal(leftover_list(x, "", true), 0); /* what the trainer does when it starts */
    assert_non_null(strstr(x->report, "dead: damaged, and set aside\n"));
    assert_int_equal(access(aside, F_OK), 0);
    x->report[0] = '\0';
    assert_int_equal(fsdpck_leftovers(x->root, FSDPCK_CLEAN_ALL, &opt, leftover_report, x, &err), 0);
    assert_non_null(strstr(x->report, "dead removed: damaged, and set aside\n"));
    assert_tree(x->root, "");
    free(aside);
}

/* An older version of the trainer could not remove folders of assets. */
static void test_half_removed_by_an_older_version(void **state)
{
    struct leftover_case *x = *state;
    tree_file(x->root, "c/step-000010.removed/assets/original/params.json", "{}");
    tree_file(x->root, "c/step-000020.removed/notes.txt", "mine");
    tree_file(x->root, "c/other.removed/assets/config.json", "mine");
    assert_int_equal(leftover_list(x, "c", false), 0);
    assert_string_equal(x->report, "c/step-000010.removed dead: its removal was interrupted\n");
    assert_int_equal(leftover_list(x, "c", true), 0);
    assert_tree(x->root, "c/\nc/other.removed/\nc/other.removed/assets/\nc/other.removed/assets/config.json=mine\nc/"
                         "step-000020.removed/\n"
                         "c/step-000020.removed/notes.txt=mine\n");
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, leftover_setup, leftover_teardown)
    const struct CMUnitTest tests[] = {
        T(test_removed_with_folders_of_assets),
        T(test_what_is_foreign_is_not_removed),
        T(test_removal_is_killed),
        T(test_set_aside),
        T(test_half_removed_by_an_older_version),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
