/* SPDX-License-Identifier: Apache-2.0 */
/* `fsdpck merge-lora`: merges a base and an adapter into full weights, as a Hugging Face folder or a sharded
 * checkpoint. */
#include <fsdpck/base.h>

#include "common/report.h"
#include "commands.h"
#include "lora_arg.h"
#include "output_arg.h"
#include "placement.h"
#include "select_arg.h"
#include "source_arg.h"
#include "transfer_out.h"

struct merge_lora_args {
    struct output_args output;
    struct common_args common;
    struct source_args source;
    struct lora_args lora;
    struct placement_args placement;
    struct select_args select;
};

static const struct option output_options[] = {
    OUTPUT_MAX_SHARD_SIZE(struct merge_lora_args),
    OUTPUT_FORCE(struct merge_lora_args),
    OUTPUT_ASSETS(struct merge_lora_args, "base"),
};

/* Adapters have the names of Hugging Face's models: under other ones BASE has no place for them. */
static const struct option base_names_options[] = {
    { .name = "names",
      .type = OPTION_CHOICE,
      .offset = offsetof(struct source_args, names),
      .value = "hf|transformers",
      .help = "take the weights of BASE as models are published (hf), or as transformers holds them (experts fused)" },
};

/* Opens both sources. The adapter is small, and the threads that need it read it, so it gets no progress bar and no
 * threads of its own. */
static int open_both(const struct merge_lora_args *args, const char *const *at, const struct fsdpck_options *opt,
                     struct fsdpck_options *quiet, struct fsdpck_source **base, struct fsdpck_source **adapter,
                     struct fsdpck_error *err)
{
    const struct source_args any = { .no_verify = args->source.no_verify };
    *quiet = *opt;
    quiet->progress = NULL;
    quiet->nthreads = 1;
    int rc = source_arg_open(at[1], &any, quiet, adapter, err);
    if (rc || at[0])
        return rc ? rc : source_arg_open(at[0], &args->source, opt, base, err);
    rc = fsdpck_base_open(*adapter, opt, base, err);
    return rc ? rc : source_arg_present(*base, &args->source, opt, err);
}

static int run(void *ctx, const char *const *at)
{
    struct merge_lora_args *args = ctx;
    struct fsdpck_error err = { 0 };
    struct report report = { 0 };
    struct fsdpck_options opt, quiet;
    struct placement_spec placement = { 0 };
    struct select_spec select = { 0 };
    struct fsdpck_convert_request sharded = { 0 };
    struct fsdpck_source *base = NULL, *adapter = NULL;
    struct fsdpck_transfer_result result = { 0 };
    bool shards = placement_given(&args->placement);
    if (shards && args->output.max_shard_given)
        return usage_error(
            "--max-shard-size is for Hugging Face folders; with --ranks or --mesh, OUT is a sharded checkpoint");
    if (!at[0] && args->source.from)
        return usage_error("--from says what BASE is, and no BASE is given: it is found from ADAPTER");
    args->source.config = args->output.assets;
    report_start(&report, &args->common, &opt);
    struct fsdpck_merge_lora_request req = { .out = at[2],
                                             .choice = lora_arg_choice(&args->lora),
                                             .max_shard_nbytes = output_arg_max_shard(&args->output, at[2]),
                                             .sharded = shards ? &sharded : NULL,
                                             .assets = args->output.assets,
                                             .force = args->output.force };
    int status, rc = shards ? placement_resolve(&args->placement, &placement, &err) : 0;
    if (!rc && shards)
        placement_fill(&args->placement, &placement, &sharded);
    if (!rc)
        rc = select_arg_resolve(&args->select, &select, &err);
    req.select = select.select;
    if (!rc)
        rc = open_both(args, at, &opt, &quiet, &base, &adapter, &err);
    if (!rc)
        rc = fsdpck_merge_lora(base, adapter, &req, &opt, &result, &err);
    report_clear(&report);
    status = rc ? report_error(&report, &err)
                : transfer_out_print(at[2], shards ? &sharded.mesh : NULL, &result, args->common.json);
    fsdpck_source_close(base);
    fsdpck_source_close(adapter);
    select_spec_free(&select);
    placement_spec_free(&placement);
    return status;
}

int cmd_merge_lora(const struct command *self, int argc, char **argv)
{
    struct merge_lora_args args = { .lora.alpha = LORA_NO_ALPHA };
    const struct option_group groups[] = {
        { "Output", output_options, sizeof output_options / sizeof output_options[0], &args },
        LORA_GROUP(&args.lora),
        PLACEMENT_GROUP(&args.placement),
        SELECT_GROUP(&args.select),
        { "Names", base_names_options, sizeof base_names_options / sizeof base_names_options[0], &args.source },
        VALUES_GROUP(&args.source),
        READ_GROUP(&args.source),
        COMMON_GROUP(&args.common),
    };
    const struct command_line line = {
        .command = self,
        .positionals = "[BASE] ADAPTER OUT",
        .groups = groups,
        .ngroups = sizeof groups / sizeof groups[0],
        .notes = "BASE and ADAPTER are checkpoints of any kind that fsdpck(1) lists. Without BASE, the base that "
                 "ADAPTER names "
                 "is used. OUT is a Hugging Face folder, or one file where its name ends in .safetensors, or with "
                 "--ranks or --mesh a sharded checkpoint.\n"
                 "Sums are computed in fp32 and rounded once, to the types of the base or of --dtype. Of a quantized "
                 "BASE, the weights that ADAPTER changes are quantized again in their own form, unless --dequantize "
                 "is given. Every "
                 "tensor of ADAPTER is used as PEFT uses it, or refused by name. The frozen model in a training "
                 "checkpoint must be BASE.",
        .examples = "fsdpck merge-lora model/ adapter/ merged/\n"
                    "fsdpck merge-lora model/ adapter/ merged-8/ --ranks 8",
    };
    return options_run(&line, argc, argv, run, &args);
}
