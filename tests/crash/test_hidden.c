/* SPDX-License-Identifier: Apache-2.0 */
/* File systems that rename an open file instead of removing it (.fuse_hidden…, .nfs…): its folder cannot be removed
 * before the file is closed. Every verb must close what it replaces, and must not wait for files that another process
 * keeps open. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fsdpck/convert.h>
#include <fsdpck/export.h>

#include "commit/commit.h"
#include "tree.h"
#include "verbs.h"

enum { MAX_FD = 1024 };

struct hiding {
    struct fsdpck_io io;
    ino_t open[MAX_FD];            /* 0: not open */
    char hidden[MAX_FD][PATH_MAX]; /* removed on close */
    unsigned nhidden;
};

static int h_open(void *ctx, const char *path, int flags, unsigned mode)
{
    struct hiding *h = ctx;
    struct stat st;
    int fd = fsdpck_io_posix.open(NULL, path, flags, mode);
    if (fd >= MAX_FD || (fd >= 0 && fstat(fd, &st) != 0))
        abort();
    if (fd >= 0)
        h->open[fd] = S_ISREG(st.st_mode) ? st.st_ino : 0;
    return fd;
}

static int user_of(const struct hiding *h, ino_t inode)
{
    for (int fd = 0; fd < MAX_FD; fd++)
        if (h->open[fd] == inode)
            return fd;
    return -1;
}

static int h_close(void *ctx, int fd)
{
    struct hiding *h = ctx;
    int next;
    ino_t inode = h->open[fd];
    h->open[fd] = 0;
    if (h->hidden[fd][0] != '\0') {
        if ((next = user_of(h, inode)) >= 0)
            strcpy(h->hidden[next], h->hidden[fd]);
        else
            unlink(h->hidden[fd]);
        h->hidden[fd][0] = '\0';
    }
    return fsdpck_io_posix.close(NULL, fd);
}

static int h_unlink(void *ctx, const char *path)
{
    struct hiding *h = ctx;
    struct stat st;
    int fd = stat(path, &st) == 0 ? user_of(h, st.st_ino) : -1;
    if (fd < 0)
        return fsdpck_io_posix.unlink(NULL, path);
    int dir = (int)(strrchr(path, '/') - path);
    snprintf(h->hidden[fd], PATH_MAX, "%.*s/.hidden%u", dir, path, h->nhidden++);
    return rename(path, h->hidden[fd]) != 0 ? -errno : 0;
}

static void hiding_begin(struct hiding *h)
{
    memset(h, 0, sizeof *h);
    h->io = model_fast_io();
    h->io.ctx = h;
    h->io.open = h_open;
    h->io.close = h_close;
    h->io.unlink = h_unlink;
}

static struct hiding hiding;

static void test_what_is_replaced_was_closed(void **state)
{
    (void)state;
    for (size_t i = 0; i < nverbs; i++) {
        const struct verb *v = &verbs[i];
        struct verb_how how = { .force = v->old };
        struct verb_result r;
        if (v->kind == VERB_SAVE || v->mount || v->no_exchange) /* ranks are threads, which this table does not support;
                                                                   simulated faults need another table */
            continue;
        ground_set_up(&ground, v);
        ground_reset(&ground, v);
        hiding_begin(&hiding);
        how.io[0] = &hiding.io;
        verb_run(v, &ground, &how, &r);
        if (r.code[0] != 0 || !verb_is_exactly(&ground, ground.root, STATE_NEW))
            verb_fail(v, ground.root, "%s: %s; or something is left", r.err[0].file, r.err[0].message);
    }
}

/* The output replaces the source, whose descriptors stay open for further reads. */
static void test_resharded_onto_itself(void **state)
{
    (void)state;
    struct fsdpck_error err = { 0 };
    struct fsdpck_source *src = NULL;
    const struct verb *v = &verbs[1];
    ground_set_up(&ground, v);
    ground_reset(&ground, v);
    hiding_begin(&hiding);
    const struct fsdpck_options opt = { .io = &hiding.io, .nthreads = 1 };
    const struct fsdpck_convert_request req = { .out = ground.out,
                                                .mesh = { .ndim = 1, .names = { "shard" }, .sizes = { v->nranks } },
                                                .force = true };
    int rc = fsdpck_source_open(ground.out, NULL, &opt, &src, &err);
    if (rc == 0)
        rc = fsdpck_convert(src, &req, &opt, NULL, &err);
    if (rc != 0 || !verb_is_exactly(&ground, ground.root, STATE_NEW))
        verb_fail(v, ground.root, "onto itself: %s: %s; or something is left", err.file, err.message);
    fsdpck_source_close(src);
}

static void test_somebody_else_holds_a_file(void **state)
{
    (void)state;
    struct fsdpck_error err = { 0 };
    char *dir = tree_path(ground.top, "held"), *file = tree_path(dir, "a/b");
    tree_file(dir, "a/b", "b");
    tree_file(dir, "c", "c");
    hiding_begin(&hiding);
    int fd = hiding.io.open(&hiding, file, FSDPCK_OPEN_READ, 0);
    assert_true(fd >= 0);
    assert_int_equal(fsdpck_remove_tree(&hiding.io, dir, &err), FSDPCK_ERR_IO);
    assert_int_equal(err.sys_errno, ENOTEMPTY);
    hiding.io.close(&hiding, fd);
    assert_int_equal(fsdpck_remove_tree(&hiding.io, dir, &err), 0);
    assert_false(tree_exists(ground.top, "held"));
    free(file);
    free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_replaced_was_closed),
        cmocka_unit_test(test_resharded_onto_itself),
        cmocka_unit_test(test_somebody_else_holds_a_file),
    };
    return cmocka_run_group_tests(tests, group_set_up, group_tear_down);
}
