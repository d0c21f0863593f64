/* SPDX-License-Identifier: Apache-2.0 */
/* --adapter, --adapter-config, --alpha, --expert-order: choose an adapter, its scale and its layout. */
#ifndef TOOLS_LORA_ARG_H
#define TOOLS_LORA_ARG_H

#include <fsdpck/lora.h>

#include "common/options.h"

struct lora_args {
    const char *adapter, *config, *order;
    double alpha; /* preset to LORA_NO_ALPHA */
};

#define LORA_NO_ALPHA (-1.0)
#define LORA_NOPTIONS 4
extern const struct option lora_options[LORA_NOPTIONS];
#define LORA_GROUP(args) \
    { \
        "Which adapter", lora_options, LORA_NOPTIONS, (args) \
    }

struct fsdpck_lora_choice lora_arg_choice(const struct lora_args *args);

#endif
