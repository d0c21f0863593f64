/* PEFT's rules for which modules get an adapter, and with which r and alpha. */
#ifndef TRAIN_TARGET_H
#define TRAIN_TARGET_H

#include <train/config.h>

struct target {
    bool chosen;
    int64_t r;
    double scale;
};

/* path: "model.layers.0.self_attn.q_proj". is_head: the output layer, which "all-linear" leaves out; is_linear: false for the embedding. */
int target_find(const struct train_lora_config *lora, const char *path, bool is_linear, bool is_head, struct target *out, struct fsdpck_error *err);

/* Whether a name of a list means the module at path: the whole path, or its end after a dot. */
bool target_is_named(const char *path, const char *name);

#endif
