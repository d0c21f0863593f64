/* SPDX-License-Identifier: Apache-2.0 */
/* Paths below a test's directory, and a check of its contents. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "below.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "tree.h"

char *below(const char *root, const char *name)
{
    static char path[PATH_MAX];
    assert_true(snprintf(path, sizeof path, "%s/%s", root, name) < (int)sizeof path);
    return path;
}

void assert_tree(const char *root, const char *want)
{
    char *dump = tree_dump(root);
    assert_string_equal(dump, want);
    free(dump);
}
