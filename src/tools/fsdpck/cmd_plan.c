/* SPDX-License-Identifier: Apache-2.0 */
/* `fsdpck plan`: shows what each rank would read of a source. It reads metadata only. */
#include "commands.h"

#include <stdlib.h>

#include "common/report.h"
#include "picture.h"
#include "placement.h"
#include "plan_out.h"
#include "source_arg.h"

struct plan_args {
    const char *html;
    struct common_args common;
    struct source_args source;
    struct placement_args placement;
};

static const struct option model_options[] = {
    { .name = "assets",
      .type = OPTION_STRING,
      .offset = offsetof(struct source_args, config),
      .value = "FOLDER",
      .help = "folder of the model's config.json, where the source has none",
      .needs = "names|dequantize|placement" },
};

static const struct option page_options[] = { PICTURE_OPTION(offsetof(struct plan_args, html)) };

static int write_page(const struct plan_args *args, const char *typed, const struct fsdpck_source *src,
                      const struct fsdpck_convert_request *req, const struct fsdpck_plan *plans,
                      struct fsdpck_error *err)
{
    const size_t n = fsdpck_source_ntensors(src);
    struct fsdpck_convert_place *places = calloc(n + 1, sizeof *places);
    int rc = places ? fsdpck_convert_places(src, req, places, err) : fsdpck_error_nomem(err, n * sizeof *places);
    const struct picture picture = { .typed = typed, .mesh = &req->mesh, .places = places, .plans = plans };
    if (!rc)
        rc = picture_write(args->html, src, &picture, err);
    free(places);
    return rc;
}

static int run(void *ctx, const char *const *at)
{
    const struct plan_args *args = ctx;
    const char *typed = at[0];
    struct fsdpck_error err = { 0 };
    struct report report = { 0 };
    struct fsdpck_options opt;
    struct placement_spec placement = { 0 };
    struct fsdpck_convert_request req = { 0 };
    struct fsdpck_source *src = NULL;
    struct fsdpck_plan *plans = NULL;
    uint64_t nranks = 0;
    report_start(&report, &args->common, &opt);
    int status, rc = placement_resolve(&args->placement, &placement, &err);
    placement_fill(&args->placement, &placement, &req);
    if (!rc)
        rc = source_arg_open(typed, &args->source, &opt, &src, &err);
    req.assets = args->source.config;
    if (!rc)
        nranks = fsdpck_mesh_nranks(&req.mesh);
    if (!rc && !(plans = calloc(nranks, sizeof *plans)))
        rc = fsdpck_error_nomem(&err, nranks * sizeof *plans);
    if (!rc)
        rc = fsdpck_plan_ranks(src, &req, &opt, plans, &err);
    if (!rc && args->html)
        rc = write_page(args, typed, src, &req, plans, &err);
    report_clear(&report);
    if (rc)
        status = report_error(&report, &err);
    else
        status = args->common.json ? plan_out_json(typed, &req.mesh, plans, nranks) : plan_out_text(plans, nranks);
    free(plans);
    fsdpck_source_close(src);
    placement_spec_free(&placement);
    return status;
}

int cmd_plan(const struct command *self, int argc, char **argv)
{
    struct plan_args args = { 0 };
    const struct option_group groups[] = { PLACEMENT_GROUP(&args.placement),
                                           NAMES_GROUP(&args.source),
                                           { "Model", model_options, 1, &args.source },
                                           QUANTIZE_GROUP(&args.source),
                                           { "Page", page_options, 1, &args },
                                           SOURCE_GROUP(&args.source),
                                           COMMON_GROUP(&args.common) };
    const struct command_line line = {
        .command = self,
        .positionals = "SOURCE",
        .required = "(--ranks N | --mesh NAME=SIZE,…)",
        .groups = groups,
        .ngroups = sizeof groups / sizeof groups[0],
        .notes = "needed counts the bytes of the rank's own shards, as --dequantize and --quantize make them. read "
                 "counts what they are made from, with the rest of hashed blocks, and gaps "
                 "that are cheaper to read than to skip. runs counts separate reads. peak memory is that of the "
                 "shards and of the buffers for reading them.",
        .examples = "fsdpck plan model/ --ranks 8\n"
                    "fsdpck plan step-000200/ --mesh replicate=2,shard=8 --html plan.html",
    };
    return options_run(&line, argc, argv, run, &args);
}
