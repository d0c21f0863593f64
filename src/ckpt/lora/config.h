/* SPDX-License-Identifier: Apache-2.0 */
/* adapter_config.json: read with suspicion, asked for ranks and scalings, written so that every PEFT since 0.5 takes
 * it. Knows no tensors. */
#ifndef CKPT_LORA_CONFIG_H
#define CKPT_LORA_CONFIG_H

#include <fsdpck/error.h>

#include "base/arena.h"
#include "base/json_write.h"

enum fsdpck_lora_bias { LORA_BIAS_NONE, LORA_BIAS_LORA_ONLY, LORA_BIAS_ALL };

struct fsdpck_lora_config {
    struct json_t *doc; /* NULL: there is none, and alpha is all that is known */
    char *file;         /* for messages */
    double alpha;
    uint64_t r; /* 0: not known */
    bool rslora, dora, lora_bias, fan_in_fan_out, ensure_tying;
    bool only_tokens; /* peft_type TRAINABLE_TOKENS: no LoRA at all */
    enum fsdpck_lora_bias bias;
};

#define FSDPCK_LORA_CONFIG_NAME       "adapter_config.json"
#define FSDPCK_LORA_CONFIG_MAX_NBYTES (16u << 20)

/* Parses and checks text; what would make the tensors mean something else than plain LoRA is refused by name. file:
 * copied. Whatever the outcome, fsdpck_lora_config_free() releases c. */
int fsdpck_lora_config_parse(struct fsdpck_lora_config *c, const char *file, const char *text, size_t nbytes,
                             struct fsdpck_error *err);
void fsdpck_lora_config_free(struct fsdpck_lora_config *c);

/* The key is there, and neither null, false nor empty. */
bool fsdpck_lora_config_says(const struct fsdpck_lora_config *c, const char *key);
/* Returns a module's value: from the first pattern that matches, else the default. FSDPCK_ERR_UNSUPPORTED if a pattern
 * that cannot be evaluated might match. */
int fsdpck_lora_config_rank(const struct fsdpck_lora_config *c, const char *module, uint64_t *r,
                            struct fsdpck_error *err);
int fsdpck_lora_config_alpha(const struct fsdpck_lora_config *c, const char *module, double *alpha,
                             struct fsdpck_error *err);
/* Whether target_modules reaches the module; true where it says nothing that can be checked. */
bool fsdpck_lora_config_targets(const struct fsdpck_lora_config *c, const char *module);
/* target_modules is there and can be kept. */
bool fsdpck_lora_config_has_targets(const struct fsdpck_lora_config *c);
/* The key, exclude_modules or layers_to_transform, that keeps PEFT from adapting the module, or NULL. */
const char *fsdpck_lora_config_leaves_out(const struct fsdpck_lora_config *c, const char *module);
/* Whether a name in modules_to_save saves the module: its path, or that of one that it lies in, ends with the name. As
 * in PEFT "norm" saves "input_layernorm" too. */
bool fsdpck_lora_saves(const char *name, const char *module);
/* The first name in modules_to_save that does, or NULL. */
const char *fsdpck_lora_config_saves(const struct fsdpck_lora_config *c, const char *module);
/* Entry i of modules_to_save, or NULL behind the last. */
const char *fsdpck_lora_config_saved_name(const struct fsdpck_lora_config *c, size_t i);
/* The rows of the module's weight that were trained alone, in the order of the tensor that holds them; *rows NULL: the
 * config names none. Refused: negative ones, and one twice. */
int fsdpck_lora_config_tokens(const struct fsdpck_lora_config *c, struct fsdpck_arena *arena, const char *module,
                              uint64_t **rows, size_t *nrows, struct fsdpck_error *err);
/* Whether the config names the module itself for that; a mere list is the input embedding's, whatever that is called.
 */
bool fsdpck_lora_config_names_tokens(const struct fsdpck_lora_config *c, const char *module);
/* Expression i of rank_pattern or alpha_pattern, or NULL behind the last. */
const char *fsdpck_lora_config_pattern(const struct fsdpck_lora_config *c, const char *key, size_t i);
/* Entry i of the keys that say something and are not known here, or NULL behind the last. */
const char *fsdpck_lora_config_unknown(const struct fsdpck_lora_config *c, size_t i);
/* Whether the config itself explains that layers differ: layers_to_transform, or an expression for target_modules, or
 * excluded modules. */
bool fsdpck_lora_config_picks_layers(const struct fsdpck_lora_config *c);
/* Ways of training or of using an adapter that a merge into the weights cannot keep. */
int fsdpck_lora_config_mergeable(const struct fsdpck_lora_config *c, struct fsdpck_error *err);

/* Facts derived from the tensors, for the configuration file to write. Lists are JSON arrays or objects as text. */
struct fsdpck_lora_facts {
    uint64_t r;
    double alpha;
    const char *rank_pattern, *alpha_pattern; /* objects */
    const char *target_modules;               /* array; NULL: the config's own */
    const char *modules_to_save;              /* array, or "null" */
    bool dora;
};
/* A scaling as the patterns above have it; finite. */
void fsdpck_lora_config_number(struct fsdpck_text *t, double v);
/* Sorted keys, indented by two; a configuration of TRAINABLE_TOKENS as it was read. Of LoRA the keys that PEFT 0.5
 * knows, and of the later ones those that say something, so that an old PEFT stops at a feature that it lacks and never
 * ignores it. prefix: put before each key (diffusers), or "". */
int fsdpck_lora_config_write(const struct fsdpck_lora_config *c, const struct fsdpck_lora_facts *facts,
                             const char *prefix, struct fsdpck_text *out, struct fsdpck_error *err);

#endif
