/* SPDX-License-Identifier: Apache-2.0 */
/* Embeddings that config.json ties to a head that the files do not list. */
#ifndef CKPT_TIES_H
#define CKPT_TIES_H

#include "engine/source_impl.h"

/* Adds the missing heads as aliases, if the config.json in `folder` ties them. An unreadable config.json is noted, not
 * an error. */
int fsdpck_ties_add(struct fsdpck_source *src, const char *folder, struct fsdpck_error *err);

#endif
