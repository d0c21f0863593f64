/* SPDX-License-Identifier: Apache-2.0 */
/* Arena, growing array, name table: contents, alignment, growth, refusals. */
#include "base/arena.h"
#include "base/names.h"
#include "base/vec.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void arena_gives_zeroed_aligned_separate_memory(void **state)
{
    (void)state;
    struct fsdpck_arena a = { 0 };
    struct fsdpck_error err = { 0 };
    static const size_t sizes[] = { 0, 1, 15, 16, 17, 100, 1000, 5000, 70000, 3 << 20 };
    unsigned char *got[200];
    for (size_t i = 0; i < 200; i++) {
        size_t n = sizes[i % 10];
        got[i] = fsdpck_arena_alloc(&a, n, &err);
        assert_non_null(got[i]);
        assert_int_equal((uintptr_t)got[i] % 16, 0);
        for (size_t k = 0; k < n; k++)
            if (got[i][k] != 0)
                fail_msg("byte %zu of allocation %zu is not zero", k, i);
        memset(got[i], (int)i + 1, n);
    }
    for (size_t i = 0; i < 200; i++)
        for (size_t k = 0; k < sizes[i % 10]; k++)
            if (got[i][k] != (unsigned char)(i + 1))
                fail_msg("allocation %zu was overwritten at %zu", i, k);
    assert_true(a.nbytes >= 20 * (3u << 20));
    fsdpck_arena_free(&a);
    assert_int_equal(a.nbytes, 0);
    char *s = fsdpck_arena_strndup(&a, "hello world", 5, &err);
    assert_string_equal(s, "hello");
    assert_string_equal(fsdpck_arena_strndup(&a, NULL, 0, &err), "");
    fsdpck_arena_free(&a);
    assert_int_equal(err.code, 0);
}

static void arena_refuses_what_overflows(void **state)
{
    (void)state;
    struct fsdpck_arena a = { 0 };
    struct fsdpck_error err = { 0 };
    assert_null(fsdpck_arena_array(&a, SIZE_MAX / 8, 16, &err));
    assert_int_equal(err.code, FSDPCK_ERR_NOMEM);
    assert_null(fsdpck_arena_alloc(&a, SIZE_MAX - 3, NULL));
    uint32_t *p = fsdpck_arena_array(&a, 10, sizeof *p, NULL);
    assert_non_null(p);
    fsdpck_arena_free(&a);
    fsdpck_arena_free(&a);
}

static void vec_grows_zeroed(void **state)
{
    (void)state;
    struct item {
        uint32_t number;
        char rest[9];
    };
    struct fsdpck_vec v = FSDPCK_VEC(struct item);
    struct fsdpck_error err = { 0 };
    for (uint32_t i = 0; i < 1000; i++) {
        struct item *p = fsdpck_vec_push(&v, &err);
        assert_non_null(p);
        assert_int_equal(p->number, 0);
        assert_int_equal(p->rest[8], 0);
        memset(p, 0x55, sizeof *p);
        p->number = i;
    }
    v.count--; /* a reused slot is zeroed again */
    struct item *again = fsdpck_vec_push(&v, &err);
    assert_int_equal(again->rest[0], 0);
    again->number = 999;
    assert_int_equal(v.count, 1000);
    for (uint32_t i = 0; i < 1000; i++)
        assert_int_equal(((struct item *)v.data)[i].number, i);
    assert_int_equal(fsdpck_vec_reserve(&v, 5000, &err), 0);
    void *data = v.data;
    while (v.count < 5000)
        assert_non_null(fsdpck_vec_push(&v, &err));
    assert_ptr_equal(v.data, data);
    assert_int_equal(fsdpck_vec_reserve(&v, SIZE_MAX / 2, &err), FSDPCK_ERR_NOMEM);
    assert_int_equal(v.count, 5000);
    fsdpck_vec_free(&v);
    assert_int_equal(v.count, 0);
    assert_non_null(fsdpck_vec_push(&v, NULL));
    fsdpck_vec_free(&v);
}

enum { NNAMES = 20000 };

static void names_are_found(void **state)
{
    (void)state;
    struct fsdpck_names n = { 0 };
    struct fsdpck_error err = { 0 };
    char(*text)[32] = calloc(NNAMES, sizeof *text);
    assert_non_null(text);
    assert_int_equal(fsdpck_names_find(&n, "x"), SIZE_MAX);
    for (size_t i = 0; i < NNAMES; i++) {
        size_t old = 0;
        snprintf(text[i], sizeof text[i], "layers.%zu.w", i);
        assert_int_equal(fsdpck_names_add(&n, text[i], i * 3, &old, &err), 0);
        assert_true(old == SIZE_MAX);
    }
    for (size_t i = 0; i < NNAMES; i++) {
        char copy[32];
        memcpy(copy, text[i], sizeof copy);
        assert_int_equal(fsdpck_names_find(&n, copy), i * 3);
        copy[0] = 'L';
        assert_true(fsdpck_names_find(&n, copy) == SIZE_MAX);
    }
    assert_int_equal(n.count, NNAMES);
    fsdpck_names_free(&n);
    free(text);
    assert_true(fsdpck_names_find(&n, "layers.0.w") == SIZE_MAX);
}

static void a_second_name_is_told(void **state)
{
    (void)state;
    struct fsdpck_names n = { 0 };
    size_t old = 7;
    assert_int_equal(fsdpck_names_add(&n, "", 0, &old, NULL), 0);
    assert_true(old == SIZE_MAX);
    assert_int_equal(fsdpck_names_add(&n, "a", 1, &old, NULL), 0);
    assert_true(old == SIZE_MAX);
    assert_int_equal(fsdpck_names_add(&n, "a", 2, &old, NULL), 0);
    assert_int_equal(old, 1);
    assert_int_equal(fsdpck_names_find(&n, "a"), 1);
    assert_int_equal(fsdpck_names_find(&n, ""), 0);
    assert_int_equal(n.count, 2);
    fsdpck_names_free(&n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arena_gives_zeroed_aligned_separate_memory),
        cmocka_unit_test(arena_refuses_what_overflows),
        cmocka_unit_test(vec_grows_zeroed),
        cmocka_unit_test(names_are_found),
        cmocka_unit_test(a_second_name_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
