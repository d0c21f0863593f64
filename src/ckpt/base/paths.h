/* SPDX-License-Identifier: Apache-2.0 */
/* Relative paths between absolute ones, as text. Accesses no file. */
#ifndef CKPT_PATHS_H
#define CKPT_PATHS_H

#include <fsdpck/error.h>

/* Returns the relative path from dir to `to` ("../../models/x"; "." if they are equal), malloc'ed. dir, to: absolute,
 * without links, "." and "..". NULL: out of memory. */
char *fsdpck_path_relative(const char *dir, const char *to, struct fsdpck_error *err);
/* The reverse: returns the target of `relative` from dir, malloc'ed. Leading ".." above "/" remain at "/". */
char *fsdpck_path_follow(const char *dir, const char *relative, struct fsdpck_error *err);
/* Returns whether fsdpck_path_relative() could have made it: any number of "..", then plain components; not absolute,
 * no control character, at most 4095 bytes. */
bool fsdpck_path_is_relative(const char *relative);

#endif
