/* SPDX-License-Identifier: Apache-2.0 */
/* `fsdpck export`: any source to Hugging Face safetensors. */
#include "commands.h"

#include <fsdpck/export.h>

#include "common/report.h"
#include "select_arg.h"
#include "source_arg.h"
#include "transfer_out.h"

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
    { .name = "max-shard-size", .type = OPTION_SIZE, AT(max_shard_nbytes), .value = "SIZE", .help = "size limit of each file in a folder (default 5GB); tensors are never split" },
    { .name = "force", .type = OPTION_FLAG, AT(force), .help = "replace OUT where it exists, after the new one is complete" },
    { .name = "assets", .type = OPTION_STRING, AT(assets), .value = "FOLDER", .help = "take config.json, tokenizer and the like from FOLDER, not from the source" },
};

static int run(const struct export_args *args, const char *const *at)
{
    struct fsdpck_error err = { 0 };
    struct report report = { 0 };
    struct fsdpck_options opt;
    struct select_spec select = { 0 };
    struct fsdpck_source *src = NULL;
    struct fsdpck_transfer_result result = { 0 };
    report_start(&report, &args->common, &opt);
    struct fsdpck_export_request req = { .out = at[1], .max_shard_nbytes = args->max_shard_nbytes, .assets = args->assets, .force = args->force };
    int status, rc = select_arg_resolve(&args->select, &select, &err);
    req.select = select.select;
    if (!rc)
        rc = source_arg_open(at[0], &args->source, &opt, &src, &err);
    if (!rc)
        rc = fsdpck_export(src, &req, &opt, &result, &err);
    report_clear(&report);
    status = rc ? report_error(&report, &err) : transfer_out_print(at[1], NULL, &result, args->common.json);
    fsdpck_source_close(src);
    select_spec_free(&select);
    return status;
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
        .command = self, .positionals = "DIR OUT", .groups = groups, .ngroups = sizeof groups / sizeof groups[0],
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
