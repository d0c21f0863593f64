/* SPDX-License-Identifier: Apache-2.0 */
/* `fsdpck export-lora`: extracts a LoRA adapter from any checkpoint, into a folder for PEFT or a file for other
 * programs. */
#include <string.h>

#include "commands.h"
#include "lora_arg.h"
#include "output_arg.h"
#include "transfer.h"

struct export_lora_args {
    const char *style, *base;
    struct output_args output;
    struct common_args common;
    struct source_args source;
    struct lora_args lora;
    struct select_args select;
};

#define AT(field) .offset = offsetof(struct export_lora_args, field)

static const struct option output_options[] = {
    { .name = "style",
      .type = OPTION_CHOICE,
      AT(style),
      .value = "peft|diffusers|kohya|comfy|vllm|peft-fused|sglang",
      .help = "write names and files for this reader",
      .usual = "peft" },
    { .name = "base",
      .type = OPTION_STRING,
      AT(base),
      .value = "FOLDER",
      .help = "folder of the model that fused experts are of: its config.json says how vLLM names them",
      .needs = "style" },
    OUTPUT_FORCE(struct export_lora_args),
};

static enum fsdpck_lora_style style_of(const char *word)
{
    static const char *const words[] = { "peft", "diffusers", "kohya", "comfy", "vllm", "peft-fused", "sglang" };
    int i = 0;
    while (strcmp(word, words[i]) != 0)
        i++;
    return (enum fsdpck_lora_style)i;
}

static int write_out(void *request, struct fsdpck_source *src, const struct fsdpck_select *select,
                     const struct fsdpck_options *opt, struct fsdpck_transfer_result *result, struct fsdpck_error *err)
{
    struct fsdpck_export_lora_request *req = request;
    req->select = *select;
    return fsdpck_export_lora(src, req, opt, result, err);
}

static int run(void *ctx, const char *const *at)
{
    const struct export_lora_args *args = ctx;
    struct fsdpck_export_lora_request req = { .out = at[1],
                                              .style = style_of(args->style),
                                              .base = args->base,
                                              .choice = lora_arg_choice(&args->lora),
                                              .force = args->output.force };
    const struct transfer t = { .in = at[0],
                                .out = at[1],
                                .common = &args->common,
                                .source = &args->source,
                                .select = &args->select,
                                .write = write_out,
                                .request = &req };
    return transfer_run(&t);
}

int cmd_export_lora(const struct command *self, int argc, char **argv)
{
    struct export_lora_args args = { .lora.alpha = LORA_NO_ALPHA };
    const struct option_group groups[] = {
        { "Output", output_options, sizeof output_options / sizeof output_options[0], &args },
        LORA_GROUP(&args.lora),
        SELECT_GROUP(&args.select),
        READ_GROUP(&args.source),
        COMMON_GROUP(&args.common),
    };
    const struct command_line line = {
        .command = self,
        .positionals = "DIR OUT",
        .groups = groups,
        .ngroups = sizeof groups / sizeof groups[0],
        .notes = "With --style peft, peft-fused, sglang and vllm, OUT is a folder with adapter_model.safetensors and "
                 "adapter_config.json. With "
                 "diffusers, it is a folder with pytorch_lora_weights.safetensors, or one file. With kohya and "
                 "comfy, it is one file whose name ends in .safetensors.\n"
                 "Names may have the prefixes of FSDP, torch.compile, DDP and PEFT. --rename applies before these "
                 "are removed. Only the adapter's bytes are read.",
        .examples = "fsdpck export-lora lora-run/ adapter/\n"
                    "fsdpck export-lora lora-run/ adapter-bf16/ --dtype bf16",
    };
    return options_run(&line, argc, argv, run, &args);
}
