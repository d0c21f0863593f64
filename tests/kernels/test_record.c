/* Recordings: what is put on a stream is kept and replayed, or there is no recording and nothing was done. For devices that have them. */
#include "harness.h"

#include <stdlib.h>

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
    for (int64_t i = 0; i < NROW * NCOL; i++)
        want[i] = 6;
    check_matrix(rig, &y, want, 0, "replayed three times");
    rig->device->recording_free(recording);
    rig->device->recording_free(NULL);
    must_free(want), matrix_free(&x), matrix_free(&y);
}

/* Sums of squares bring a list, which would not be there any more. */
static void refuses(struct rig *rig)
{
    struct matrix x = matrix_new(NROW, NCOL, rig->dtype);
    double *sums = must_alloc(NROW * sizeof(*sums));
    for (int64_t i = 0; i < NROW * NCOL; i++)
        put(&x, i / NCOL, i % NCOL, 2);
    const struct kern_rows rows = {.x = cview(&x), .nrow = NROW, .ncol = NCOL};
    sums[0] = 1;
    assert_true(rig->device->record(rig->stream));
    rig->ops->sum_squares(rig->stream, sums, &rows, 1);
    assert_null(rig->device->recorded(rig->stream));
    check_stream(rig);
    assert_true(sums[0] == 1);
    rig->ops->sum_squares(rig->stream, sums, &rows, 1);
    check_stream(rig);
    for (int64_t i = 0; i < NROW; i++)
        assert_true(sums[i] == 4 * NCOL);
    must_free(sums), matrix_free(&x);
}

static void test_replays(void **state)
{
    (void)state;
    rig_run_all(replays);
}

static void test_refuses(void **state)
{
    (void)state;
    rig_run_all(refuses);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_replays), cmocka_unit_test(test_refuses)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
