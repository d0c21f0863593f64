/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the adapter as a folder that PEFT loads. */
#ifndef TRAIN_ADAPTER_H
#define TRAIN_ADAPTER_H

#include "rank/rank.h"

/* Makes OUT (replacing an older one, atomically; a README.md that is not ours stays) from the committed checkpoint of a
 * step. One process does it. */
int adapter_export(const struct job *job, uint64_t step, const char *checkpoint, const char *out,
                   struct fsdpck_error *err);
/* adapter_config.json as PEFT writes it. Owned; NULL: no memory. */
char *adapter_config(const struct train_config *config);
enum { ADAPTER_PATH = 4096 };
/* adapter_config.json of a PEFT folder, or of a checkpoint's assets; keys that change the maths and are not done here
 * are refused. path: what was read. Owned. */
int adapter_config_read(const char *folder, char path[ADAPTER_PATH], struct json_t **out, struct fsdpck_error *err);
/* adapter_config.json of lora.init_adapter says the same as the config. */
int adapter_check_start(const struct train_config *config, struct fsdpck_error *err);

#endif
