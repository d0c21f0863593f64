/* SPDX-License-Identifier: Apache-2.0 */
/* Embeddings that config.json ties to a head which the files do not list. */
#ifndef CKPT_TIES_H
#define CKPT_TIES_H

#include "engine/source_impl.h"

/* Lists the missing heads as aliases, where `folder` has a config.json that says so. One that cannot be read is noted,
 * no error. */
int fsdpck_ties_add(struct fsdpck_source *src, const char *folder, struct fsdpck_error *err);

#endif
