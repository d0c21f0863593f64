/* SPDX-License-Identifier: Apache-2.0 */
/* The index of a Hugging Face folder with several files of weights (*.index.json): the file of each tensor. */
#ifndef CKPT_WEIGHT_MAP_H
#define CKPT_WEIGHT_MAP_H

#include <fsdpck/io.h>

#include "base/json_read.h"

/* Called for one entry; the strings live until it returns. `file` is a plain path. To refuse, call fsdpck_json_fail(j)
 * and return 0, or return a code with err filled. */
typedef int (*fsdpck_weight_fn)(void *ctx, struct fsdpck_json *j, const char *name, const char *file,
                                struct fsdpck_error *err);
/* Reads the index at path. err is not NULL. */
int fsdpck_weight_map_read(const struct fsdpck_io *io, const char *path, fsdpck_weight_fn add, void *ctx,
                           struct fsdpck_error *err);

#endif
