/* SPDX-License-Identifier: Apache-2.0 */
/* What a save's index names beside tensors and items: assets and the frozen base. */
#ifndef CKPT_SAVE_BESIDE_H
#define CKPT_SAVE_BESIDE_H

#include <fsdpck/save.h>

#include "base/arena.h"
#include "hf/assets.h"

/* Collects the request's assets for an output at `target`. The caller frees them, also after an error. */
int fsdpck_save_assets(const struct fsdpck_save_request *req, const struct fsdpck_options *opt, const char *target,
                       struct fsdpck_assets_out *assets, struct fsdpck_error *err);
/* Copies the base, with its real path, allocated in the arena: the relative path to it must not go through links. */
int fsdpck_save_base(const struct fsdpck_base *base, const struct fsdpck_io *io, struct fsdpck_arena *arena,
                     struct fsdpck_base *out, struct fsdpck_error *err);

#endif
