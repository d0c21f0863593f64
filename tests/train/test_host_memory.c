/* SPDX-License-Identifier: Apache-2.0 */
/* What control groups leave of the memory, from files like those of the kernel. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "rank/host_memory.h"
#include "tree.h"

static char *root;

static const char *at(const char *name)
{
    static char path[2048];
    snprintf(path, sizeof path, "%s/%s", root, name);
    return path;
}

static void put(const char *name, const char *text)
{
    FILE *f = fopen(at(name), "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void group(const char *name, const char *limit, const char *usage, const char *stat)
{
    char path[256];
    mkdir(at(name), 0700);
    snprintf(path, sizeof path, "%s/memory.max", name);
    put(path, limit);
    snprintf(path, sizeof path, "%s/memory.current", name);
    put(path, usage);
    snprintf(path, sizeof path, "%s/memory.stat", name);
    put(path, stat);
}

static uint64_t room(const char *list)
{
    char path[2048];
    put("list", list);
    snprintf(path, sizeof path, "%s", at("list"));
    return host_memory_of_groups(path, root);
}

static void test_second_version(void **state)
{
    (void)state;
    group("a", "9000\n", "5000\n", "anon 4000\ninactive_file 1000\n");
    group("a/b", "max\n", "3000\n", "inactive_file 0\n");
    group("a/c", "2000\n", "2500\n", "inactive_file 0\n");
    assert_int_equal(room("0::/a\n"), 5000);
    assert_int_equal(room("0::/a/b\n"), 5000); /* the limit of the group above */
    assert_int_equal(room("0::/a/c\n"), 0);
    assert_true(room("0::/\n") == UINT64_MAX);
    assert_true(room("0::/elsewhere\n") == UINT64_MAX);
    group("", "7000\n", "100\n", ""); /* a container sees its own group as the root */
    assert_int_equal(room("0::/outside/of/it\n"), 6900);
    assert_int_equal(room("0::/a\n"), 5000);
}

static void test_first_version(void **state)
{
    (void)state;
    mkdir(at("memory"), 0700);
    mkdir(at("memory/job"), 0700);
    put("memory/job/memory.limit_in_bytes", "4000\n");
    put("memory/job/memory.usage_in_bytes", "1500\n");
    put("memory/job/memory.stat", "inactive_file 1\ntotal_inactive_file 500\n");
    assert_int_equal(room("12:cpu,cpuacct:/job\n9:memory:/job\n"), 3000);
    assert_true(room("12:cpu:/job\nnonsense\n") == UINT64_MAX);
}

static int open_root(void **state)
{
    (void)state;
    root = tree_new();
    return 0;
}

static int remove_root(void **state)
{
    (void)state;
    tree_remove(root);
    free(root);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test_setup_teardown(test_second_version, open_root, remove_root),
                                        cmocka_unit_test_setup_teardown(test_first_version, open_root, remove_root) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
