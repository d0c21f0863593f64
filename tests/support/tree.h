/* SPDX-License-Identifier: Apache-2.0 */
/* Small directory trees for tests: created from text, and turned into text to compare. All functions abort on a system
 * error. */
#ifndef TESTS_TREE_H
#define TESTS_TREE_H

#include <stdbool.h>
#include <stddef.h>

char *tree_new(void);                               /* a new empty directory, without links in its path; malloc'ed */
char *tree_new_on_disk(void);                       /* the same where direct I/O is possible, unless $TMPDIR is not */
void tree_remove(const char *path);                 /* anything; a missing path is fine */
char *tree_path(const char *dir, const char *name); /* "dir/name", malloc'ed */
void tree_file(const char *dir, const char *name, const char *text); /* creates or replaces, with parent directories */
void tree_dir(const char *dir, const char *name);
bool tree_exists(const char *dir, const char *name); /* true for a dangling link too */
char *tree_dump(const char *path); /* "a/\na/b=text of b\n", sorted; "" for a missing path; malloc'ed */

char *tree_names(const char *path);               /* the same without file contents: "a/\na/b\n" */
void tree_copy(const char *from, const char *to); /* files and directories; `to` is created, or filled */

#endif
