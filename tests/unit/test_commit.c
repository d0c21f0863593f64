/* SPDX-License-Identifier: Apache-2.0 */
/* Tests which inputs the commit protocol accepts, refuses and detects: kinds of OUT, places that cannot be renamed.
 * (Two writers: test_commit_writers.c. Crashes: test_commit_crash.c.) */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/ioutil.h"
#include "below.h"
#include "save_case.h"
#include "save_steps.h"
#include "tree.h"

/* Contents that identify a checkpoint, like SAVE_NEW. */
#define OLD "{\"format\":\"fsdpck\",\"who\":\"old\"}"

static int setup(void **state)
{
    *state = tree_new();
    return 0;
}

static int teardown(void **state)
{
    if (chdir("/") != 0)
        return 1;
    tree_remove(*state);
    free(*state);
    return 0;
}

static void put(const char *dir, const char *name, const char *text)
{
    char *path = tree_path(dir, name);
    assert_int_equal(fsdpck_write_file(&fsdpck_io_posix, path, text, strlen(text), NULL), 0);
    free(path);
}

static int save_file(const struct fsdpck_io *io, const char *out, bool force, struct fsdpck_error *err)
{
    struct fsdpck_commit *c;
    int rc = save_begin(io, out, FSDPCK_COMMIT_FILE, SAVE_UUID, force, &c, err);
    if (rc != 0)
        return rc;
    assert_string_equal(fsdpck_commit_dir(c), fsdpck_commit_record(c));
    assert_int_equal(fsdpck_write_file(io, fsdpck_commit_dir(c), "new", 3, err), 0);
    return fsdpck_commit_finish(c, err);
}

/* ---- kinds of OUT */

static void test_trailing_slashes(void **state)
{
    struct fsdpck_error err;
    assert_int_equal(save_directory(&fsdpck_io_posix, below(*state, "out//"), false, NULL, &err), 0);
    assert_tree(*state, "out/\nout/index.json=" SAVE_NEW "\n");
}

static void test_dots(void **state)
{
    struct fsdpck_error err;
    tree_dir(*state, "a");
    assert_int_equal(save_directory(&fsdpck_io_posix, below(*state, "a/../b/./c/."), false, NULL, &err), 0);
    assert_tree(*state, "a/\nb/\nb/c/\nb/c/index.json=" SAVE_NEW "\n");
    assert_int_equal(save_directory(&fsdpck_io_posix, below(*state, "missing/../d"), false, NULL, &err),
                     FSDPCK_ERR_USAGE);
    assert_non_null(strstr(err.message, "'..'"));
    assert_int_equal(save_directory(&fsdpck_io_posix, "", false, NULL, &err), FSDPCK_ERR_USAGE);
}

static void test_relative_path(void **state)
{
    struct fsdpck_error err;
    assert_int_equal(chdir(*state), 0);
    assert_int_equal(save_directory(&fsdpck_io_posix, "x/out", false, NULL, &err), 0);
    assert_tree(*state, "x/\nx/out/\nx/out/index.json=" SAVE_NEW "\n");
}

static void test_existing_is_refused(void **state)
{
    struct fsdpck_error err;
    tree_file(*state, "out/mine", "1");
    assert_int_equal(save_directory(&fsdpck_io_posix, below(*state, "out"), false, NULL, &err), FSDPCK_ERR_EXISTS);
    assert_non_null(strstr(err.message, "not empty"));
    assert_null(strstr(err.hint, "--force"));
    /* not a checkpoint: foreign files */
    assert_int_equal(save_directory(&fsdpck_io_posix, below(*state, "out"), true, NULL, &err), FSDPCK_ERR_EXISTS);
    assert_non_null(strstr(err.message, "neither a checkpoint nor a model"));
    assert_tree(*state, "out/\nout/mine=1\n");
    tree_file(*state, "out/index.json", OLD);
    /* a checkpoint with a foreign file */
    assert_int_equal(save_directory(&fsdpck_io_posix, below(*state, "out"), true, NULL, &err), FSDPCK_ERR_EXISTS);
    assert_non_null(strstr(err.message, "'mine'"));
    assert_tree(*state, "out/\nout/index.json=" OLD "\nout/mine=1\n");
    assert_int_equal(unlink(below(*state, "out/mine")), 0);
    assert_int_equal(save_directory(&fsdpck_io_posix, below(*state, "out"), false, NULL, &err), FSDPCK_ERR_EXISTS);
    assert_non_null(strstr(err.hint, "--force"));
    assert_int_equal(save_directory(&fsdpck_io_posix, below(*state, "out"), true, NULL, &err), 0);
    assert_tree(*state, "out/\nout/index.json=" SAVE_NEW "\n");
}

static void test_other_type_is_refused(void **state)
{
    struct fsdpck_error err;
    tree_file(*state, "file", "1");
    tree_dir(*state, "dir");
    assert_int_equal(save_directory(&fsdpck_io_posix, below(*state, "file"), true, NULL, &err), FSDPCK_ERR_EXISTS);
    assert_int_equal(save_file(&fsdpck_io_posix, below(*state, "dir"), true, &err), FSDPCK_ERR_EXISTS);
    assert_int_equal(save_file(&fsdpck_io_posix, below(*state, "file"), false, &err), FSDPCK_ERR_EXISTS);
    assert_int_equal(save_file(&fsdpck_io_posix, below(*state, "new/"), false, &err), FSDPCK_ERR_USAGE);
    assert_int_not_equal(save_directory(&fsdpck_io_posix, below(*state, "file/out"), true, NULL, &err), 0);
    assert_tree(*state, "dir/\nfile=1\n");
}

static void test_file_is_replaced(void **state)
{
    struct fsdpck_error err;
    tree_file(*state, "x.safetensors", "old");
    assert_int_equal(save_file(&fsdpck_io_posix, below(*state, "x.safetensors"), true, &err), 0);
    assert_tree(*state, "x.safetensors=new\n");
}

static void test_links(void **state)
{
    struct fsdpck_error err;
    tree_dir(*state, "disk");
    assert_int_equal(symlink("disk", below(*state, "link")), 0);
    assert_int_equal(symlink("nowhere", below(*state, "dangling")), 0);
    assert_int_equal(save_directory(&fsdpck_io_posix, below(*state, "link"), false, NULL, &err), 0);
    assert_int_equal(save_directory(&fsdpck_io_posix, below(*state, "link/"), true, NULL, &err), 0);
    assert_int_equal(save_directory(&fsdpck_io_posix, below(*state, "link/sub"), false, NULL, &err), 0);
    assert_int_equal(save_directory(&fsdpck_io_posix, below(*state, "dangling"), true, NULL, &err), FSDPCK_ERR_USAGE);
    assert_non_null(strstr(err.message, "symbolic link"));
    assert_int_equal(save_directory(&fsdpck_io_posix, below(*state, "dangling/sub"), true, NULL, &err),
                     FSDPCK_ERR_USAGE);
    assert_tree(*state, "dangling->nowhere\ndisk/\ndisk/index.json=" SAVE_NEW
                        "\ndisk/sub/\ndisk/sub/index.json=" SAVE_NEW "\nlink->disk\n");
}

static void test_links_inside_are_not_followed(void **state)
{
    struct fsdpck_error err;
    tree_file(*state, "precious/data", "keep");
    tree_file(*state, "out/index.json", OLD);
    assert_int_equal(symlink("../precious", below(*state, "out/assets")), 0);
    assert_int_equal(save_directory(&fsdpck_io_posix, below(*state, "out"), true, NULL, &err), 0);
    assert_tree(*state, "out/\nout/index.json=" SAVE_NEW "\nprecious/\nprecious/data=keep\n");
}

/* ---- places that cannot be renamed */

static void test_working_directory(void **state)
{
    struct fsdpck_error err;
    bool in_place = false;
    tree_dir(*state, "out");
    assert_int_equal(chdir(below(*state, "out")), 0);
    assert_int_equal(save_directory(&fsdpck_io_posix, ".", false, &in_place, &err), 0);
    assert_true(in_place);
    assert_int_equal(access("index.json", F_OK), 0); /* the user's shell sees it without changing directory */
    assert_int_equal(save_directory(&fsdpck_io_posix, ".", false, NULL, &err), FSDPCK_ERR_EXISTS);
    assert_tree(*state, "out/\nout/index.json=" SAVE_NEW "\n");
}

static void test_fresh_mount_point(void **state)
{
    struct fsdpck_error err;
    bool in_place = false;
    struct faulty *f = faulty_new(*state);
    faulty_other_device(f, below(*state, "out"));
    tree_dir(*state, "out");
    tree_dir(*state, "out/lost+found");
    assert_int_equal(save_directory(faulty_io(f), below(*state, "out"), false, &in_place, &err), 0);
    assert_true(in_place);
    assert_tree(*state, "out/\nout/index.json=" SAVE_NEW "\nout/lost+found/\n");
    faulty_free(f);
}

static void test_mount_point_keeps_what_is_foreign(void **state)
{
    struct fsdpck_error err;
    struct faulty *f = faulty_new(*state);
    faulty_other_device(f, below(*state, "out"));
    tree_file(*state, "out/notes.txt", "mine");
    tree_file(*state, "out/data.distcp", "mine");
    tree_file(*state, "out/__0_0.distcp.bak", "mine");
    assert_int_equal(save_directory(faulty_io(f), below(*state, "out"), false, NULL, &err), FSDPCK_ERR_EXISTS);
    tree_file(*state, "out/__12_0.distcp", "old");
    tree_file(*state, "out/__0_0-33333333-3333-4333-9333-333333333333.distcp", "old");
    tree_file(*state, "out/.metadata", "old");
    tree_file(*state, "out/assets-33333333-3333-4333-9333-333333333333/config.json", "old");
    tree_file(*state, "out/assets/picture", "mine");
    assert_int_equal(save_directory(faulty_io(f), below(*state, "out"), true, NULL, &err), 0);
    assert_tree(*state, "out/\nout/__0_0.distcp.bak=mine\nout/assets/\nout/assets/picture=mine\nout/"
                        "data.distcp=mine\nout/index.json=" SAVE_NEW "\nout/notes.txt=mine\n");
    faulty_free(f);
}

/* A bind mount has the device of its parent; only the mount table shows it. */
static void test_bind_mount(void **state)
{
    struct fsdpck_error err;
    char *text = malloc(40000), *out = tree_path(*state, "out put");
    bool in_place = false;
    struct faulty *f = faulty_new(*state);
    faulty_redirect(f, "/proc/self/mountinfo", below(*state, "mountinfo"));
    text[0] = '\0';
    for (int i = 0; i < 300; i++) /* more than one read of the mount table */
        sprintf(text + strlen(text), "%d 1 8:1 / /mnt/some/other/disk/number/%d rw,relatime - ext4 /dev/sda1 rw\n", i,
                i);
    sprintf(text + strlen(text), "999 1 8:1 /src %s/out\\040put rw,relatime - ext4 /dev/sda1 rw\n",
            (const char *)*state);
    tree_file(*state, "mountinfo", text);
    tree_dir(*state, "out put");
    assert_int_equal(save_directory(faulty_io(f), out, false, &in_place, &err), 0);
    assert_true(in_place);
    in_place = true;
    assert_int_equal(save_directory(faulty_io(f), below(*state, "out"), false, &in_place, &err), 0);
    assert_false(in_place);
    faulty_free(f);
    free(out);
    free(text);
}

static void test_parent_is_read_only(void **state)
{
    struct fsdpck_error err;
    bool in_place = false;
    struct faulty *f = faulty_new(*state);
    faulty_read_only(f, *state);
    tree_dir(*state, "out");
    assert_int_equal(save_directory(faulty_io(f), below(*state, "out"), false, &in_place, &err), 0);
    assert_true(in_place);
    assert_tree(*state, "out/\nout/index.json=" SAVE_NEW "\n");
    assert_int_equal(save_directory(faulty_io(f), below(*state, "other"), false, NULL, &err), FSDPCK_ERR_IO);
    assert_int_equal(err.sys_errno, EACCES);
    assert_tree(*state, "out/\nout/index.json=" SAVE_NEW "\n");
    faulty_free(f);
}

static void test_in_place_names(void **state)
{
    struct fsdpck_error err;
    struct fsdpck_commit *c;
    struct faulty *f = faulty_new(*state);
    faulty_other_device(f, below(*state, "out"));
    tree_dir(*state, "out");
    assert_int_equal(
        save_begin(faulty_io(f), below(*state, "out"), FSDPCK_COMMIT_CHECKPOINT, SAVE_UUID, false, &c, &err), 0);
    assert_string_equal(fsdpck_commit_dir(c), below(*state, "out"));
    assert_string_equal(fsdpck_commit_record(c), below(*state, "out/index.json.tmp-" SAVE_UUID));
    assert_int_equal(fsdpck_commit_created(c, "__0_0.distcp", &err), FSDPCK_ERR_USAGE);
    memset(&err, 0, sizeof err);
    assert_int_equal(fsdpck_commit_created(c, "__0_0-" SAVE_UUID ".distcp", &err), 0);
    put(*state, "out/__0_0-" SAVE_UUID ".distcp", "x");
    fsdpck_commit_abandon(c);
    assert_tree(*state, "out/\n");
    faulty_free(f);
}

static void test_rename_is_refused(void **state)
{
    static const int codes[] = { EXDEV, EBUSY };
    struct fsdpck_error err;
    tree_file(*state, "out/index.json", OLD);
    for (size_t i = 0; i < 2; i++) {
        struct faulty *f = faulty_new(*state);
        faulty_fail_rename(f, below(*state, "out"), codes[i]);
        assert_int_equal(save_directory(faulty_io(f), below(*state, "out"), true, NULL, &err), FSDPCK_ERR_IO);
        assert_int_equal(err.sys_errno, codes[i]);
        assert_non_null(strstr(err.hint, "mount point"));
        assert_tree(*state, "out/\nout/index.json=" OLD "\n");
        faulty_free(f);
    }
}

static void test_appeared_meanwhile(void **state)
{
    struct fsdpck_error err;
    struct fsdpck_commit *c;
    assert_int_equal(
        save_begin(&fsdpck_io_posix, below(*state, "out"), FSDPCK_COMMIT_CHECKPOINT, SAVE_UUID, false, &c, &err), 0);
    tree_file(*state, "out/other", "1");
    assert_int_equal(fsdpck_commit_finish(c, &err), FSDPCK_ERR_EXISTS);
    assert_tree(*state, "out/\nout/other=1\n");
}

/* ---- other cases */

static void test_abandon_removes_parents(void **state)
{
    struct fsdpck_error err;
    struct fsdpck_commit *c;
    tree_dir(*state, "a");
    assert_int_equal(
        save_begin(&fsdpck_io_posix, below(*state, "a/b/c/out"), FSDPCK_COMMIT_FOLDER, SAVE_UUID, false, &c, &err), 0);
    tree_file(fsdpck_commit_dir(c), "sub/deep/file", "x");
    fsdpck_commit_abandon(c);
    assert_tree(*state, "a/\n");
}

static void test_staging_path(void **state)
{
    struct fsdpck_error err;
    struct fsdpck_commit *c;
    uint8_t uuid[16];
    char *dir;
    assert_true(fsdpck_uuid_parse(SAVE_UUID, uuid));
    tree_dir(*state, "disk");
    assert_int_equal(symlink("disk", below(*state, "link")), 0);
    assert_int_equal(
        save_begin(&fsdpck_io_posix, below(*state, "link/x/"), FSDPCK_COMMIT_CHECKPOINT, SAVE_UUID, false, &c, &err),
        0);
    assert_int_equal(fsdpck_commit_staging_path(&fsdpck_io_posix, below(*state, "link/./x"), uuid, &dir, &err), 0);
    assert_string_equal(dir, fsdpck_commit_dir(c));
    free(dir);
    fsdpck_commit_abandon(c);
}

static void test_long_names(void **state)
{
    struct fsdpck_error err;
    char name[256];
    memset(name, 'x', 255);
    name[255] = '\0';
    char *out = tree_path(*state, name);
    assert_int_not_equal(save_directory(&fsdpck_io_posix, out, false, NULL, &err), 0);
    assert_true(err.message[0] != '\0');
    assert_tree(*state, "");
    free(out);
}

static void test_remove_tree(void **state)
{
    struct fsdpck_error err = { 0 };
    tree_file(*state, "a/b/c/d", "1");
    tree_file(*state, "a/b/e", "1");
    tree_file(*state, "keep/f", "1");
    assert_int_equal(symlink("../../keep", below(*state, "a/b/link")), 0);
    assert_int_equal(fsdpck_remove_tree(&fsdpck_io_posix, below(*state, "a"), &err), 0);
    assert_int_equal(fsdpck_remove_tree(&fsdpck_io_posix, below(*state, "a"), &err), 0);
    assert_tree(*state, "keep/\nkeep/f=1\n");
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_trailing_slashes),
        T(test_dots),
        T(test_relative_path),
        T(test_existing_is_refused),
        T(test_other_type_is_refused),
        T(test_file_is_replaced),
        T(test_links),
        T(test_links_inside_are_not_followed),
        T(test_working_directory),
        T(test_fresh_mount_point),
        T(test_mount_point_keeps_what_is_foreign),
        T(test_bind_mount),
        T(test_parent_is_read_only),
        T(test_in_place_names),
        T(test_rename_is_refused),
        T(test_appeared_meanwhile),
        T(test_abandon_removes_parents),
        T(test_staging_path),
        T(test_long_names),
        T(test_remove_tree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
