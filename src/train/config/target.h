/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of PEFT: which modules get an adapter, with which r and alpha, and which are trained in full. */
#ifndef TRAIN_TARGET_H
#define TRAIN_TARGET_H

#include <train/config.h>

struct target {
    bool chosen;
    int64_t r;
    double scale;
    size_t rank_pattern,
        alpha_pattern; /* indices of the patterns that set r and alpha; TARGET_NO_PATTERN: lora.r, lora.lora_alpha */
};
#define TARGET_NO_PATTERN SIZE_MAX

/* path: "model.layers.0.self_attn.q_proj". is_head: the output layer, which "all-linear" excludes; is_linear: false for
 * the embedding. */
int target_find(const struct train_lora_config *lora, const char *path, bool is_linear, bool is_head,
                struct target *out, struct fsdpck_error *err);

/* The same by target_parameters. name: "model.layers.0.mlp.experts.gate_up_proj", as transformers has it. */
int target_find_parameter(const struct train_lora_config *lora, const char *name, struct target *out,
                          struct fsdpck_error *err);

/* True if modules_to_save names the module at path, or one that contains it. A name matches every module whose path
 * ends with it: "norm" matches input_layernorm too. */
bool target_is_saved(const struct train_lora_config *lora, const char *path);
/* As target_is_saved(), for one name. */
bool target_saves(const char *name, const char *path);

/* A regular expression that matches whole paths; or, if it is NULL, names that match the ends of paths. */
struct target_modules {
    const char *key; /* of the config, for messages */
    const char *regex;
    const char *const *names; /* (nnames) */
    size_t nnames;
};
/* Returns 1 if the modules are those of path, 0 if not. */
int target_matches(const struct target_modules *modules, const char *path, struct fsdpck_error *err);

/* True if a name of target_modules matches path: the whole path, or its end after a dot. */
bool target_is_named(const char *path, const char *name);

#endif
