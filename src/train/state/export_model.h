/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the trained model as a Hugging Face folder, if all of its weights were trained. */
#ifndef TRAIN_EXPORT_MODEL_H
#define TRAIN_EXPORT_MODEL_H

#include "rank/files.h"
#include "rank/rank.h"

/* The path output_dir/model. Returns false if the config does not export a model (checkpoint.export_model is off, or
 * adapters are trained). */
bool export_model_path(const struct train_config *config, char path[FILES_PATH]);
/* Called before a run, which replaces that folder at its end. FSDPCK_ERR_EXISTS: the run starts from that folder, or
 * output_dir holds no checkpoint yet, so the folder is not from this run. */
int export_model_check_place(const struct train_config *config, struct fsdpck_error *err);
/* Exports a committed checkpoint in the original dtype of the weights. Replaces the folder of an earlier run
 * atomically. One process calls it. */
int export_model_write(const struct job *job, const char *checkpoint, struct fsdpck_error *err);

#endif
