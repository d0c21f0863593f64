/* SPDX-License-Identifier: Apache-2.0 */
/* Resolves a SOURCE that may be `org/name` of a model in the local Hugging Face cache. */
#ifndef TOOLS_MODEL_PATH_H
#define TOOLS_MODEL_PATH_H

#include <fsdpck/error.h>

/* Writes the path to open for a typed SOURCE: the text itself if that path exists, or if it is neither `org/name` nor
 * `org/name@revision`; else the model's snapshot folder in the cache (HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME). Fails if
 * the cache lacks the model, or if the snapshot is missing or ambiguous. */
int model_path_resolve(const char *typed, char *path, size_t nbytes, struct fsdpck_error *err);

#endif
