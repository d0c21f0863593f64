/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of PEFT: which modules get an adapter, with which r and alpha, and which are trained in full. */
#ifndef TRAIN_TARGET_H
#define TRAIN_TARGET_H

#include <train/config.h>

struct target {
    bool chosen;
    int64_t r;
    double scale;
    size_t rank_pattern, alpha_pattern; /* that gave r and alpha; TARGET_NO_PATTERN: lora.r, lora.lora_alpha */
};
#define TARGET_NO_PATTERN SIZE_MAX

/* path: "model.layers.0.self_attn.q_proj". is_head: the output layer, which "all-linear" leaves out; is_linear: false
 * for the embedding. */
int target_find(const struct train_lora_config *lora, const char *path, bool is_linear, bool is_head,
                struct target *out, struct fsdpck_error *err);

/* Whether modules_to_save has the module at path, or one that it is part of: a name means every module whose path ends
 * with it, so that "norm" is input_layernorm too. */
bool target_is_saved(const struct train_lora_config *lora, const char *path);
/* The same of one name. */
bool target_saves(const char *name, const char *path);

/* Whether a name of target_modules means the module at path: the whole path, or its end after a dot. */
bool target_is_named(const char *path, const char *name);

#endif
