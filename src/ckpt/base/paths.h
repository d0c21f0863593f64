/* SPDX-License-Identifier: Apache-2.0 */
/* Relative paths between absolute ones, as text. Accesses no file. */
#ifndef CKPT_PATHS_H
#define CKPT_PATHS_H

#include <fsdpck/error.h>

/* dir, to: absolute, without links, "." and "..". The way from dir to `to` ("../../models/x"; "." where they are the
 * same), malloc'ed. NULL: no memory. */
char *fsdpck_path_relative(const char *dir, const char *to, struct fsdpck_error *err);
/* And back: where `way` leads from dir, malloc'ed. Leading ".." of way above "/" stay at "/". */
char *fsdpck_path_follow(const char *dir, const char *relative, struct fsdpck_error *err);
/* Whether fsdpck_path_relative() could have made it: any number of "..", then plain parts; not absolute, no control
 * character, at most 4095 bytes. */
bool fsdpck_path_is_relative(const char *relative);

#endif
