/* SPDX-License-Identifier: Apache-2.0 */
/* The pool: it runs every piece once, reports the lowest failure, and stops. Also run under ThreadSanitizer. */
#include "base/pool.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>

#include <cmocka.h>
#include <fsdpck/source.h>

enum { NPIECES = 500 };

struct job {
    atomic_int times[NPIECES];
    atomic_uint busy[8]; /* pieces running under one worker number: at most one */
    atomic_size_t ndone;
    unsigned nthreads;
    size_t fail_from, stop_at;
    int stop;
    atomic_bool wrong;
};

static int one_piece(void *ctx, size_t piece, unsigned worker, struct fsdpck_error *err)
{
    struct job *j = ctx;
    if (worker >= j->nthreads || piece >= NPIECES || atomic_fetch_add(&j->busy[worker], 1) != 0) {
        atomic_store(&j->wrong, true);
        return FSDPCK_ERR_USAGE;
    }
    atomic_fetch_add(&j->times[piece], 1);
    atomic_fetch_add(&j->ndone, 1);
    if (piece % 16 == 0)
        sched_yield();
    if (piece == j->stop_at)
        __atomic_store_n(&j->stop, 1, __ATOMIC_RELAXED);
    while (piece > j->stop_at && __atomic_load_n(&j->stop, __ATOMIC_RELAXED) == 0)
        sched_yield(); /* the piece that stops was taken earlier and will run */
    int rc = 0;
    if (piece >= j->fail_from)
        rc = fsdpck_error_at(err, FSDPCK_ERR_DAMAGED, "f", piece, "piece %zu", piece);
    atomic_fetch_sub(&j->busy[worker], 1);
    return rc;
}

static int run(struct job *j, unsigned nthreads, struct fsdpck_error *err)
{
    j->nthreads = nthreads == 0 ? 1 : nthreads;
    return fsdpck_pool_run(nthreads, NPIECES, one_piece, j, &j->stop, err);
}

static void every_piece_once(void **state)
{
    (void)state;
    for (unsigned nthreads = 0; nthreads <= 8; nthreads++) {
        struct job j = { .fail_from = NPIECES, .stop_at = NPIECES };
        struct fsdpck_error err = { 0 };
        assert_int_equal(run(&j, nthreads, &err), 0);
        assert_false(j.wrong);
        for (size_t i = 0; i < NPIECES; i++)
            assert_int_equal(j.times[i], 1);
        assert_int_equal(err.code, 0);
    }
}

static void no_pieces_no_calls(void **state)
{
    (void)state;
    struct job j = { .nthreads = 4 };
    assert_int_equal(fsdpck_pool_run(4, 0, one_piece, &j, NULL, NULL), 0);
    assert_int_equal(j.ndone, 0);
}

/* Pieces start in order, and every one from fail_from on fails. The lowest must be reported, and soon no more pieces
 * start. */
static void the_lowest_failure_wins(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 200; i++) {
        struct job j = { .fail_from = 100 + i, .stop_at = NPIECES };
        struct fsdpck_error err = { 0 };
        unsigned nthreads = 1 + i % 8;
        assert_int_equal(run(&j, nthreads, &err), FSDPCK_ERR_DAMAGED);
        assert_int_equal(err.offset, j.fail_from);
        assert_string_equal(err.file, "f");
        assert_true(j.ndone > j.fail_from && j.ndone <= j.fail_from + nthreads);
        assert_false(j.wrong);
    }
}

static void an_error_that_stands_is_kept(void **state)
{
    (void)state;
    struct job j = { .fail_from = 3, .stop_at = NPIECES };
    struct fsdpck_error err = { 0 };
    fsdpck_error_set(&err, FSDPCK_ERR_LIMIT, NULL, "before");
    assert_int_equal(run(&j, 2, &err), FSDPCK_ERR_DAMAGED);
    assert_string_equal(err.message, "before");
    struct job again = { .fail_from = 3, .stop_at = NPIECES };
    assert_int_equal(run(&again, 2, NULL), FSDPCK_ERR_DAMAGED);
}

static void stopping(void **state)
{
    (void)state;
    for (unsigned nthreads = 1; nthreads <= 8; nthreads++) {
        struct job j = { .fail_from = NPIECES, .stop_at = 50 };
        struct fsdpck_error err = { 0 };
        assert_int_equal(run(&j, nthreads, &err), FSDPCK_ERR_STOPPED);
        assert_string_equal(err.message, "stopped");
        assert_true(j.ndone > 50 && j.ndone <= 50 + nthreads);
    }
    struct job late = { .fail_from = NPIECES, .stop_at = NPIECES - 1 }; /* all pieces had already run */
    assert_int_equal(run(&late, 1, NULL), 0);
    struct job before = { .fail_from = NPIECES, .stop = 1 };
    assert_int_equal(run(&before, 3, NULL), FSDPCK_ERR_STOPPED);
    assert_int_equal(before.ndone, 0);
}

static void default_threads_follow_the_affinity(void **state)
{
    (void)state;
    cpu_set_t before, one;
    assert_true(fsdpck_processors() >= 1);
    if (sched_getaffinity(0, sizeof before, &before) != 0) {
        print_message("SKIP default threads: more processors than this test knows\n");
        skip();
    }
    assert_int_equal(fsdpck_processors(), CPU_COUNT(&before));
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &before) && CPU_COUNT(&one) == 0)
            CPU_SET(cpu, &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0) {
        print_message("SKIP default threads: the processors may not be chosen\n");
        skip();
    }
    assert_int_equal(fsdpck_processors(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_piece_once),
        cmocka_unit_test(no_pieces_no_calls),
        cmocka_unit_test(the_lowest_failure_wins),
        cmocka_unit_test(an_error_that_stands_is_kept),
        cmocka_unit_test(stopping),
        cmocka_unit_test(default_threads_follow_the_affinity),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
