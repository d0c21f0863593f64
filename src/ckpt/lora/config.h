/* SPDX-License-Identifier: Apache-2.0 */
/* adapter_config.json: reads it with checks, answers questions about ranks and scalings, and writes it for every PEFT
 * since 0.5. Knows no tensors. */
#ifndef CKPT_LORA_CONFIG_H
#define CKPT_LORA_CONFIG_H

#include <fsdpck/error.h>

#include "base/arena.h"
#include "base/json_write.h"

enum fsdpck_lora_bias { LORA_BIAS_NONE, LORA_BIAS_LORA_ONLY, LORA_BIAS_ALL };

struct fsdpck_lora_config {
    struct json_t *doc; /* NULL: no configuration, only alpha is known */
    char *file;         /* for messages */
    double alpha;
    uint64_t r; /* 0: not known */
    bool rslora, dora, lora_bias, fan_in_fan_out, ensure_tying;
    bool only_tokens; /* peft_type TRAINABLE_TOKENS: no LoRA */
    enum fsdpck_lora_bias bias;
};

#define FSDPCK_LORA_CONFIG_NAME       "adapter_config.json"
#define FSDPCK_LORA_CONFIG_MAX_NBYTES (16u << 20)

/* Parses and checks text; refuses, by name, every feature that makes the tensors mean something other than plain LoRA.
 * file: copied. fsdpck_lora_config_free() releases c even after failure. */
int fsdpck_lora_config_parse(struct fsdpck_lora_config *c, const char *file, const char *text, size_t nbytes,
                             struct fsdpck_error *err);
void fsdpck_lora_config_free(struct fsdpck_lora_config *c);

/* Returns whether the key exists and is neither null, false nor empty. */
bool fsdpck_lora_config_has(const struct fsdpck_lora_config *c, const char *key);
/* Gets a module's value: from the first pattern that matches, else the default. FSDPCK_ERR_UNSUPPORTED if a pattern
 * that cannot be evaluated might match. */
int fsdpck_lora_config_rank(const struct fsdpck_lora_config *c, const char *module, uint64_t *r,
                            struct fsdpck_error *err);
int fsdpck_lora_config_alpha(const struct fsdpck_lora_config *c, const char *module, double *alpha,
                             struct fsdpck_error *err);
/* Returns whether target_modules includes the module; true if it cannot be checked. */
bool fsdpck_lora_config_targets(const struct fsdpck_lora_config *c, const char *module);
/* Returns whether target_parameters includes this parameter: "model.layers.0.mlp.experts.down_proj". */
bool fsdpck_lora_config_targets_parameter(const struct fsdpck_lora_config *c, const char *parameter);
/* Returns whether target_parameters includes the weight of this module: a parameter that is a matrix has an ordinary
 * pair, under the path of its module. */
bool fsdpck_lora_config_targets_weight(const struct fsdpck_lora_config *c, const char *module);
/* Returns the release of PEFT that wrote the configuration, or NULL. */
const char *fsdpck_lora_config_writer(const struct fsdpck_lora_config *c);
/* Returns the class of the model that it was trained on, which PEFT writes for models of other libraries than
 * transformers ("Flux2Transformer2DModel"), or NULL. */
const char *fsdpck_lora_config_model_class(const struct fsdpck_lora_config *c);
/* Returns whether target_modules exists and can be kept. */
bool fsdpck_lora_config_has_targets(const struct fsdpck_lora_config *c);
/* Returns the key, exclude_modules or layers_to_transform, that keeps PEFT from adapting the module, or NULL. */
const char *fsdpck_lora_config_leaves_out(const struct fsdpck_lora_config *c, const char *module);
/* Returns whether a name in modules_to_save saves the module: its path, or the path of a module that contains it, ends
 * with the name. As in PEFT, "norm" also saves "input_layernorm". */
bool fsdpck_lora_saves(const char *name, const char *module);
/* Returns the first name in modules_to_save that saves the module, or NULL. */
const char *fsdpck_lora_config_saves(const struct fsdpck_lora_config *c, const char *module);
/* Returns entry i of modules_to_save, or NULL after the last. */
const char *fsdpck_lora_config_saved_name(const struct fsdpck_lora_config *c, size_t i);
/* Gets the rows of the module's weight that were trained alone, in the order of the tensor with their values; *rows
 * NULL: the config names none. Refuses negative and duplicate rows. */
int fsdpck_lora_config_tokens(const struct fsdpck_lora_config *c, struct fsdpck_arena *arena, const char *module,
                              uint64_t **rows, size_t *nrows, struct fsdpck_error *err);
/* Returns whether the config names this module for trained tokens. A bare list refers to the input embedding, whatever
 * its name. */
bool fsdpck_lora_config_names_tokens(const struct fsdpck_lora_config *c, const char *module);
/* Returns expression i of rank_pattern or alpha_pattern, or NULL after the last. */
const char *fsdpck_lora_config_pattern(const struct fsdpck_lora_config *c, const char *key, size_t i);
/* Returns entry i of the unknown keys that have a value, or NULL after the last. */
const char *fsdpck_lora_config_unknown(const struct fsdpck_lora_config *c, size_t i);
/* Returns whether the config itself explains differences between layers: layers_to_transform, or an expression for
 * target_modules, or excluded modules. */
bool fsdpck_lora_config_picks_layers(const struct fsdpck_lora_config *c);
/* Refuses ways of training or using an adapter that a merge into the weights cannot keep. */
int fsdpck_lora_config_mergeable(const struct fsdpck_lora_config *c, struct fsdpck_error *err);

/* Facts derived from the tensors, which the configuration file states. Lists are JSON arrays or objects as text. */
struct fsdpck_lora_facts {
    uint64_t r;
    double alpha;
    const char *rank_pattern, *alpha_pattern; /* objects */
    const char *target_modules;               /* array; NULL: the config's own */
    const char *modules_to_save;              /* array, or "null" */
    bool dora;
    bool one_by_one; /* the form of experts changes: target_modules and target_parameters are written anew */
    const char *target_parameters; /* array; NULL: none */
};
/* Writes a scaling as the patterns above contain it; finite. */
void fsdpck_lora_config_number(struct fsdpck_text *t, double v);
/* Writes sorted keys, indented by two; a configuration of TRAINABLE_TOKENS unchanged. For LoRA it writes the keys of
 * PEFT 0.5, and later keys only if they have an effect, so that an old PEFT stops at a feature that it lacks and never
 * ignores it. prefix: put before each key (diffusers), or "". */
int fsdpck_lora_config_write(const struct fsdpck_lora_config *c, const struct fsdpck_lora_facts *facts,
                             const char *prefix, struct fsdpck_text *out, struct fsdpck_error *err);

#endif
