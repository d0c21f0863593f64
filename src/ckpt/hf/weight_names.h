/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers of the views behind --names: they tell weights from other tensors, find config.json and give notes. */
#ifndef CKPT_WEIGHT_NAMES_H
#define CKPT_WEIGHT_NAMES_H

#include "engine/source_impl.h"

/* Returns the weight's name, without a tree "model" around all of them. */
const char *fsdpck_weight_name(const struct fsdpck_tensor *t);
/* Returns what follows "model.layers.N." in a weight's name, or NULL. */
const char *fsdpck_weight_in_layer(const char *name, uint64_t *layer);
/* Returns whether the tensor is one that trainers save beside the weights. */
bool fsdpck_weight_is_state(const struct fsdpck_tensor *t);
/* Returns the path of the config.json in a folder (NULL: among the source's assets); malloc'ed, NULL if there is none.
 */
char *fsdpck_weight_config(const struct fsdpck_source *src, const char *folder);
/* Give notes: what a view leaves out; that `names` (NULL: no note) are those that the source has. */
void fsdpck_weight_note_left_out(const struct fsdpck_source *src, size_t nleft, size_t nitems);
void fsdpck_weight_note_unchanged(const struct fsdpck_source *src, const char *names);

/* Presents a Llama's weights as fsdpck_source_set_names() does; names: "hf", "transformers" (the same) or
 * "torchtitan". */
int fsdpck_llama_set_names(struct fsdpck_source *src, const char *names, const char *folder, struct fsdpck_error *err);

#endif
