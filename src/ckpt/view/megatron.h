/* SPDX-License-Identifier: Apache-2.0 */
/* Megatron-core's names and layouts of a GPT model, as its torch_dist checkpoints hold them: layers and experts are
 * leading axes or parts of the name, q, k and v of a group are neighbours in one matrix, gate and up are one. */
#ifndef CKPT_MEGATRON_H
#define CKPT_MEGATRON_H

#include "engine/source_impl.h"

/* Whether the source has Megatron's names. */
bool fsdpck_megatron_is(const struct fsdpck_source *src);
/* Presents the weights as Hugging Face publishes them; the trainer's state is left out. folder: of config.json, NULL:
 * the source's own. A tensor without a place, sizes that contradict config.json, and families that are not known are
 * refused. */
int fsdpck_megatron_set_names(struct fsdpck_source *src, const char *folder, struct fsdpck_error *err);

/* Presents published weights as Megatron-core's torch_dist checkpoints hold them, with the items that it asks for
 * beside them. Refuses a weight that is missing or has no place. */
int fsdpck_megatron_give_names(struct fsdpck_source *src, const char *folder, struct fsdpck_error *err);

#endif
