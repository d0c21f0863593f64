/* SPDX-License-Identifier: Apache-2.0 */
/* `fsdp_config` and `parallelism_config`, which accelerate's files and a Trainer's arguments share. */
#ifndef TRAIN_IMPORT_FSDP_H
#define TRAIN_IMPORT_FSDP_H

#include "import/import.h"

/* Translates the keys of fsdp_config, whose names may begin with "fsdp_". version: of FSDP where the file names none.
 */
void import_fsdp(struct importer *im, const char *path, const json_t *object, double version);
import_take import_fsdp1_config, import_fsdp2_config, import_parallelism_config;
/* Parameters, gradients and optimizer state in host memory; import_offload: if the value is not false or empty. */
void import_put_offload(struct importer *im, const char *key, const json_t *value);
import_take import_offload;
/* Sets the dtypes of mixed precision: "no", "bf16", … */
void import_mixed_precision(struct importer *im, const char *key, const json_t *value, const char *word);

#endif
