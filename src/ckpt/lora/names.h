/* What a tensor is to a LoRA adapter, told from its name alone, in any of the forms that trainers leave behind. Pure text. */
#ifndef CKPT_LORA_NAMES_H
#define CKPT_LORA_NAMES_H

#include "base/arena.h"

enum fsdpck_lora_role {
    LORA_PLAIN,       /* no adapter's: a weight of the model, an optimizer's state … */
    LORA_BASE,        /* of the frozen layer inside an adapted one: base_layer, original_module */
    LORA_A, LORA_B,
    LORA_B_BIAS,
    LORA_EMBEDDING_A, LORA_EMBEDDING_B,
    LORA_MAGNITUDE,   /* DoRA */
    LORA_SAVED,       /* a full copy of a module's parameter: modules_to_save */
    LORA_UNKNOWN,     /* an adapter's, of a kind that is not understood */
};

struct fsdpck_lora_name {
    enum fsdpck_lora_role role;
    const char *module;  /* path in the model, wrappers and prefixes gone; "" for a parameter of the model itself */
    const char *adapter; /* "" where the name has none */
    const char *leaf;    /* PLAIN, BASE, SAVED: the parameter's name in the module ("weight") */
};

/* Strings come from the arena. FSDPCK_ERR_LIMIT for a name of more than 128 parts, else FSDPCK_ERR_NOMEM. */
int fsdpck_lora_name_parse(struct fsdpck_arena *a, const char *name, struct fsdpck_lora_name *out, struct fsdpck_error *err);

#endif
