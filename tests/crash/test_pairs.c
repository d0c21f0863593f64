/* SPDX-License-Identifier: Apache-2.0 */
/* An output of one kind replaces one of another, in place and by exchange. The result is the same whatever was
 * replaced. Killed before each of the last operations and before some others, the verb leaves a readable output that is
 * wholly old or wholly new. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "sweep.h"
#include "tree.h"
#include "verbs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct verb news[] = {
    { .name = "a checkpoint", .kind = VERB_CONVERT, .nranks = 2 },
    { .name = "a compressed checkpoint", .kind = VERB_CONVERT, .nranks = 2, .compress = true },
    { .name = "a folder", .kind = VERB_EXPORT_FOLDER, .nranks = 1 },
    { .name = "a folder of one file", .kind = VERB_EXPORT_FOLDER, .nranks = 1, .whole = true },
    { .name = "an adapter", .kind = VERB_EXPORT_LORA, .nranks = 1 },
    { .name = "a save", .kind = VERB_SAVE, .nranks = 2 },
};
enum { NNEWS = sizeof news / sizeof news[0] };

static const struct {
    const char *name, *from;
    bool adapter, folder;
} olds[] = {
    { "a checkpoint", "old/checkpoint", false, false }, { "a compressed checkpoint", "old/compressed", false, false },
    { "a folder", "old/export", false, true },          { "a folder of one file", "old/whole", false, true },
    { "an adapter", "old-lora/adapter", true, false },
};
enum { NOLDS = sizeof olds / sizeof olds[0] };

/* All operations around the commit, and few of those that write the files. */
enum { LAST = 60, FEW = 23 };

static struct verb pair(size_t i, size_t k, bool mount, char *name, size_t nbytes)
{
    struct verb v = news[i];
    snprintf(name, nbytes, "%s over %s%s", news[i].name, olds[k].name, mount ? ", in place" : "");
    v.name = name;
    v.old = true;
    v.mount = mount;
    v.old_from = olds[k].from;
    v.old_is_adapter = olds[k].adapter;
    v.old_is_folder = olds[k].folder;
    return v;
}

static enum verb_state judge(const struct verb *v, uint32_t rank, unsigned n, bool cleaned)
{
    const char *why;
    enum verb_state state = verb_state(v, &ground, ground.root, cleaned, &why);
    if (state != STATE_OLD && state != STATE_NEW)
        verb_fail(v, ground.root, "killed at operation %u of rank %u, %s clean: neither old nor new (%s)", n, rank,
                  cleaned ? "after" : "before", why);
    return state;
}

static void kill_once(const struct verb *v, uint32_t rank, unsigned n)
{
    struct fsdpck_error err = { 0 };
    ground_reset(&ground, v);
    verb_run_killed(v, &ground, rank, n, 1, true);
    enum verb_state before = judge(v, rank, n, false);
    if (verb_clean(v, &ground, ground.root, true, false, NULL, &err) != 0)
        verb_fail(v, ground.root, "killed at operation %u of rank %u: cannot be cleaned: %s: %s", n, rank, err.file,
                  err.message);
    if (judge(v, rank, n, true) != before || !verb_is_exactly(&ground, ground.root, before))
        verb_fail(v, ground.root,
                  "killed at operation %u of rank %u: cleaning changes what stands there, or leaves more", n, rank);
}

static void test_only_the_new_one_is_left(void **state)
{
    (void)state;
    for (size_t i = 0; i < NNEWS; i++)
        for (int mount = 0; mount < 2; mount++) {
            char name[128], *fresh = NULL;
            for (size_t k = 0; k < NOLDS; k++) {
                struct verb v = pair(i, k, mount, name, sizeof name);
                ground_set_up(&ground, &v); /* fails the test if the verb does not end in the new state */
                if (fresh == NULL)
                    fresh = strdup(ground.new_names);
                if (strcmp(fresh, ground.new_names) != 0)
                    verb_fail(&v, ground.root, "it leaves other files than over %s", olds[0].name);
            }
            free(fresh);
        }
}

static void test_killed_in_place(void **state)
{
    (void)state;
    for (size_t i = 0; i < NNEWS; i++)
        for (size_t k = 0; k < NOLDS; k++) {
            char name[128];
            struct verb v = pair(i, k, true, name, sizeof name);
            ground_set_up(&ground, &v);
            for (uint32_t rank = 0; rank < verb_writers(&v); rank++)
                for (unsigned n = 0, nops = ground.nops[rank]; n < nops; n += n + LAST < nops ? FEW : SWEEP_STEP)
                    kill_once(&v, rank, n);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_the_new_one_is_left),
        cmocka_unit_test(test_killed_in_place),
    };
    return cmocka_run_group_tests(tests, group_set_up, group_tear_down);
}
