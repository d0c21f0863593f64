/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the adapter as a folder that PEFT loads. */
#ifndef TRAIN_ADAPTER_H
#define TRAIN_ADAPTER_H

#include "rank/rank.h"

/* Writes the folder OUT from the committed checkpoint of a step. Replaces an older folder atomically, but preserves a
 * README.md that the user wrote. A job without data has no card. One process calls it. */
int adapter_export(const struct job *job, uint64_t step, const char *checkpoint, const char *out,
                   struct fsdpck_error *err);
/* adapter_config.json as PEFT writes it. Owned; NULL: out of memory. */
char *adapter_config(const struct job *job);
enum { ADAPTER_PATH = 4096 };
/* True if an adapter is one file (fsdpck_lora_open_file()), not a folder. */
bool adapter_is_file(const char *path);
/* Reads adapter_config.json from a PEFT folder or from a checkpoint's assets, or makes that of one file. Unsupported
 * keys that change the maths are errors. path: the file that was read. *out is owned. */
int adapter_config_read(const char *folder, char path[ADAPTER_PATH], struct json_t **out, struct fsdpck_error *err);
/* Sets key "lora" of a config from a folder's adapter_config.json, with PEFT's defaults for missing keys, and with
 * init_adapter. */
int adapter_put_lora(const char *folder, struct json_t *root, struct fsdpck_error *err);
/* Checks that adapter_config.json of lora.init_adapter agrees with the config. */
int adapter_check_start(const struct train_config *config, struct fsdpck_error *err);

#endif
