/* SPDX-License-Identifier: Apache-2.0 */
/* `fsdpck convert` and `fsdpck reshard`: write a sharded checkpoint directory from any source, or a sharded one. */
#include "commands.h"

#include "output_arg.h"
#include "placement.h"
#include "transfer.h"

struct convert_args {
    bool sharded_only;
    struct output_args output;
    struct common_args common;
    struct source_args source;
    struct placement_args placement;
    struct select_args select;
};

static const struct option output_options[] = {
    OUTPUT_FORCE(struct convert_args),
    OUTPUT_DCP(struct convert_args),
    OUTPUT_ASSETS(struct convert_args, "source"),
    OUTPUT_COMPRESS(struct convert_args),
};

static int check_sharded(const struct fsdpck_source *src, const char *typed, struct fsdpck_error *err)
{
    if (fsdpck_source_is_sharded(src))
        return 0;
    fsdpck_error_set(err, FSDPCK_ERR_USAGE, typed,
                     "found a source of kind '%s', reshard wants a sharded checkpoint directory (fsdpck, dcp, ranks, "
                     "deepspeed, vllm-sharded)",
                     fsdpck_source_kind(src));
    fsdpck_error_hint(err, "'fsdpck convert' takes any source");
    return FSDPCK_ERR_USAGE;
}

struct conversion {
    const struct convert_args *args;
    const char *typed; /* SOURCE as typed */
    struct placement_spec placement;
    struct fsdpck_convert_request req;
};

static int prepare(void *request, struct fsdpck_error *err)
{
    struct conversion *c = request;
    int rc = placement_resolve(&c->args->placement, &c->placement, err);
    placement_fill(&c->args->placement, &c->placement, &c->req);
    return rc;
}

static int write_out(void *request, struct fsdpck_source *src, const struct fsdpck_select *select,
                     const struct fsdpck_options *opt, struct fsdpck_transfer_result *result, struct fsdpck_error *err)
{
    struct conversion *c = request;
    c->req.select = *select;
    int rc = c->args->sharded_only ? check_sharded(src, c->typed, err) : 0;
    return rc ? rc : fsdpck_convert(src, &c->req, opt, result, err);
}

static int run(void *ctx, const char *const *at)
{
    struct convert_args *args = ctx;
    args->source.config = args->output.assets;
    struct conversion c = {
        .args = args,
        .typed = at[0],
        .req = { .out = at[1], .assets = args->output.assets, .force = args->output.force },
    };
    output_arg_fill(&args->output, &c.req);
    const struct transfer t = { .in = at[0],
                                .out = at[1],
                                .common = &args->common,
                                .source = &args->source,
                                .select = &args->select,
                                .mesh = &c.req.mesh,
                                .prepare = prepare,
                                .write = write_out,
                                .request = &c };
    int status = transfer_run(&t);
    placement_spec_free(&c.placement);
    return status;
}

static int parse_and_run(const struct command *self, bool sharded_only, int argc, char **argv)
{
    struct convert_args args = { .sharded_only = sharded_only };
    const struct option_group groups[] = {
        PLACEMENT_GROUP(&args.placement),
        SELECT_GROUP(&args.select),
        { "Output", output_options, sizeof output_options / sizeof output_options[0], &args },
        NAMES_GROUP(&args.source),
        COMPLETE_GROUP(&args.source),
        QUANTIZE_GROUP(&args.source),
        READ_GROUP(&args.source),
        COMMON_GROUP(&args.common),
    };
    const struct command_line line = {
        .command = self,
        .positionals = sharded_only ? "DIR OUT" : "SOURCE OUT",
        .required = "(--ranks N | --mesh NAME=SIZE,…)",
        .groups = groups,
        .ngroups = sizeof groups / sizeof groups[0],
        .notes = sharded_only
                     ? "DIR is a sharded checkpoint: of fsdpck, of PyTorch DCP, or torch.save files of every rank."
                     : "SOURCE is a checkpoint of any kind that fsdpck(1) lists, or org/name of a model in the local "
                       "Hugging "
                       "Face cache. "
                       "OUT is a PyTorch DCP checkpoint too, unless .metadata is left out (--compress, --dcp).",
        .examples = sharded_only ? "fsdpck reshard step-000200/ resharded/ --ranks 3"
                                 : "fsdpck convert full.safetensors out/ --ranks 8\n"
                                   "fsdpck convert model/ small/ --mesh replicate=2,shard=4 --compress",
    };
    return options_run(&line, argc, argv, run, &args);
}

int cmd_convert(const struct command *self, int argc, char **argv)
{
    return parse_and_run(self, false, argc, argv);
}

int cmd_reshard(const struct command *self, int argc, char **argv)
{
    return parse_and_run(self, true, argc, argv);
}
