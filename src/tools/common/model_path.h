/* SPDX-License-Identifier: Apache-2.0 */
/* SOURCE may be `org/name` of a model in the local Hugging Face cache. */
#ifndef TOOLS_MODEL_PATH_H
#define TOOLS_MODEL_PATH_H

#include <fsdpck/error.h>

/* Writes the path to open for what the user typed: the text itself where something stands there, else the snapshot
 * folder of `org/name` or `org/name@revision` in the cache (HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME), else the text
 * itself: opening it says what is missing. Fails where the cache knows the model but not which snapshot is meant. */
int model_path_resolve(const char *typed, char *path, size_t nbytes, struct fsdpck_error *err);

#endif
