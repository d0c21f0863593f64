/* SPDX-License-Identifier: Apache-2.0 */
/* Paths below a test's directory, and a check of its contents. For cmocka tests. */
#ifndef TESTS_BELOW_H
#define TESTS_BELOW_H

/* Returns "root/name", in memory that the next call overwrites. */
char *below(const char *root, const char *name);
/* Fails the test unless the tree at root is `want`, as tree_dump() gives it. */
void assert_tree(const char *root, const char *want);

#endif
