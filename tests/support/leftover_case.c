/* SPDX-License-Identifier: Apache-2.0 */
/* A directory on a simulated machine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "leftover_case.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "below.h"
#include "tree.h"

struct faulty *leftover_machine(const struct leftover_case *x)
{
    struct faulty *f = faulty_new(x->root);
    faulty_redirect(f, "/proc/sys/kernel/random/boot_id", below(x->top, "boot_id"));
    faulty_redirect(f, "/proc/sys/kernel/hostname", below(x->top, "hostname"));
    return f;
}

int leftover_setup(void **state)
{
    struct leftover_case *x = calloc(1, sizeof *x);
    x->top = tree_new();
    x->root = tree_path(x->top, "root");
    tree_dir(x->top, "root");
    tree_file(x->top, "boot_id", BOOT "\n");
    tree_file(x->top, "hostname", HERE "\n");
    x->f = leftover_machine(x);
    *state = x;
    return 0;
}

int leftover_teardown(void **state)
{
    struct leftover_case *x = *state;
    faulty_free(x->f);
    tree_remove(x->top);
    free(x->root);
    free(x->top);
    free(x);
    return 0;
}

void leftover_report(void *ctx, const struct fsdpck_leftover *l)
{
    struct leftover_case *x = ctx;
    size_t n = strlen(x->report);
    assert_int_equal(strncmp(l->path, x->root, strlen(x->root)), 0);
    snprintf(x->report + n, sizeof x->report - n, "%s %s%s: %s\n", l->path + strlen(x->root) + 1,
             l->alive ? "alive" : "dead", l->removed ? " removed" : "", l->why);
}

int leftover_list(struct leftover_case *x, const char *name, bool remove)
{
    struct fsdpck_options opt = { .io = faulty_io(x->f) };
    struct fsdpck_error err = { 0 };
    x->report[0] = '\0';
    return fsdpck_leftovers(below(x->root, name), remove ? FSDPCK_CLEAN_DEAD : FSDPCK_CLEAN_NOTHING, &opt,
                            leftover_report, x, &err);
}

int leftover_begin(struct leftover_case *x, const char *name, const char *uuid_text, struct fsdpck_commit **c)
{
    uint8_t uuid[16];
    assert_true(fsdpck_uuid_parse(uuid_text, uuid));
    return fsdpck_commit_begin(faulty_io(x->f), below(x->root, name), FSDPCK_COMMIT_CHECKPOINT, "index.json", uuid,
                               true, c, NULL);
}
