/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of a device with separate memory. Recordings: work is recorded and replayed, or recording is unsupported and
 * nothing is done. High-priority streams, which have no scratch. */
#include "harness.h"

#include <stdlib.h>
#include <string.h>

enum { NROW = 3, NCOL = 40 };

static void add_twice(struct rig *rig, const struct matrix *y, const struct matrix *x)
{
    for (int i = 0; i < 2; i++)
        rig->ops->add(rig->stream, view(y), cview(y), cview(x), NROW, NCOL);
}

static void replays(struct rig *rig)
{
    struct matrix x = matrix_new(NROW, NCOL, rig->dtype), y = matrix_new(NROW, NCOL, rig->dtype);
    double *want = zeros(NROW * NCOL);
    for (int64_t i = 0; i < NROW * NCOL; i++)
        put(&x, i / NCOL, i % NCOL, 1), put(&y, i / NCOL, i % NCOL, 0);
    assert_true(rig->device->record(rig->stream));
    add_twice(rig, &y, &x);
    struct kern_recording *recording = rig->device->recorded(rig->stream);
    assert_non_null(recording);
    check_matrix(rig, &y, want, 0, "recorded");
    for (int i = 0; i < 3; i++)
        rig->device->replay(recording, rig->stream);
    check_stream(rig);
    for (int64_t i = 0; i < NROW * NCOL; i++)
        want[i] = 6;
    check_matrix(rig, &y, want, 0, "replayed three times");
    rig->device->recording_free(recording);
    rig->device->recording_free(NULL);
    must_free(want), matrix_free(&x), matrix_free(&y);
}

/* sum_squares uploads a list; its host copy is gone when the recording is replayed. */
static void replays_lists(struct rig *rig)
{
    struct matrix x = matrix_new(NROW, NCOL, rig->dtype);
    double *sums = must_alloc(NROW * sizeof(*sums));
    struct kern_rows *rows = malloc(sizeof(*rows));
    assert_non_null(rows);
    for (int64_t i = 0; i < NROW * NCOL; i++)
        put(&x, i / NCOL, i % NCOL, 2);
    *rows = (struct kern_rows){ .x = cview(&x), .nrow = NROW, .ncol = NCOL };
    sums[0] = 1;
    assert_true(rig->device->record(rig->stream));
    rig->ops->sum_squares(rig->stream, sums, rows, 1);
    free(rows);
    struct kern_recording *recording = rig->device->recorded(rig->stream);
    assert_non_null(recording);
    check_stream(rig);
    assert_true(sums[0] == 1);
    rig->device->replay(recording, rig->stream);
    check_stream(rig);
    for (int64_t i = 0; i < NROW; i++)
        assert_true(sums[i] == 4 * NCOL);
    rig->device->recording_free(recording);
    must_free(sums), matrix_free(&x);
}

/* A failure during recording leaves nothing behind. */
static void refuses(struct rig *rig)
{
    struct matrix x = matrix_new(NROW, NCOL, rig->dtype);
    const struct kern_gemm none = {
        .m = -1, .n = 1, .k = 1, .a = cview(&x), .b = cview(&x), .c = view(&x), .alpha = 1
    };
    assert_true(rig->device->record(rig->stream));
    rig->ops->gemm(rig->stream, &none);
    assert_null(rig->device->recorded(rig->stream));
    check_stream(rig);
    matrix_free(&x);
}

/* On a stream without scratch a sum works; a product, by our kernel or the library, and a list fail with a message, and
 * the stream remains usable. */
static void goes_ahead(struct rig *rig)
{
    char message[KERN_MESSAGE_BYTES];
    struct kern_stream *with = rig->stream, *ahead;
    struct matrix x = matrix_new(NROW, NROW, rig->dtype), y = matrix_new(NROW, NROW, rig->dtype);
    double want[NROW * NROW], *sums = must_alloc(NROW * sizeof(*sums));
    for (int64_t i = 0; i < NROW * NROW; i++)
        put(&x, i / NROW, i % NROW, 1), put(&y, i / NROW, i % NROW, 2), want[i] = 3;
    assert_int_equal(rig->device->stream_new(0, NULL, &ahead, message), 0);
    const struct kern_rows rows = { .x = cview(&x), .nrow = NROW, .ncol = NROW };
    const struct kern_gemm product = {
        .m = NROW, .n = NROW, .k = NROW, .a = cview(&x), .b = cview(&x), .c = view(&y), .alpha = 1
    };
    rig->ops->sum_squares(ahead, sums, &rows, 1);
    assert_int_equal(rig->device->stream_sync(ahead, message), KERN_ERR_ARG);
    rig->ops->gemm(ahead, &product);
    assert_int_equal(rig->device->stream_sync(ahead, message), KERN_ERR_ARG);
    assert_non_null(strstr(message, "scratch memory"));
    rig->ops->add(ahead, view(&y), cview(&y), cview(&x), NROW, NROW);
    rig->stream = ahead;
    check_matrix(rig, &y, want, 0, "a sum on a stream that goes ahead");
    rig->stream = with;
    rig->device->stream_free(ahead);
    must_free(sums), matrix_free(&x), matrix_free(&y);
}

static void test_replays(void **state)
{
    (void)state;
    rig_run_all(replays);
}

static void test_replays_lists(void **state)
{
    (void)state;
    rig_run_all(replays_lists);
}

static void test_refuses(void **state)
{
    (void)state;
    rig_run_all(refuses);
}

static void test_goes_ahead(void **state)
{
    (void)state;
    rig_run_all(goes_ahead);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_replays), cmocka_unit_test(test_replays_lists),
                                        cmocka_unit_test(test_refuses), cmocka_unit_test(test_goes_ahead) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
