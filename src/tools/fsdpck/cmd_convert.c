/* SPDX-License-Identifier: Apache-2.0 */
/* `fsdpck convert` and `fsdpck reshard`: write a sharded checkpoint directory from any source, or a sharded one. */
#include "commands.h"

#include <string.h>

#include "placement.h"
#include "transfer.h"

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
    { .name = "force",
      .type = OPTION_FLAG,
      AT(force),
      .help = "replace OUT where it exists, after the new one is complete" },
    { .name = "dcp",
      .type = OPTION_CHOICE,
      AT(dcp),
      .value = "auto|always|never",
      .help = "write .metadata for PyTorch (auto: for up to 2 million chunks)" },
    { .name = "assets",
      .type = OPTION_STRING,
      AT(assets),
      .value = "FOLDER",
      .help = "take config.json, tokenizer and the like from FOLDER, not from the source" },
    { .name = "compress",
      .type = OPTION_FLAG,
      AT(compress),
      .help = "compress without loss; only fsdpck can read the result (and convert it back)" },
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
    fsdpck_error_set(err, FSDPCK_ERR_USAGE, typed,
                     "found a source of kind '%s', reshard wants a sharded checkpoint directory (fsdpck, dcp, ranks)",
                     kind);
    fsdpck_error_hint(err, "'fsdpck convert' takes any source");
    return FSDPCK_ERR_USAGE;
}

struct conversion {
    const struct convert_args *args;
    const char *typed; /* SOURCE as typed */
    bool sharded_only;
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
    int rc = c->sharded_only ? check_sharded(src, c->typed, err) : 0;
    return rc ? rc : fsdpck_convert(src, &c->req, opt, result, err);
}

static int run(const struct convert_args *args, bool sharded_only, const char *const *at)
{
    struct conversion c = {
        .args = args,
        .typed = at[0],
        .sharded_only = sharded_only,
        .req = { .out = at[1],
                 .dcp = dcp_mode(args->dcp),
                 .assets = args->assets,
                 .force = args->force,
                 .compress = args->compress },
    };
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
        .command = self,
        .positionals = sharded_only ? "DIR OUT" : "SOURCE OUT",
        .required = "--ranks N",
        .groups = groups,
        .ngroups = sizeof groups / sizeof groups[0],
        .notes =
            sharded_only
                ? "DIR is a sharded checkpoint: of fsdpck, of PyTorch DCP, or torch.save files of every rank."
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
