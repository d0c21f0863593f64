/* SPDX-License-Identifier: Apache-2.0 */
/* Suggests a checkpoint if the path names a folder that only contains checkpoints. */
#ifndef CKPT_NEARBY_H
#define CKPT_NEARBY_H

#include "engine/source_impl.h"

/* err says that src->path is not a checkpoint: adds a hint with the newest step in it, or in its folder `checkpoints`.
 * False: there is none, and err is unchanged. */
bool fsdpck_hint_nearby(const struct fsdpck_source *src, struct fsdpck_error *err);

#endif
