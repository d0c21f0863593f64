/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots in memory: any number of ranks restores what another number took; a snapshot that is torn, or whose bytes
 * something has overwritten, is never chosen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "snapshot_run.h"

/* The first ntaken ranks copy their rows, and the first ncompleted of them complete. */
static void take(struct snapshot_run *run, struct snapshots *s, uint64_t step, uint32_t index, uint32_t ntaken,
                 uint32_t ncompleted)
{
    struct fsdpck_error err = { 0 };
    snapshot_run_each(run, step, true);
    for (uint32_t r = 0; r < ntaken; r++) {
        struct rank *rank = &run->ranks[r];
        rank->step = step;
        rank->updates = step - 1;
        rank->last_update = step - 1;
        snapshots_touch(s, rank);
        assert_int_equal(snapshots_take(s, rank, index, &err), 0);
        if (r < ncompleted)
            snapshots_complete(s, rank, index);
    }
}

static void restores(struct snapshots *s, uint64_t step, uint32_t nranks)
{
    struct snapshot_run *run = snapshot_run_start(nranks);
    struct fsdpck_error err = { 0 };
    for (uint32_t r = 0; r < nranks; r++) {
        assert_int_equal(snapshots_restore(s, &run->ranks[r], &err), 0);
        assert_int_equal(run->ranks[r].step, step);
        assert_int_equal(run->ranks[r].updates, step - 1);
        assert_int_equal(run->ranks[r].last_update, step - 1);
    }
    assert_int_equal(snapshot_run_each(run, step, false), 0);
    snapshot_run_end(run);
}

static void any_number(void **unused)
{
    (void)unused;
    for (uint32_t before = 1; before <= MAX_RANKS; before++) {
        struct snapshot_run *run = snapshot_run_start(before);
        struct snapshots *s;
        struct fsdpck_error err = { 0 };
        assert_int_equal(snapshots_new(&run->job.layout, NULL, &s, &err), 0);
        assert_int_equal(snapshots_choose(s), 0);
        take(run, s, 10, 0, before, before);
        take(run, s, 20, 1, before, before);
        assert_int_equal(snapshots_choose(s), 20);
        for (uint32_t after = 1; after <= MAX_RANKS; after++)
            restores(s, 20, after);
        assert_int_equal(snapshots_choose(s), 20);
        snapshots_free(s);
        snapshot_run_end(run);
    }
}

/* A rank dies before, while or after it copies its rows. */
static void torn(void **unused)
{
    (void)unused;
    struct snapshot_run *run = snapshot_run_start(3);
    struct fsdpck_error err = { 0 };
    for (uint32_t ntaken = 0; ntaken <= 3; ntaken++) {
        for (uint32_t ncompleted = 0; ncompleted <= ntaken; ncompleted++) {
            struct snapshots *s;
            assert_int_equal(snapshots_new(&run->job.layout, NULL, &s, &err), 0);
            take(run, s, 10, 0, 3, 3);
            take(run, s, 20, 1, 3, 3);
            take(run, s, 30, 0, ntaken, ncompleted);
            const uint64_t step = ncompleted == 3 ? 30 : 20;
            assert_int_equal(snapshots_choose(s), step);
            restores(s, step, 2);
            snapshots_free(s);
        }
    }
    snapshot_run_end(run);
}

/* Two ranks went on from step 20, and one of them died in the next copy: what three ranks had left does not count. */
static void of_fewer(void **unused)
{
    (void)unused;
    struct snapshot_run *three = snapshot_run_start(3), *two = snapshot_run_start(2);
    struct snapshots *s;
    struct fsdpck_error err = { 0 };
    assert_int_equal(snapshots_new(&three->job.layout, NULL, &s, &err), 0);
    take(three, s, 10, 0, 3, 3);
    take(three, s, 20, 1, 3, 3);
    assert_int_equal(snapshots_choose(s), 20);
    take(two, s, 10, 0, 1, 1);
    assert_int_equal(snapshots_choose(s), 20);
    take(two, s, 30, 0, 2, 2);
    assert_int_equal(snapshots_choose(s), 30);
    restores(s, 30, 3);
    snapshots_free(s);
    snapshot_run_end(three);
    snapshot_run_end(two);
}

/* Changes the bytes wherever this process shares memory; returns how often it has found them. */
static int overwrite(const float *found, float by)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512], access[8];
    unsigned long begin, last;
    int n = 0;
    assert_non_null(maps);
    while (fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx %7s", &begin, &last, access) != 3 || strcmp(access, "rw-s") != 0)
            continue;
        for (float *at = (float *)begin; at < (float *)last; at++) {
            if (memcmp(at, found, sizeof *at) == 0) {
                *at = by;
                n++;
            }
        }
    }
    fclose(maps);
    return n;
}

static void overwritten(void **unused)
{
    (void)unused;
    struct snapshot_run *run = snapshot_run_start(3);
    struct fsdpck_error err = { 0 };
    for (int tree = 0; tree < 3; tree++) {
        struct snapshots *s;
        const float last = snapshot_value(30, tree, 2, 10, 0), before = snapshot_value(20, tree, 0, 0, 0);
        assert_int_equal(snapshots_new(&run->job.layout, NULL, &s, &err), 0);
        take(run, s, 20, 1, 3, 3);
        take(run, s, 30, 0, 3, 3);
        assert_int_equal(overwrite(&last, 0), 1);
        assert_int_equal(snapshots_choose(s), 20);
        restores(s, 20, 2);
        assert_int_equal(overwrite(&before, 0), 1);
        assert_int_equal(snapshots_choose(s), 0);
        snapshots_free(s);
    }
    snapshot_run_end(run);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(any_number), cmocka_unit_test(torn),
                                        cmocka_unit_test(of_fewer), cmocka_unit_test(overwritten) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
