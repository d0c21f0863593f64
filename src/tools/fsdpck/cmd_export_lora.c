/* SPDX-License-Identifier: Apache-2.0 */
/* `fsdpck export-lora`: extracts a LoRA adapter from any checkpoint, into a folder for PEFT or a file for other
 * programs. */
#include <string.h>

#include "commands.h"
#include "lora_arg.h"
#include "transfer.h"

struct export_lora_args {
    const char *style;
    bool force;
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
      .value = "peft|diffusers|kohya|comfy",
      .help = "write names and files for this reader (default peft)" },
    { .name = "force",
      .type = OPTION_FLAG,
      AT(force),
      .help = "replace OUT where it exists, after the new one is complete" },
};

static enum fsdpck_lora_style style_of(const char *word)
{
    static const char *const words[] = { "peft", "diffusers", "kohya", "comfy" };
    int i = 0;
    while (word && strcmp(word, words[i]) != 0)
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

static int run(const struct export_lora_args *args, const char *const *at)
{
    struct fsdpck_export_lora_request req = {
        .out = at[1], .style = style_of(args->style), .choice = lora_arg_choice(&args->lora), .force = args->force
    };
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
        .notes = "With --style peft, OUT is a folder with adapter_model.safetensors and adapter_config.json. With "
                 "diffusers, it is a folder with pytorch_lora_weights.safetensors, or one file. With kohya and "
                 "comfy, it is one file whose name ends in .safetensors.\n"
                 "Names may have the prefixes of FSDP, torch.compile, DDP and PEFT. --rename applies before these "
                 "are removed. Only the adapter's bytes are read.",
        .examples = "fsdpck export-lora lora-run/ adapter/\n"
                    "fsdpck export-lora lora-run/ adapter-bf16/ --dtype bf16",
    };
    const char *at[MAX_POSITIONALS];
    int status = options_parse(&line, argc, argv, at);
    if (status == OPTIONS_OK)
        status = run(&args, at);
    options_free(&line);
    return status;
}
