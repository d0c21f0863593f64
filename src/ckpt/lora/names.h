/* SPDX-License-Identifier: Apache-2.0 */
/* Finds a tensor's role in a LoRA adapter from its name alone, in all forms that trainers write. Pure text. */
#ifndef CKPT_LORA_NAMES_H
#define CKPT_LORA_NAMES_H

#include "base/arena.h"

enum fsdpck_lora_role {
    LORA_PLAIN,    /* a weight of the model, or any other tensor */
    LORA_STATE,    /* an optimizer's state for an adapter's parameter */
    LORA_ORIGINAL, /* the untrained copy beside a trained one: original_module, trainable_tokens_original */
    LORA_BASE,     /* of the layer inside an adapted one: base_layer */
    LORA_A,
    LORA_B,
    LORA_B_BIAS,
    LORA_EMBEDDING_A,
    LORA_EMBEDDING_B,
    LORA_MAGNITUDE, /* DoRA */
    LORA_TOKENS,    /* rows of an embedding that were trained alone: trainable_tokens_delta */
    LORA_SAVED,     /* a full copy of a module's parameter: modules_to_save */
    LORA_UNKNOWN,   /* an adapter's, of an unknown kind */
};

struct fsdpck_lora_name {
    enum fsdpck_lora_role role;
    const char *module;  /* path in the model, without wrappers and prefixes; "" for a parameter of the model itself */
    const char *adapter; /* "" if the name has none */
    const char *between; /* the parts between module and leaf in PEFT's files: "base_layer", "token_adapter.base_layer",
                            "token_adapter"; else "" */
    const char
        *leaf; /* up to BASE, SAVED: the parameter's name in the module ("weight"); TOKENS: "trainable_tokens_delta" */
};

/* The arena owns the strings. FSDPCK_ERR_LIMIT for a name of more than 128 parts, else FSDPCK_ERR_NOMEM. */
int fsdpck_lora_name_parse(struct fsdpck_arena *a, const char *name, struct fsdpck_lora_name *out,
                           struct fsdpck_error *err);

/* The first part of a path that is a number: "model.layers." 3 ".self_attn.q_proj". */
struct fsdpck_lora_layer {
    size_t before, after; /* bytes of the path before the number, and up to its end */
    long index;
};
bool fsdpck_lora_layer_find(const char *path, struct fsdpck_lora_layer *out);

#endif
