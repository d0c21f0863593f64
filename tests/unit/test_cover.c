/* SPDX-License-Identifier: Apache-2.0 */
/* Boxes that fill a tensor and boxes that do not, against a count of every element. */
#include "tensor/cover.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tensor/box.h"
#include "model.h"

enum { NDIM = 3, MAX_BOXES = 64 };

struct boxes {
    uint64_t shape[NDIM];
    uint32_t ndim;
    uint64_t offset[MAX_BOXES][NDIM], size[MAX_BOXES][NDIM];
    size_t n;
};

static int check(const struct boxes *b, struct fsdpck_error *err)
{
    memset(err, 0, sizeof *err);
    struct fsdpck_cover *c = fsdpck_cover_new(b->ndim, b->shape, b->n, err);
    assert_non_null(c);
    for (size_t i = 0; i < b->n; i++)
        fsdpck_cover_add(c, b->offset[i], b->size[i]);
    int r = fsdpck_cover_check(c, "file", "w", err);
    fsdpck_cover_free(c);
    assert_int_equal(r, err->code);
    return r;
}

static void shuffle(struct boxes *b, uint64_t *rng)
{
    for (size_t i = b->n; i-- > 1;) {
        size_t k = model_below(rng, i + 1);
        uint64_t t[NDIM];
        memcpy(t, b->offset[i], sizeof t), memcpy(b->offset[i], b->offset[k], sizeof t),
            memcpy(b->offset[k], t, sizeof t);
        memcpy(t, b->size[i], sizeof t), memcpy(b->size[i], b->size[k], sizeof t), memcpy(b->size[k], t, sizeof t);
    }
}

/* Cuts the whole tensor repeatedly at random: the boxes fill it exactly, but are not a grid. */
static void cut(struct boxes *b, uint64_t *rng, size_t ncuts)
{
    *b = (struct boxes){ .ndim = 1 + (uint32_t)model_below(rng, NDIM), .n = 1 };
    for (uint32_t d = 0; d < b->ndim; d++)
        b->shape[d] = b->size[0][d] = 1 + model_below(rng, 12);
    for (size_t i = 0; i < ncuts && b->n < MAX_BOXES - 1; i++) {
        size_t k = model_below(rng, b->n);
        uint32_t d = (uint32_t)model_below(rng, b->ndim);
        uint64_t at = model_below(rng, b->size[k][d] + 1); /* sometimes empty */
        memcpy(b->offset[b->n], b->offset[k], sizeof b->offset[k]);
        memcpy(b->size[b->n], b->size[k], sizeof b->size[k]);
        b->size[k][d] = at;
        b->offset[b->n][d] += at;
        b->size[b->n++][d] -= at;
    }
    shuffle(b, rng);
}

/* The expected result, by counting: FORMAT if a box leaves the shape or two overlap, MISSING if an element is in no
 * box. */
static int count(const struct boxes *b)
{
    uint8_t seen[24 * 24 * 24] = { 0 };
    bool hole = false;
    for (size_t i = 0; i < b->n; i++) {
        uint64_t o[NDIM] = { 0 }, s[NDIM] = { 1, 1, 1 };
        memcpy(o, b->offset[i], b->ndim * 8);
        memcpy(s, b->size[i], b->ndim * 8);
        if (s[0] * s[1] * s[2] == 0)
            continue;
        for (uint32_t d = 0; d < b->ndim; d++)
            if (o[d] + s[d] > b->shape[d])
                return FSDPCK_ERR_FORMAT;
        for (uint64_t x = o[0]; x < o[0] + s[0]; x++)
            for (uint64_t y = o[1]; y < o[1] + s[1]; y++)
                for (uint64_t z = o[2]; z < o[2] + s[2]; z++)
                    if (seen[(x * 24 + y) * 24 + z]++)
                        return FSDPCK_ERR_FORMAT;
    }
    uint64_t n[NDIM] = { 1, 1, 1 };
    memcpy(n, b->shape, b->ndim * 8);
    for (uint64_t x = 0; x < n[0]; x++)
        for (uint64_t y = 0; y < n[1]; y++)
            for (uint64_t z = 0; z < n[2]; z++)
                hole |= !seen[(x * 24 + y) * 24 + z];
    return hole ? FSDPCK_ERR_MISSING : 0;
}

static void test_random_cuts(void **state)
{
    (void)state;
    uint64_t rng = 1;
    struct fsdpck_error err;
    for (int i = 0; i < 4000; i++) {
        struct boxes b;
        cut(&b, &rng, model_below(&rng, 40));
        assert_int_equal(count(&b), 0);
        assert_int_equal(check(&b, &err), 0);
    }
}

/* Moves, resizes, duplicates or removes one box of a good set. */
static void spoil(struct boxes *b, uint64_t *rng)
{
    size_t k = model_below(rng, b->n);
    uint32_t d = (uint32_t)model_below(rng, b->ndim);
    switch (model_below(rng, 5)) {
    case 0: b->offset[k][d]++; break;
    case 1: b->offset[k][d] -= b->offset[k][d] > 0; break;
    case 2: b->size[k][d]++; break;
    case 3: b->size[k][d] -= b->size[k][d] > 0; break;
    default:
        memcpy(b->offset[k], b->offset[b->n - 1], sizeof b->offset[k]);
        memcpy(b->size[k], b->size[b->n - 1], sizeof b->size[k]);
        b->n -= model_below(rng, 2);
    }
}

static void test_spoilt_cuts(void **state)
{
    (void)state;
    uint64_t rng = 2;
    int nwrong[2] = { 0 };
    struct fsdpck_error err;
    for (int i = 0; i < 8000; i++) {
        struct boxes b;
        cut(&b, &rng, model_below(&rng, 30));
        spoil(&b, &rng);
        int want = count(&b);
        assert_int_equal(check(&b, &err), want);
        nwrong[0] += want == FSDPCK_ERR_FORMAT;
        nwrong[1] += want == FSDPCK_ERR_MISSING;
    }
    assert_true(nwrong[0] > 500 && nwrong[1] > 500);
}

static void test_messages(void **state)
{
    (void)state;
    struct fsdpck_error err;
    struct boxes b = {
        .ndim = 2, .shape = { 4, 6 }, .n = 2, .offset = { { 0, 0 }, { 2, 0 } }, .size = { { 3, 6 }, { 2, 6 } }
    };
    assert_int_equal(check(&b, &err), FSDPCK_ERR_FORMAT);
    assert_string_equal(err.message, "tensor 'w': the chunks at (0, 0) and (2, 0) overlap");
    assert_string_equal(err.file, "file");
    b.size[0][0] = 1;
    assert_int_equal(check(&b, &err), FSDPCK_ERR_MISSING);
    assert_string_equal(err.message, "tensor 'w': the chunks hold 18 of its 24 elements");
    b.size[1][1] = 7;
    assert_int_equal(check(&b, &err), FSDPCK_ERR_FORMAT);
    assert_string_equal(err.message, "tensor 'w': the chunk at (2, 0) leaves the tensor");
}

/* Numbers that overflow: a size that wraps the end back into the shape, volumes whose sum is right modulo 2^64. */
static void test_large_numbers(void **state)
{
    (void)state;
    struct fsdpck_error err;
    struct boxes b = {
        .ndim = 1, .shape = { 10 }, .n = 2, .offset = { { 0 }, { 5 } }, .size = { { 5 }, { UINT64_MAX } }
    };
    assert_int_equal(check(&b, &err), FSDPCK_ERR_FORMAT);
    b = (struct boxes){ .ndim = 1, .shape = { 10 }, .n = 1, .offset = { { UINT64_MAX } }, .size = { { 11 } } };
    assert_int_equal(check(&b, &err), FSDPCK_ERR_FORMAT);
}

static void test_scalars_and_nothing(void **state)
{
    (void)state;
    struct fsdpck_error err;
    struct boxes b = { .n = 1 };
    assert_int_equal(check(&b, &err), 0);
    b.n = 2;
    assert_int_equal(check(&b, &err), FSDPCK_ERR_FORMAT);
    b.n = 0;
    assert_int_equal(check(&b, &err), FSDPCK_ERR_MISSING);
    b = (struct boxes){ .ndim = 2, .shape = { 3, 0 } };
    assert_int_equal(check(&b, &err), 0);
    fsdpck_cover_free(NULL);
}

/* Many chunks, like those of sharding and resharding. The test asserts only that it ends with the right result. */
static void test_large_grids(void **state)
{
    (void)state;
    enum { N = 300 };
    uint64_t shape[2] = { 2 * N, 3 * N }, size[2] = { 2, 3 }, (*offset)[2] = malloc(sizeof(uint64_t[N * N][2]));
    struct fsdpck_error err = { 0 };
    assert_non_null(offset);
    struct fsdpck_cover *c = fsdpck_cover_new(2, shape, N * N, &err);
    assert_non_null(c);
    for (uint64_t i = 0; i < N * N; i++) {
        offset[i][0] = i * 7 % (N * N) / N * 2;
        offset[i][1] = i * 7 % N * 3;
        fsdpck_cover_add(c, offset[i], size);
    }
    assert_int_equal(fsdpck_cover_check(c, NULL, "w", &err), 0);
    offset[N][1] ^= 1;
    assert_int_equal(fsdpck_cover_check(c, NULL, "w", &err), FSDPCK_ERR_FORMAT);
    fsdpck_cover_free(c);
    free(offset);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_cuts),
        cmocka_unit_test(test_spoilt_cuts),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_large_numbers),
        cmocka_unit_test(test_scalars_and_nothing),
        cmocka_unit_test(test_large_grids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
