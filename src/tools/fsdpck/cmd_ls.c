/* SPDX-License-Identifier: Apache-2.0 */
/* `fsdpck ls`: lists the contents of a checkpoint. ls_text.c and ls_json.c print them. */
#include "commands.h"

#include <string.h>

#include <fsdpck/check.h>

#include "common/report.h"
#include "ls.h"
#include "picture.h"
#include "source_arg.h"

struct ls_args {
    const char *glob, *html;
    struct common_args common;
    struct source_args source;
};

static const struct option list_options[] = {
    { .name = "tensor",
      .type = OPTION_STRING,
      .offset = offsetof(struct ls_args, glob),
      .value = "GLOB",
      .help = "list only tensors whose name matches" },
    PICTURE_OPTION(offsetof(struct ls_args, html)),
};

/* Lists the temporaries of writers, which only sharded checkpoints can have. */
static int list_leftovers(const struct fsdpck_source *src, const struct fsdpck_options *opt, fsdpck_leftover_fn visit,
                          void *ctx, struct fsdpck_error *err)
{
    const char *kind = fsdpck_source_kind(src);
    if (strcmp(kind, "fsdpck") != 0 && strcmp(kind, "dcp") != 0)
        return 0;
    return fsdpck_leftovers(fsdpck_source_path(src), FSDPCK_CLEAN_NOTHING, opt, visit, ctx, err);
}

static int run(void *ctx, const char *const *at)
{
    const struct ls_args *args = ctx;
    const char *typed = at[0];
    struct fsdpck_error err = { 0 };
    struct report report = { 0 };
    struct fsdpck_options opt;
    struct ls_json json = { 0 };
    struct fsdpck_source *src = NULL;
    report_start(&report, &args->common, &opt);
    int status = EXIT_DONE, rc = source_arg_open(typed, &args->source, &opt, &src, &err);
    if (!rc)
        rc = fsdpck_globs_check(src, "--tensor", &args->glob, args->glob != NULL, &err);
    if (!rc && args->html)
        rc = picture_write(args->html, src, &(struct picture){ .typed = typed, .glob = args->glob }, &err);
    if (!rc && args->common.json) {
        ls_json_start(&json, src, args->glob);
        rc = list_leftovers(src, &opt, ls_json_leftover, &json, &err);
    } else if (!rc) {
        ls_text_header(src);
        rc = list_leftovers(src, &opt, ls_text_leftover, NULL, &err);
    }
    report_clear(&report);
    if (rc)
        status = report_error(&report, &err);
    else if (args->common.json)
        status = json_out_print(json_incref(json.object), json.complete, EXIT_DONE);
    else
        ls_text_tensors(src, args->glob);
    json_decref(json.object);
    fsdpck_source_close(src);
    return status;
}

int cmd_ls(const struct command *self, int argc, char **argv)
{
    struct ls_args args = { 0 };
    const struct option_group groups[] = {
        { "List", list_options, sizeof list_options / sizeof list_options[0], &args },
        SHOWN_NAMES_GROUP(&args.source),
        VALUES_GROUP(&args.source),
        SOURCE_GROUP(&args.source),
        COMMON_GROUP(&args.common),
    };
    const struct command_line line = {
        .command = self,
        .positionals = "SOURCE",
        .groups = groups,
        .ngroups = sizeof groups / sizeof groups[0],
        .examples = "fsdpck ls step-000200/ --tensor '*norm*'\n"
                    "fsdpck ls step-000200/ --html step-000200.html",
    };
    return options_run(&line, argc, argv, run, &args);
}
