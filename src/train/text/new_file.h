/* SPDX-License-Identifier: Apache-2.0 */
/* Files that appear whole or not at all. */
#ifndef TRAIN_NEW_FILE_H
#define TRAIN_NEW_FILE_H

#include <fsdpck/error.h>
#include <stdio.h>

/* Writes the content; false: it failed, and errno may say why. */
typedef bool new_file_put_fn(FILE *f, const void *ctx);

/* Writes a file under a name of its own, flushes it to the disk, and gives it the name `path`, which it takes from
 * another file. */
int new_file_write(const char *path, new_file_put_fn *put, const void *ctx, struct fsdpck_error *err);
/* Removes what killed processes have left of files whose names begin so. Nobody may be writing such files there. */
void new_file_sweep(const char *folder, const char *begin);

#endif
