/* SPDX-License-Identifier: Apache-2.0 */
/* The options that name an adapter, for export-lora and merge-lora. */
#include "lora_arg.h"

#include <string.h>

#define AT(field) .offset = offsetof(struct lora_args, field)

const struct option lora_options[LORA_NOPTIONS] = {
    { .name = "adapter",
      .type = OPTION_STRING,
      AT(adapter),
      .value = "NAME",
      .help = "name of the adapter, where a checkpoint has several" },
    { .name = "adapter-config",
      .type = OPTION_STRING,
      AT(config),
      .value = "FILE",
      .help = "adapter_config.json to use instead of the source's" },
    { .name = "alpha",
      .type = OPTION_NUMBER,
      AT(alpha),
      .value = "A",
      .help = "lora_alpha, where no adapter_config.json has it; the scale is A / rank" },
    { .name = "expert-order",
      .type = OPTION_CHOICE,
      AT(order),
      .value = "fastest|slowest",
      .help =
          "how the expert's number runs in lora_B of fused experts: PEFT writes it fastest, Unsloth until September "
          "2026 slowest" },
};

static enum fsdpck_lora_expert_order order_of(const char *word)
{
    return !word                          ? FSDPCK_LORA_EXPERTS_UNSTATED
           : strcmp(word, "slowest") == 0 ? FSDPCK_LORA_EXPERTS_SLOWEST
                                          : FSDPCK_LORA_EXPERTS_FASTEST;
}

struct fsdpck_lora_choice lora_arg_choice(const struct lora_args *args)
{
    return (struct fsdpck_lora_choice){ .adapter = args->adapter,
                                        .config = args->config,
                                        .has_alpha = args->alpha >= 0,
                                        .alpha = args->alpha,
                                        .order = order_of(args->order) };
}
