/* SPDX-License-Identifier: Apache-2.0 */
/* Recognises fsdpck checkpoints that lost their index.json. */
#ifndef CKPT_HEADLESS_H
#define CKPT_HEADLESS_H

#include "engine/source_impl.h"

/* Call before choosing a kind: returns whether `shard`, a name in the folder ("": none), is a shard file of fsdpck; err
 * then says that the checkpoint is incomplete. */
bool fsdpck_is_headless(const struct fsdpck_source *src, const char *shard, struct fsdpck_error *err);
/* Call after a folder was opened as PyTorch's: an fsdpck checkpoint without its index must not be read as one, because
 * that has no hashes. Refuses it unless the caller insists on the kind; then gives a note. */
int fsdpck_headless_check(struct fsdpck_source *src, bool insists, struct fsdpck_error *err);

#endif
