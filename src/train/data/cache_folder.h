/* SPDX-License-Identifier: Apache-2.0 */
/* The folder of all that a run computes from its data once. */
#ifndef TRAIN_CACHE_FOLDER_H
#define TRAIN_CACHE_FOLDER_H

#include <fsdpck/error.h>

enum { CACHE_FOLDER = 4096 };

/* output_dir/cache, which may not be there. */
int cache_folder_path(const char *output_dir, char folder[CACHE_FOLDER], struct fsdpck_error *err);
/* Creates it, with its parents. */
int cache_folder_make(const char *output_dir, char folder[CACHE_FOLDER], struct fsdpck_error *err);

#endif
