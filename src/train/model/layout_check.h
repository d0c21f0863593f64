/* SPDX-License-Identifier: Apache-2.0 */
/* Refuses names and patterns of lora.* that match no module of a layout. */
#ifndef TRAIN_LAYOUT_CHECK_H
#define TRAIN_LAYOUT_CHECK_H

#include "model/layout.h"

/* Of lora.modules_to_save; of lora.target_modules. */
int layout_check_saved(const struct layout *l, const struct train_lora_config *lora, struct fsdpck_error *err);
int layout_check_names(const struct layout *l, const struct model *m, const struct train_lora_config *lora,
                       struct fsdpck_error *err);
/* Of lora.target_parameters. */
int layout_check_parameters(const struct layout *l, const struct model *m, const struct train_lora_config *lora,
                            struct fsdpck_error *err);
/* key: "rank_pattern" or "alpha_pattern"; patterns and used: (n), whether a module has its value from the pattern. */
int layout_check_patterns(const struct layout *l, const char *key, const struct train_pattern *patterns, size_t n,
                          const bool *used, struct fsdpck_error *err);

/* Returns the error that a weight which stays quantized cannot be trained. held: how (fsdpck_source_hold()). */
int layout_refuse_packed(const struct param *p, bool is_lora, const char *held, struct fsdpck_error *err);

#endif
