/* SPDX-License-Identifier: Apache-2.0 */
/* `fsdpck convert` and `fsdpck reshard`: any source, or a sharded one, to a sharded checkpoint directory. */
#include "commands.h"

#include <string.h>

#include "common/report.h"
#include "placement.h"
#include "select_arg.h"
#include "source_arg.h"
#include "transfer_out.h"

struct convert_args {
    const char *dcp, *assets;
    bool force, compress;
    struct common_args common;
    struct source_args source;
    struct placement_args placement;
    struct select_args select;
};

#define AT(field) .offset = offsetof(struct convert_args, field)

static const struct option output_options[] = {
    { .name = "force", .type = OPTION_FLAG, AT(force), .help = "replace OUT where it exists, after the new one is complete" },
    { .name = "dcp", .type = OPTION_CHOICE, AT(dcp), .value = "auto|always|never", .help = "write .metadata for PyTorch (auto: for up to 2 million chunks)" },
    { .name = "assets", .type = OPTION_STRING, AT(assets), .value = "FOLDER", .help = "take config.json, tokenizer and the like from FOLDER, not from the source" },
    { .name = "compress", .type = OPTION_FLAG, AT(compress), .help = "compress without loss; only fsdpck can read the result (and convert it back)" },
};

static enum fsdpck_dcp_mode dcp_mode(const char *text)
{
    if (!text || strcmp(text, "auto") == 0)
        return FSDPCK_DCP_AUTO;
    return strcmp(text, "always") == 0 ? FSDPCK_DCP_ALWAYS : FSDPCK_DCP_NEVER;
}

static int check_sharded(const struct fsdpck_source *src, const char *typed, struct fsdpck_error *err)
{
    const char *kind = fsdpck_source_kind(src);
    if (strcmp(kind, "fsdpck") == 0 || strcmp(kind, "dcp") == 0 || strcmp(kind, "ranks") == 0)
        return 0;
    fsdpck_error_set(err, FSDPCK_ERR_USAGE, typed, "found a source of kind '%s', reshard wants a sharded checkpoint directory (fsdpck, dcp, ranks)", kind);
    fsdpck_error_hint(err, "'fsdpck convert' takes any source");
    return FSDPCK_ERR_USAGE;
}

static int run(const struct convert_args *args, bool sharded_only, const char *const *at)
{
    struct fsdpck_error err = { 0 };
    struct report report = { 0 };
    struct fsdpck_options opt;
    struct placement_spec placement = { 0 };
    struct select_spec select = { 0 };
    struct fsdpck_source *src = NULL;
    struct fsdpck_transfer_result result = { 0 };
    report_start(&report, &args->common, &opt);
    struct fsdpck_convert_request req = { .out = at[1], .dcp = dcp_mode(args->dcp), .assets = args->assets, .force = args->force,
                                          .compress = args->compress };
    int status, rc = placement_resolve(&args->placement, &placement, &err);
    if (!rc)
        rc = select_arg_resolve(&args->select, &select, &err);
    placement_fill(&args->placement, &placement, &req);
    req.select = select.select;
    if (!rc)
        rc = source_arg_open(at[0], &args->source, &opt, &src, &err);
    if (!rc && sharded_only)
        rc = check_sharded(src, at[0], &err);
    if (!rc)
        rc = fsdpck_convert(src, &req, &opt, &result, &err);
    report_clear(&report);
    status = rc ? report_error(&report, &err) : transfer_out_print(at[1], &req.mesh, &result, args->common.json);
    fsdpck_source_close(src);
    select_spec_free(&select);
    placement_spec_free(&placement);
    return status;
}

static int parse_and_run(const struct command *self, bool sharded_only, int argc, char **argv)
{
    struct convert_args args = { 0 };
    const struct option_group groups[] = {
        PLACEMENT_GROUP(&args.placement),
        SELECT_GROUP(&args.select),
        { "Output", output_options, sizeof output_options / sizeof output_options[0], &args },
        NAMES_GROUP(&args.source),
        READ_GROUP(&args.source),
        COMMON_GROUP(&args.common),
    };
    const struct command_line line = {
        .command = self, .positionals = sharded_only ? "DIR OUT" : "SOURCE OUT", .required = "--ranks N", .groups = groups, .ngroups = sizeof groups / sizeof groups[0],
        .notes = sharded_only ? "DIR is a sharded checkpoint: of fsdpck, of PyTorch DCP, or torch.save files of every rank."
                              : "SOURCE may be anything that fsdpck reads, or org/name of a model in the local Hugging Face cache. "
                                "OUT is a PyTorch DCP checkpoint too, unless .metadata is left out (--compress, --dcp).",
        .examples = sharded_only ? "fsdpck reshard step-000200/ resharded/ --ranks 3"
                                 : "fsdpck convert full.safetensors out/ --ranks 8\n"
                                   "fsdpck convert model/ small/ --mesh replicate=2,shard=4 --compress",
    };
    const char *at[MAX_POSITIONALS];
    int status = options_parse(&line, argc, argv, at);
    args.source.config = args.assets;
    if (status == OPTIONS_OK)
        status = run(&args, sharded_only, at);
    options_free(&line);
    return status;
}

int cmd_convert(const struct command *self, int argc, char **argv)
{
    return parse_and_run(self, false, argc, argv);
}

int cmd_reshard(const struct command *self, int argc, char **argv)
{
    return parse_and_run(self, true, argc, argv);
}
