/* SPDX-License-Identifier: Apache-2.0 */
/* The names that the files of a checkpoint or a model folder have. Each function looks at one entry of a directory, by
 * its name alone. */
#ifndef CKPT_RESULT_NAMES_H
#define CKPT_RESULT_NAMES_H

#include <stdbool.h>

/* A shard file: "__3_0.distcp"; in place "__3_0-UUID.distcp". */
bool fsdpck_is_shard_name(const char *name);
/* The assets folder of a save in place: "assets-UUID". */
bool fsdpck_is_save_assets_name(const char *name);
/* Any entry of a checkpoint directory. */
bool fsdpck_is_checkpoint_name(const char *name);
/* Weights in safetensors: they show that a folder holds a model or an adapter. */
bool fsdpck_is_weights_name(const char *name);
/* Weights, or a file that save_pretrained() and the Hub put beside them. Any other file in a model folder may be its
 * owner's work. */
bool fsdpck_is_model_name(const char *name);
/* Text for people (README.md, LICENSE …): it does not change the model. */
bool fsdpck_is_document_name(const char *name);
/* Any of these except documents, or Meta's folder "original". */
bool fsdpck_is_result_name(const char *name);

#endif
