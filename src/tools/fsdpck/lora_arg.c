/* The options that name an adapter, for export-lora and merge-lora. */
#include "lora_arg.h"

#define AT(field) .offset = offsetof(struct lora_args, field)

const struct option lora_options[LORA_NOPTIONS] = {
    { .name = "adapter", .type = OPTION_STRING, AT(adapter), .value = "NAME", .help = "one of several adapters in a checkpoint" },
    { .name = "adapter-config", .type = OPTION_STRING, AT(config), .value = "FILE", .help = "its adapter_config.json, instead of the source's own" },
    { .name = "alpha", .type = OPTION_NUMBER, AT(alpha), .value = "A", .help = "lora_alpha, where there is no adapter_config.json to say it: scaling is A / rank" },
};

struct fsdpck_lora_choice lora_arg_choice(const struct lora_args *args)
{
    return (struct fsdpck_lora_choice){ .adapter = args->adapter, .config = args->config, .has_alpha = args->alpha >= 0, .alpha = args->alpha };
}
