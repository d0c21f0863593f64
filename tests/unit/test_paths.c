/* SPDX-License-Identifier: Apache-2.0 */
/* Relative paths between absolute ones, and which texts are the same path. */
#include "base/paths.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model.h"

static void ways_lead_there_and_back(void **state)
{
    static const char *const cases[][3] = {
        /* from, to, expected relative path */
        { "/a/b", "/a/c", "../c" },    { "/a/b", "/a/b", "." },     { "/a/b", "/a/bc", "../bc" },
        { "/a/b", "/a/b/c/d", "c/d" }, { "/a/b/c", "/a", "../.." }, { "/a", "/", ".." },
        { "/", "/a/b", "a/b" },        { "/", "/", "." },           { "/a/b", "/c", "../../c" },
        { "/abc", "/ab", "../ab" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fsdpck_error err = { 0 };
        char *way = fsdpck_path_relative(cases[i][0], cases[i][1], &err),
             *back = fsdpck_path_follow(cases[i][0], way, &err);
        assert_string_equal(way, cases[i][2]);
        assert_string_equal(back, cases[i][1]);
        assert_true(fsdpck_path_is_relative(way));
        free(way);
        free(back);
    }
}

/* Random parts of one or two letters, so that many share a prefix that is not a whole part. */
static void random_path(uint64_t *random, char *out)
{
    size_t n = model_below(random, 6);
    strcpy(out, n ? "" : "/");
    for (size_t i = 0; i < n; i++)
        sprintf(out + strlen(out), "/%s",
                (const char *[]){ "a", "b", "ab", "ba", "...", "a.b" }[model_below(random, 6)]);
}

static void random_ways_lead_back(void **state)
{
    uint64_t random = 5;
    char from[64], to[64];
    (void)state;
    for (int i = 0; i < 20000; i++) {
        struct fsdpck_error err = { 0 };
        random_path(&random, from);
        random_path(&random, to);
        char *way = fsdpck_path_relative(from, to, &err), *back = fsdpck_path_follow(from, way, &err);
        if (strcmp(back, to) != 0 || !fsdpck_path_is_relative(way))
            fail_msg("from %s to %s: '%s' leads to %s", from, to, way, back);
        free(way);
        free(back);
    }
}

static void a_way_above_the_root_stays_there(void **state)
{
    struct fsdpck_error err = { 0 };
    (void)state;
    char *path = fsdpck_path_follow("/a", "../../../b", &err), *root = fsdpck_path_follow("/a", "../..", &err);
    assert_string_equal(path, "/b");
    assert_string_equal(root, "/");
    free(path);
    free(root);
}

static void other_texts_are_no_way(void **state)
{
    static const char *const bad[] = { "",    "/",   "/a",   "a/",    "../",  "a/../b", "../a/..",
                                       "./a", "a/.", "a//b", "..//a", "./..", "a\nb",   "../a\x7f" };
    static const char *const good[] = { ".", "..", "../..", "a", "../a", "...", "..a/b", "a../b" };
    char longest[5000];
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (fsdpck_path_is_relative(bad[i]))
            fail_msg("'%s' is taken", bad[i]);
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        if (!fsdpck_path_is_relative(good[i]))
            fail_msg("'%s' is refused", good[i]);
    memset(longest, 'a', sizeof longest);
    longest[4999] = '\0';
    assert_false(fsdpck_path_is_relative(longest));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ways_lead_there_and_back),
        cmocka_unit_test(random_ways_lead_back),
        cmocka_unit_test(a_way_above_the_root_stays_there),
        cmocka_unit_test(other_texts_are_no_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
