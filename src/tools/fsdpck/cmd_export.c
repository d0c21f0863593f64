/* SPDX-License-Identifier: Apache-2.0 */
/* `fsdpck export`: writes any source as Hugging Face safetensors. */
#include "commands.h"

#include <fsdpck/export.h>

#include "transfer.h"

struct export_args {
    uint64_t max_shard_nbytes;
    const char *assets;
    bool force;
    struct common_args common;
    struct source_args source;
    struct select_args select;
};

#define AT(field) .offset = offsetof(struct export_args, field)

static const struct option output_options[] = {
    { .name = "max-shard-size",
      .type = OPTION_SIZE,
      AT(max_shard_nbytes),
      .value = "SIZE",
      .help = "size limit of each file in a folder (default 5GB); tensors are never split" },
    { .name = "force",
      .type = OPTION_FLAG,
      AT(force),
      .help = "replace OUT where it exists, after the new one is complete" },
    { .name = "assets",
      .type = OPTION_STRING,
      AT(assets),
      .value = "FOLDER",
      .help = "take config.json, tokenizer and the like from FOLDER, not from the source" },
};

static int write_out(void *request, struct fsdpck_source *src, const struct fsdpck_select *select,
                     const struct fsdpck_options *opt, struct fsdpck_transfer_result *result, struct fsdpck_error *err)
{
    struct fsdpck_export_request *req = request;
    req->select = *select;
    return fsdpck_export(src, req, opt, result, err);
}

static int run(const struct export_args *args, const char *const *at)
{
    struct fsdpck_export_request req = {
        .out = at[1], .max_shard_nbytes = args->max_shard_nbytes, .assets = args->assets, .force = args->force
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

int cmd_export(const struct command *self, int argc, char **argv)
{
    struct export_args args = { 0 };
    const struct option_group groups[] = {
        { "Output", output_options, sizeof output_options / sizeof output_options[0], &args },
        SELECT_GROUP(&args.select),
        NAMES_GROUP(&args.source),
        READ_GROUP(&args.source),
        COMMON_GROUP(&args.common),
    };
    const struct command_line line = {
        .command = self,
        .positionals = "DIR OUT",
        .groups = groups,
        .ngroups = sizeof groups / sizeof groups[0],
        .notes = "OUT is a Hugging Face folder, or one file where its name ends in .safetensors. A folder with "
                 "several files has model.safetensors.index.json. Of a checkpoint with several trees (model, "
                 "optim …), the model tree is exported.",
        .examples = "fsdpck export step-000200/ exported/\n"
                    "fsdpck export step-000200/ model.safetensors --dtype bf16",
    };
    const char *at[MAX_POSITIONALS];
    int status = options_parse(&line, argc, argv, at);
    args.source.config = args.assets;
    if (status == OPTIONS_OK)
        status = run(&args, at);
    options_free(&line);
    return status;
}
