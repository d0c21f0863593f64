/* SPDX-License-Identifier: Apache-2.0 */
/* `fsdpck average`: writes the weighted average of several checkpoints, as a Hugging Face folder or sharded. */
#include <fsdpck/average.h>

#include <math.h>
#include <stdlib.h>

#include "common/report.h"
#include "commands.h"
#include "output_arg.h"
#include "placement.h"
#include "select_arg.h"
#include "source_arg.h"
#include "transfer_out.h"

struct average_args {
    struct strings weights;
    struct output_args output;
    struct common_args common;
    struct source_args source;
    struct placement_args placement;
    struct select_args select;
};

static const struct option average_options[] = {
    { .name = "weights",
      .type = OPTION_LIST,
      .offset = offsetof(struct average_args, weights),
      .value = "W,W,…",
      .help = "factor of each source, in their order; they may be negative and need not add up to 1",
      .computed = "the mean: 1 divided by the number of sources, each" },
};

static const struct option output_options[] = {
    OUTPUT_MAX_SHARD_SIZE(struct average_args),
    OUTPUT_FORCE(struct average_args),
    OUTPUT_ASSETS(struct average_args, "first source"),
    OUTPUT_DCP(struct average_args, .needs = "ranks|mesh"),
    OUTPUT_COMPRESS(struct average_args, .needs = "ranks|mesh"),
};

/* The sources of a command line, and their factors. */
struct inputs {
    const char *const *typed; /* (n) */
    size_t n;
    struct fsdpck_source **open; /* (n) NULL: not open yet */
    double *weights;             /* (n) NULL: not given */
};

static int parse_weight(const char *text, double *out)
{
    double value;
    const bool negative = *text == '-';
    if (!value_number(text + negative, &value) || !isfinite((float)value))
        return usage_error("--weights: found '%s', wanted a number of float32", text);
    *out = negative ? -value : value;
    return EXIT_DONE;
}

static int parse_weights(const struct strings *list, struct inputs *in)
{
    int status = EXIT_DONE;
    if (!list->count)
        return EXIT_DONE;
    if (list->count != in->n)
        return usage_error("--weights: found %zu number%s for %zu sources, wanted one for each", list->count,
                           fsdpck_plural(list->count), in->n);
    in->weights = calloc(in->n, sizeof *in->weights);
    if (!in->weights)
        return usage_error("no memory for the arguments"), EXIT_SYSTEM;
    for (size_t i = 0; i < in->n && status == EXIT_DONE; i++)
        status = parse_weight(list->at[i], &in->weights[i]);
    return status;
}

/* The first source reports progress for all. */
static int open_all(struct inputs *in, struct average_args *args, const struct fsdpck_options *opt,
                    struct fsdpck_options *quiet, struct fsdpck_error *err)
{
    int rc = 0;
    args->source.config = args->output.assets;
    *quiet = *opt;
    quiet->progress = NULL;
    in->open = calloc(in->n, sizeof(struct fsdpck_source *));
    if (!in->open)
        return fsdpck_error_nomem(err, in->n * sizeof(struct fsdpck_source *));
    for (size_t i = 0; i < in->n && !rc; i++)
        rc = source_arg_open(in->typed[i], &args->source, i ? quiet : opt, &in->open[i], err);
    return rc;
}

static void close_all(struct inputs *in)
{
    for (size_t i = 0; in->open && i < in->n; i++)
        fsdpck_source_close(in->open[i]);
    free(in->open);
    free(in->weights);
}

/* out: as typed. */
static int write_out(struct average_args *args, struct inputs *in, const char *out)
{
    struct fsdpck_error err = { 0 };
    struct report report = { 0 };
    struct fsdpck_options opt, quiet;
    struct placement_spec placement = { 0 };
    struct select_spec select = { 0 };
    struct fsdpck_convert_request sharded = { 0 };
    struct fsdpck_transfer_result result = { 0 };
    const bool shards = placement_given(&args->placement);
    report_start(&report, &args->common, &opt);
    int rc = shards ? placement_resolve(&args->placement, &placement, &err) : 0;
    if (!rc && shards) {
        placement_fill(&args->placement, &placement, &sharded);
        output_arg_fill(&args->output, &sharded);
    }
    if (!rc)
        rc = select_arg_resolve(&args->select, &select, &err);
    struct fsdpck_average_request req = { .out = out,
                                          .weights = in->weights,
                                          .select = select.select,
                                          .max_shard_nbytes = output_arg_max_shard(&args->output, out),
                                          .sharded = shards ? &sharded : NULL,
                                          .assets = args->output.assets,
                                          .force = args->output.force };
    if (!rc)
        rc = open_all(in, args, &opt, &quiet, &err);
    if (!rc)
        rc = fsdpck_average(in->open, in->n, &req, &opt, &result, &err);
    report_clear(&report);
    int status = rc ? report_error(&report, &err)
                    : transfer_out_print(out, shards ? &sharded.mesh : NULL, &result, args->common.json);
    close_all(in);
    select_spec_free(&select);
    placement_spec_free(&placement);
    return status;
}

static int run(void *ctx, const char *const *at)
{
    struct average_args *args = ctx;
    struct inputs in = { .typed = at };
    while (at[in.n + 1])
        in.n++;
    if (placement_given(&args->placement) && args->output.max_shard_given)
        return usage_error(
            "--max-shard-size is for Hugging Face folders; with --ranks or --mesh, OUT is a sharded checkpoint");
    int status = parse_weights(&args->weights, &in);
    if (status == EXIT_DONE)
        return write_out(args, &in, at[in.n]);
    free(in.weights);
    return status;
}

int cmd_average(const struct command *self, int argc, char **argv)
{
    struct average_args args = { 0 };
    const struct option_group groups[] = {
        { "Average", average_options, sizeof average_options / sizeof average_options[0], &args },
        { "Output", output_options, sizeof output_options / sizeof output_options[0], &args },
        PLACEMENT_GROUP(&args.placement),
        SELECT_GROUP(&args.select),
        NAMES_GROUP(&args.source),
        VALUES_GROUP(&args.source),
        READ_GROUP(&args.source),
        COMMON_GROUP(&args.common),
    };
    const struct command_line line = {
        .command = self,
        .positionals = "A B… OUT",
        .groups = groups,
        .ngroups = sizeof groups / sizeof groups[0],
        .notes = "A, B and so on are checkpoints of any kind that fsdpck(1) lists, sharded in any way; of a checkpoint "
                 "with several trees (model, optim …), the model tree is taken. OUT is a Hugging Face folder, or one "
                 "file where its name ends in .safetensors, or with --ranks or --mesh a sharded checkpoint.\n"
                 "Sums are computed in fp32 (of float64 tensors in float64), in the order of the sources, and rounded "
                 "once, to the types of the sources or of --dtype. All sources must have the same tensors, in the same "
                 "shapes and types. Integers must have the same values.",
        .examples = "fsdpck average model/ step-000200/ averaged/ --ranks 2\n"
                    "fsdpck average model-a/ model-b/ mixed/ --weights 0.7,0.3",
    };
    return options_run(&line, argc, argv, run, &args);
}
