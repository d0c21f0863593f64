/* SPDX-License-Identifier: Apache-2.0 */
/* fsdpck_leftovers(): which files it finds, which owners it considers dead, and which files it removes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utime.h>

#include <fsdpck/check.h>

#include "base/hash.h"
#include "save_case.h"
#include "tree.h"

#define A "aaaaaaaa-aaaa-4aaa-9aaa-aaaaaaaaaaaa"
#define B "bbbbbbbb-bbbb-4bbb-9bbb-bbbbbbbbbbbb"

/* The simulated machine and boot. */
#define HERE       "here"
#define BOOT       "22222222-2222-4222-9222-222222222222"
#define OTHER_BOOT "55555555-5555-4555-9555-555555555555"

struct fixture {
    char *top, *root;
    struct faulty *f;
    char said[8192]; /* one line per left-over: "NAME dead removed: why\n" */
};

static char *below(const char *root, const char *name)
{
    static char path[PATH_MAX];
    assert_true(snprintf(path, sizeof path, "%s/%s", root, name) < (int)sizeof path);
    return path;
}

static int setup(void **state)
{
    struct fixture *x = calloc(1, sizeof *x);
    x->top = tree_new();
    x->root = tree_path(x->top, "root");
    tree_dir(x->top, "root");
    tree_file(x->top, "boot_id", BOOT "\n");
    tree_file(x->top, "hostname", HERE "\n");
    x->f = faulty_new(x->root);
    faulty_redirect(x->f, "/proc/sys/kernel/random/boot_id", below(x->top, "boot_id"));
    faulty_redirect(x->f, "/proc/sys/kernel/hostname", below(x->top, "hostname"));
    *state = x;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *x = *state;
    faulty_free(x->f);
    tree_remove(x->top);
    free(x->root);
    free(x->top);
    free(x);
    return 0;
}

static void on_leftover(void *ctx, const struct fsdpck_leftover *l)
{
    struct fixture *x = ctx;
    size_t n = strlen(x->said);
    assert_int_equal(strncmp(l->path, x->root, strlen(x->root)), 0);
    snprintf(x->said + n, sizeof x->said - n, "%s %s%s: %s\n", l->path + strlen(x->root) + 1,
             l->alive ? "alive" : "dead", l->removed ? " removed" : "", l->why);
}

static int look(struct fixture *x, const char *name, bool remove)
{
    struct fsdpck_options opt = { .io = faulty_io(x->f) };
    struct fsdpck_error err = { 0 };
    x->said[0] = '\0';
    return fsdpck_leftovers(below(x->root, name), remove ? FSDPCK_CLEAN_DEAD : FSDPCK_CLEAN_NOTHING, &opt, on_leftover,
                            x, &err);
}

static void assert_tree(struct fixture *x, const char *want)
{
    char *dump = tree_dump(x->root);
    assert_string_equal(dump, want);
    free(dump);
}

/* Writes a writer file by hand. */
static void writer(struct fixture *x, const char *name, const char *host, const char *boot)
{
    char text[256];
    snprintf(text, sizeof text, "{\"host\":\"%s\",\"boot\":\"%s\",\"pid\":1,\"save_id\":\"" A "\"}", host, boot);
    tree_file(x->root, name, text);
}

static int begin(struct fixture *x, const char *name, const char *uuid_text, struct fsdpck_commit **c)
{
    uint8_t uuid[16];
    assert_true(fsdpck_uuid_parse(uuid_text, uuid));
    return fsdpck_commit_begin(faulty_io(x->f), below(x->root, name), FSDPCK_COMMIT_CHECKPOINT, "index.json", uuid,
                               true, c, NULL);
}

/* A writer that is killed during its work. */
static void kill_writer(struct fixture *x, const char *name, const char *uuid)
{
    struct fsdpck_commit *c;
    int status;
    pid_t child = fork();
    if (child == 0) {
        if (begin(x, name, uuid, &c) == 0)
            tree_file(fsdpck_commit_dir(c), "sub/data", "half");
        raise(SIGKILL);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
}

/* ---- */

static void test_nothing(void **state)
{
    struct fixture *x = *state;
    tree_file(x->root, "out/index.json", "new");
    tree_file(x->root, "out.tmp-1234/x", "mine");
    tree_file(x->root, "out.tmp/x", "mine");
    tree_file(x->root, "other.tmp-" A "/x", "another output's");
    assert_int_equal(look(x, "out", true), 0);
    assert_string_equal(x->said, "");
    assert_int_equal(look(x, "missing", true), 0);
    assert_string_equal(x->said, "");
    assert_int_not_equal(look(x, "no/such/place", true), 0);
    assert_true(tree_exists(x->root, "out.tmp-1234/x") && tree_exists(x->root, "out.tmp/x") &&
                tree_exists(x->root, "other.tmp-" A "/x"));
}

static void test_writer_at_work(void **state)
{
    struct fixture *x = *state;
    struct fsdpck_commit *c;
    assert_int_equal(begin(x, "out", A, &c), 0);
    char *before = tree_dump(x->root);
    assert_int_equal(look(x, "out", true), 0);
    assert_string_equal(x->said, "out.tmp-" A " alive: locked by a writer\n");
    assert_tree(x, before);
    free(before);
    fsdpck_commit_abandon(c);
    assert_int_equal(look(x, "out", true), 0);
    assert_string_equal(x->said, "");
    assert_tree(x, "");
}

static void test_killed_writer(void **state)
{
    struct fixture *x = *state;
    tree_file(x->root, "out/index.json", "{\"format\":\"fsdpck\"}");
    kill_writer(x, "out", A);
    char *before = tree_dump(x->root);
    assert_int_equal(look(x, "out", false), 0);
    assert_string_equal(x->said, "out.tmp-" A " dead: writer is gone\n.out.fsdpck-lock dead: writer is gone\n");
    assert_tree(x, before);
    free(before);
    assert_int_equal(look(x, "out", true), 0);
    assert_string_equal(x->said,
                        "out.tmp-" A " dead removed: writer is gone\n.out.fsdpck-lock dead removed: writer is gone\n");
    assert_tree(x, "out/\nout/index.json={\"format\":\"fsdpck\"}\n");
}

static void test_everything_in_a_directory(void **state)
{
    struct fixture *x = *state;
    struct fsdpck_commit *c;
    tree_dir(x->root, "runs");
    kill_writer(x, "runs/step-1", A);
    assert_int_equal(begin(x, "runs/step-2", B, &c), 0);
    assert_int_equal(look(x, "runs", true), 0);
    assert_non_null(strstr(x->said, "runs/step-1.tmp-" A " dead removed"));
    assert_non_null(strstr(x->said, "runs/step-2.tmp-" B " alive:"));
    fsdpck_commit_abandon(c);
    assert_tree(x, "runs/\n");
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
    struct fixture *x = *state;
    for (size_t i = 0; i < sizeof witnesses / sizeof witnesses[0]; i++) {
        const struct witness *w = &witnesses[i];
        struct fixture *y;
        setup((void **)&y);
        if (w->no_locks)
            faulty_no_locks(y->f);
        tree_file(y->root, "out.tmp-" A "/data", "half");
        writer(y, ".out.writer-" A, w->host, w->boot);
        assert_int_equal(look(y, "out", true), 0);
        assert_non_null(strstr(y->said, w->why));
        assert_non_null(strstr(y->said, w->alive ? " alive: " : " dead removed: "));
        assert_int_equal(tree_exists(y->root, "out.tmp-" A "/data"), w->alive);
        assert_int_equal(tree_exists(y->root, ".out.writer-" A), w->alive);
        teardown((void **)&y);
    }
    assert_tree(x, "");
}

static void test_no_witness(void **state)
{
    struct fixture *x = *state;
    tree_file(x->root, "out.tmp-" A "/data", "whose?");
    assert_int_equal(look(x, "out", true), 0);
    assert_string_equal(x->said, "out.tmp-" A " alive: nothing says who made it\n");
    assert_tree(x, "out.tmp-" A "/\nout.tmp-" A "/data=whose?\n");
}

static void test_witness_is_torn(void **state)
{
    struct fixture *x = *state;
    tree_file(x->root, ".out.writer-" A, "{\"ho");
    tree_file(x->root, ".out.writer-" B, "");
    tree_file(x->root, ".out.fsdpck-lock", "");
    tree_dir(x->root, "out.tmp-" A);
    assert_int_equal(look(x, "out", true), 0);
    assert_non_null(strstr(x->said, "stopped at its start"));
    assert_tree(x, "");
}

/* ---- old outputs */

static void test_old_one_moves_back(void **state)
{
    struct fixture *x = *state;
    tree_file(x->root, "out.old-" A "/index.json", "old");
    tree_file(x->root, "out.tmp-" A "/index.json", "new");
    writer(x, ".out.writer-" A, HERE, OTHER_BOOT);
    assert_int_equal(look(x, "out", false), 0);
    assert_non_null(strstr(x->said, "out.old-" A " dead: "));
    assert_non_null(strstr(x->said, "clean moves it back"));
    assert_false(tree_exists(x->root, "out"));
    assert_int_equal(look(x, "out", true), 0);
    assert_non_null(strstr(x->said, "out.old-" A " dead removed: "));
    assert_non_null(strstr(x->said, "moved back"));
    assert_tree(x, "out/\nout/index.json=old\n");
}

static void test_old_one_waits_for_a_writer(void **state)
{
    struct fixture *x = *state;
    struct fsdpck_commit *c;
    tree_file(x->root, "out.old-" A "/index.json", "old");
    writer(x, ".out.writer-" A, HERE, OTHER_BOOT);
    assert_int_equal(begin(x, "out", B, &c), 0);
    assert_int_equal(look(x, "out", true), 0);
    assert_true(tree_exists(x->root, "out.old-" A "/index.json"));
    fsdpck_commit_abandon(c);
    assert_int_equal(look(x, "out", true), 0);
    assert_tree(x, "out/\nout/index.json=old\n");
}

static void test_old_one_is_not_needed(void **state)
{
    struct fixture *x = *state;
    tree_file(x->root, "out/index.json", "new");
    tree_file(x->root, "out.old-" A "/index.json", "old");
    writer(x, ".out.writer-" A, HERE, BOOT);
    assert_int_equal(look(x, "out", false), 0);
    assert_string_equal(x->said, "out.old-" A " dead: writer is gone\n");
    assert_int_equal(look(x, "out", true), 0);
    assert_tree(x, "out/\nout/index.json=new\n");
}

static void age(struct fixture *x, const char *name, time_t when)
{
    struct utimbuf t = { when, when };
    assert_int_equal(utime(below(x->root, name), &t), 0);
}

static void test_youngest_old_one_moves_back(void **state)
{
    for (int youngest = 0; youngest < 2; youngest++) {
        struct fixture *x;
        setup((void **)&x);
        tree_file(x->root, "out.old-" A "/index.json", "a");
        tree_file(x->root, "out.old-" B "/index.json", "b");
        writer(x, ".out.writer-" A, HERE, BOOT);
        writer(x, ".out.writer-" B, HERE, BOOT);
        age(x, "out.old-" A, youngest == 0 ? 2000000 : 1000000);
        age(x, "out.old-" B, youngest == 1 ? 2000000 : 1000000);
        assert_int_equal(look(x, "out", true), 0);
        assert_true(tree_exists(x->root, "out"));
        if (tree_exists(x->root, "out.old-" A)) /* an older one that comes first waits for the next clean */
            assert_int_equal(look(x, "out", true), 0);
        assert_tree(x, youngest == 0 ? "out/\nout/index.json=a\n" : "out/\nout/index.json=b\n");
        teardown((void **)&x);
    }
    (void)state;
}

static void test_old_one_of_someone_else(void **state)
{
    struct fixture *x = *state;
    tree_file(x->root, "out.old-" A "/index.json", "old");
    writer(x, ".out.writer-" A, "elsewhere", OTHER_BOOT);
    assert_int_equal(look(x, "out", true), 0);
    assert_non_null(strstr(x->said, " alive: made on host 'elsewhere'"));
    assert_true(tree_exists(x->root, "out.old-" A "/index.json"));
    assert_false(tree_exists(x->root, "out"));
}

/* ---- written in place */

static void test_unfinished_in_place(void **state)
{
    struct fixture *x = *state;
    tree_file(x->root, "out/index.json", "old");
    tree_file(x->root, "out/notes", "mine");
    tree_file(x->root, "out/__0_0-" A ".distcp", "half");
    tree_file(x->root, "out/assets.tmp-" A "/config.json", "half");
    tree_file(x->root, "out/index.json.tmp-" A, "half");
    writer(x, "out/.writer-" A, HERE, BOOT);
    assert_int_equal(look(x, "out", false), 0);
    assert_non_null(strstr(x->said, "out/__0_0-" A ".distcp dead: writer is gone\n"));
    assert_non_null(strstr(x->said, "out/index.json.tmp-" A " dead: writer is gone\n"));
    assert_int_equal(look(x, "out", true), 0);
    assert_non_null(strstr(x->said, "out/__0_0-" A ".distcp dead removed: writer is gone\n"));
    assert_tree(x, "out/\nout/index.json=old\nout/notes=mine\n");
}

static void test_in_place_of_someone_else(void **state)
{
    struct fixture *x = *state;
    tree_file(x->root, "out/__0_0-" A ".distcp", "half");
    writer(x, "out/.writer-" A, "elsewhere", OTHER_BOOT);
    char *before = tree_dump(x->root);
    assert_int_equal(look(x, "out", true), 0);
    assert_non_null(strstr(x->said, "out/__0_0-" A ".distcp alive: made on host 'elsewhere'\n"));
    assert_tree(x, before);
    free(before);
}

/* The journal of another save than the present one must not touch the present one. */
static void test_journal_is_of_another_save(void **state)
{
    struct fixture *x = *state;
    tree_file(x->root, "out/index.json", "of b");
    tree_file(x->root, "out/__0_0-" B ".distcp", "b");
    tree_file(x->root, "out/.metadata", "b");
    tree_file(x->root, "out/.metadata.tmp-" A, "a");
    tree_file(x->root, "out/.commit-" A,
              "{\"record\":\"index.json\",\"hash\":\"00000000000000000000000000000000\",\"replaces\":[\".metadata\"]}");
    writer(x, "out/.writer-" A, HERE, BOOT);
    assert_int_equal(look(x, "out", true), 0);
    assert_tree(x, "out/\nout/.metadata=b\nout/__0_0-" B ".distcp=b\nout/index.json=of b\n");
}

/* A journal in a directory from elsewhere may only name checkpoint files. */
static void test_journal_is_hostile(void **state)
{
    struct fixture *x = *state;
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
    assert_int_equal(look(x, "out", true), 0);
    assert_true(tree_exists(x->root, "precious"));
    assert_true(tree_exists(x->root, "out/index.json"));
}

/* ---- removal, and setting aside */

#define INDEX \
    "{\"format\":\"fsdpck\",\"assets\":[{\"path\":\"original/" \
    "params.json\"},{\"path\":\"config.json\"}],\"hash\":\"\"}"

static void checkpoint(struct fixture *x, const char *name)
{
    char *dir = tree_path(x->root, name);
    tree_file(dir, "index.json", INDEX);
    tree_file(dir, "__0_0.distcp", "shard");
    tree_file(dir, "assets/config.json", "{}");
    tree_file(dir, "assets/original/params.json", "{}");
    free(dir);
}

static int discard(struct fixture *x, const struct fsdpck_io *io, const char *name, struct fsdpck_error *err)
{
    const struct fsdpck_options opt = { .io = io };
    memset(err, 0, sizeof *err);
    return fsdpck_remove(below(x->root, name), &opt, err);
}

static void test_removed_with_folders_of_assets(void **state)
{
    struct fixture *x = *state;
    struct fsdpck_error err;
    checkpoint(x, "step-000001");
    assert_int_equal(discard(x, faulty_io(x->f), "step-000001", &err), 0);
    assert_tree(x, "");
    assert_int_equal(discard(x, faulty_io(x->f), "step-000001", &err), FSDPCK_ERR_MISSING);
}

static void test_what_is_foreign_is_not_removed(void **state)
{
    static const char *const foreign[] = { "notes.txt", "assets/notes.txt", "assets/original/notes.txt", "my/notes.txt",
                                           "config.json" };
    struct fixture *x = *state;
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
        assert_int_equal(begin(x, "out", A, &c), FSDPCK_ERR_EXISTS); /* --force */
        assert_tree(x, before);
        free(before);
        tree_remove(below(x->root, "out"));
    }
    checkpoint(x, "disk");
    char *before = tree_dump(x->root);
    assert_int_equal(symlink("disk", below(x->root, "link")), 0);
    assert_int_equal(discard(x, faulty_io(x->f), "link", &err), FSDPCK_ERR_EXISTS);
    assert_non_null(strstr(err.message, "symbolic link"));
    assert_int_equal(unlink(below(x->root, "link")), 0);
    assert_tree(x, before);
    free(before);
    assert_int_equal(begin(x, "disk", A, &c), 0);
    assert_int_equal(discard(x, faulty_io(x->f), "disk", &err), FSDPCK_ERR_BUSY);
    fsdpck_commit_abandon(c);
}

/* A removal killed before any of its operations leaves the checkpoint, or left-overs for `clean`. */
static void test_removal_is_killed(void **state)
{
    struct fixture *x = *state;
    struct fsdpck_error err;
    char *whole;
    checkpoint(x, "out");
    whole = tree_dump(x->root);
    int rc = -1;
    for (unsigned n = 0; rc != 0; n++) {
        tree_remove(below(x->root, "out"));
        checkpoint(x, "out");
        struct faulty *f = faulty_new(x->root);
        faulty_redirect(f, "/proc/sys/kernel/random/boot_id", below(x->top, "boot_id"));
        faulty_redirect(f, "/proc/sys/kernel/hostname", below(x->top, "hostname"));
        faulty_kill_at(f, n);
        rc = discard(x, faulty_io(f), "out", &err);
        faulty_free(f);
        assert_int_equal(look(x, "out", true), 0);
        char *after = tree_dump(x->root);
        if (strcmp(after, "") != 0 && strcmp(after, whole) != 0)
            fail_msg("killed at operation %u, and cleaned, it left:\n%s", n, after);
        free(after);
        assert_true(n < 1000);
    }
    assert_tree(x, "");
    free(whole);
}

static void test_set_aside(void **state)
{
    struct fixture *x = *state;
    struct fsdpck_options opt = { .io = faulty_io(x->f) };
    struct fsdpck_error err = { 0 };
    char *aside = NULL;
    checkpoint(x, "step-000001");
    tree_file(x->root, "step-000001/notes.txt", "mine");
    assert_int_equal(fsdpck_set_aside(below(x->root, "step-000001"), &opt, &aside, &err), 0);
    assert_non_null(strstr(aside, "/step-000001.damaged-"));
    assert_false(tree_exists(x->root, "step-000001"));
    assert_int_equal(access(aside, F_OK), 0);
    assert_int_equal(look(x, "", true), 0); /* what the trainer does when it starts */
    assert_non_null(strstr(x->said, "dead: damaged, and set aside\n"));
    assert_int_equal(access(aside, F_OK), 0);
    x->said[0] = '\0';
    assert_int_equal(fsdpck_leftovers(x->root, FSDPCK_CLEAN_ALL, &opt, on_leftover, x, &err), 0);
    assert_non_null(strstr(x->said, "dead removed: damaged, and set aside\n"));
    assert_tree(x, "");
    free(aside);
}

/* An older version of the trainer could not remove folders of assets. */
static void test_half_removed_by_an_older_version(void **state)
{
    struct fixture *x = *state;
    tree_file(x->root, "c/step-000010.removed/assets/original/params.json", "{}");
    tree_file(x->root, "c/step-000020.removed/notes.txt", "mine");
    tree_file(x->root, "c/other.removed/assets/config.json", "mine");
    assert_int_equal(look(x, "c", false), 0);
    assert_string_equal(x->said, "c/step-000010.removed dead: its removal was interrupted\n");
    assert_int_equal(look(x, "c", true), 0);
    assert_tree(x, "c/\nc/other.removed/\nc/other.removed/assets/\nc/other.removed/assets/config.json=mine\nc/"
                   "step-000020.removed/\n"
                   "c/step-000020.removed/notes.txt=mine\n");
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
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
        T(test_removed_with_folders_of_assets),
        T(test_what_is_foreign_is_not_removed),
        T(test_removal_is_killed),
        T(test_set_aside),
        T(test_half_removed_by_an_older_version),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
