/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the trained model as a Hugging Face folder, if all of its weights were trained. */
#ifndef TRAIN_WHOLE_H
#define TRAIN_WHOLE_H

#include "rank/files.h"
#include "rank/rank.h"

/* output_dir/model. False: the config asks for none (checkpoint.export_model is off, or adapters are trained). */
bool whole_path(const struct train_config *config, char path[FILES_PATH]);
/* Before a run, whose end replaces that folder. FSDPCK_ERR_EXISTS where the run starts from it, or where output_dir
 * holds no checkpoint yet, so that it is somebody else's. */
int whole_check_place(const struct train_config *config, struct fsdpck_error *err);
/* Makes it from a committed checkpoint, in the dtype that the weights had before, replacing the one of an earlier end
 * atomically. One process does it. */
int whole_export(const struct job *job, const char *checkpoint, struct fsdpck_error *err);

#endif
