/* SPDX-License-Identifier: Apache-2.0 */
/* `fsdpck export`: writes any source as Hugging Face safetensors. */
#include "commands.h"

#include <fsdpck/export.h>

#include "output_arg.h"
#include "transfer.h"

struct export_args {
    struct output_args output;
    struct common_args common;
    struct source_args source;
    struct select_args select;
    const char *style; /* NULL: what Hugging Face writes */
    uint32_t tp;
    bool expert_parallel;
};

static const struct option output_options[] = {
    OUTPUT_MAX_SHARD_SIZE(struct export_args),
    OUTPUT_FORCE(struct export_args),
    OUTPUT_ASSETS(struct export_args, "source"),
    { .name = "style",
      .type = OPTION_CHOICE,
      .offset = offsetof(struct export_args, style),
      .value = "vllm-sharded",
      .needs = "tp",
      .excludes = "names|quantize",
      .help = "write what each rank of vLLM holds, for its --load-format sharded_state" },
    { .name = "tp",
      .type = OPTION_COUNT,
      .offset = offsetof(struct export_args, tp),
      .value = "N",
      .needs = "style",
      .help = "number of ranks, as of vLLM's --tensor-parallel-size" },
    { .name = "expert-parallel",
      .type = OPTION_FLAG,
      .offset = offsetof(struct export_args, expert_parallel),
      .needs = "tp",
      .help = "spread whole experts over the ranks, as vLLM's --enable-expert-parallel" },
};

static int write_out(void *request, struct fsdpck_source *src, const struct fsdpck_select *select,
                     const struct fsdpck_options *opt, struct fsdpck_transfer_result *result, struct fsdpck_error *err)
{
    struct fsdpck_export_request *req = request;
    req->select = *select;
    return fsdpck_export(src, req, opt, result, err);
}

static int run(void *ctx, const char *const *at)
{
    struct export_args *args = ctx;
    args->source.config = args->output.assets;
    struct fsdpck_export_request req = {
        .out = at[1],
        .max_shard_nbytes = output_arg_max_shard(&args->output, at[1]),
        .assets = args->output.assets,
        .force = args->output.force,
        .vllm_ranks = args->style ? args->tp : 0,
        .vllm_expert_parallel = args->expert_parallel,
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
        COMPLETE_GROUP(&args.source),
        QUANTIZE_GROUP(&args.source),
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
    return options_run(&line, argc, argv, run, &args);
}
