/* SPDX-License-Identifier: Apache-2.0 */
/* Recognises fsdpck checkpoints that lost their index.json. */
#ifndef CKPT_HEADLESS_H
#define CKPT_HEADLESS_H

#include "engine/source_impl.h"

/* Before a kind is chosen: whether `shard`, a name in the folder ("": none), is a shard file of ours; then err says
 * that the checkpoint is incomplete. */
bool fsdpck_is_headless(const struct fsdpck_source *src, const char *shard, struct fsdpck_error *err);
/* After a folder was opened as PyTorch's: a checkpoint of ours that lost its index must not be taken for one, which has
 * no hashes. Refused unless the caller insists on the kind; then noted. */
int fsdpck_headless_check(struct fsdpck_source *src, bool insists, struct fsdpck_error *err);

#endif
