/* SPDX-License-Identifier: Apache-2.0 */
/* Suggests a checkpoint where the path names a folder that only holds checkpoints. */
#ifndef CKPT_NEARBY_H
#define CKPT_NEARBY_H

#include "engine/source_impl.h"

/* err says that src->path is no checkpoint: adds the newest step in it, or in its folder `checkpoints`, as a hint.
 * False: there is none, and err is as it was. */
bool fsdpck_hint_nearby(const struct fsdpck_source *src, struct fsdpck_error *err);

#endif
