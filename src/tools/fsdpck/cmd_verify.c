/* SPDX-License-Identifier: Apache-2.0 */
/* `fsdpck verify`: reports every problem of a checkpoint, one per line. */
#include "commands.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>

#include <fsdpck/check.h>

#include "common/json_out.h"
#include "common/model_path.h"
#include "common/report.h"
#include "common/text.h"
#include "ls.h"
#include "picture.h"
#include "source_arg.h"

struct verify_args {
    bool quick;
    const char *html;
    struct common_args common;
    struct source_args source;
};

struct printer {
    const char *typed;
    struct report *report;
    json_t *problems;         /* NULL: print lines */
    json_t *damage;           /* for --html; NULL: no page */
    struct ls_json leftovers; /* used with JSON */
    bool complete;            /* every problem was added to `problems` */
};

static const struct option check_options[] = {
    { .name = "quick",
      .type = OPTION_FLAG,
      .offset = offsetof(struct verify_args, quick),
      .help = "check sizes, tables and the index only" },
    PICTURE_OPTION(offsetof(struct verify_args, html)),
};

/* Prints "FILE@OFFSET+NBYTES: rank R: tensor 'T' rows A..B: block hash differs". B is the last row, inclusive. */
static void print_line(const struct printer *p, const struct fsdpck_problem *problem)
{
    report_clear(p->report);
    text_print(stdout, *problem->file ? problem->file : p->typed);
    if (problem->nbytes)
        printf("@%" PRIu64 "+%" PRIu64, problem->offset, problem->nbytes);
    if (problem->rank >= 0)
        printf(": rank %" PRId64, problem->rank);
    if (problem->tensor) {
        fputs(": tensor '", stdout);
        text_print(stdout, problem->tensor);
        putchar('\'');
        if (problem->row_end > problem->row_begin + 1)
            printf(" rows %" PRIu64 "..%" PRIu64, problem->row_begin, problem->row_end - 1);
        else if (problem->row_end > problem->row_begin)
            printf(" row %" PRIu64, problem->row_begin);
    }
    fputs(": ", stdout);
    text_print(stdout, problem->what);
    putchar('\n');
}

static bool add_json(json_t *problems, const struct fsdpck_problem *problem)
{
    json_t *o = json_object();
    bool ok = json_out_put(o, "file", json_out_text(problem->file));
    if (problem->nbytes) {
        ok = json_out_put(o, "offset", json_out_u64(problem->offset)) && ok;
        ok = json_out_put(o, "bytes", json_out_u64(problem->nbytes)) && ok;
    }
    if (problem->rank >= 0)
        ok = json_out_put(o, "rank", json_integer(problem->rank)) && ok;
    if (problem->tensor)
        ok = json_out_put(o, "tensor", json_out_text(problem->tensor)) && ok;
    if (problem->row_end > problem->row_begin) {
        ok = json_out_put(o, "row_begin", json_out_u64(problem->row_begin)) && ok;
        ok = json_out_put(o, "row_end", json_out_u64(problem->row_end)) && ok;
    }
    ok = json_out_put(o, "what", json_out_text(problem->what)) && ok;
    return json_out_append(problems, o) && ok;
}

static void on_problem(void *ctx, const struct fsdpck_problem *problem)
{
    struct printer *p = ctx;
    if (p->damage)
        p->complete = picture_problem(p->damage, problem) && p->complete;
    if (p->problems)
        p->complete = add_json(p->problems, problem) && p->complete;
    else
        print_line(p, problem);
}

static int print_json(struct printer *p, const struct fsdpck_verify_result *r, int status)
{
    json_t *o = json_object();
    bool ok = json_out_put(o, "path", json_out_text(p->typed)) && p->complete;
    ok = json_out_put(o, "problems", json_incref(p->problems)) && ok;
    ok = json_out_put(o, "leftovers", json_incref(p->leftovers.leftovers)) && p->leftovers.complete && ok;
    ok = json_out_put(o, "hashed", json_boolean(r->hashed)) && ok;
    ok = json_out_put(o, "files", json_out_u64(r->nfiles)) && ok;
    ok = json_out_put(o, "tensors", json_out_u64(r->ntensors)) && ok;
    ok = json_out_put(o, "blocks", json_out_u64(r->nblocks)) && ok;
    ok = json_out_put(o, "read_bytes", json_out_u64(r->read_nbytes)) && ok;
    ok = json_out_put(o, "unread_files", json_out_u64(r->nunread)) && ok;
    ok = json_out_put(o, "seconds", json_out_double(r->seconds)) && ok;
    return json_out_print(o, ok, status);
}

static void print_summary(const char *typed, bool quick, const struct fsdpck_verify_result *r)
{
    char problems[TEXT_NBYTES] = "no problems", files[TEXT_NBYTES], tensors[TEXT_NBYTES], nbytes[TEXT_NBYTES],
         seconds[TEXT_NBYTES];
    char missing[TEXT_NBYTES], unread[2 * TEXT_NBYTES] = "";
    if (r->nproblems)
        text_count(r->nproblems, "problem", problems);
    if (r->nunread)
        snprintf(unread, sizeof unread, ", %s could not be read to the end", text_count(r->nunread, "file", missing));
    text_print(stdout, typed);
    printf(": %s in %s, %s; %s read in %s%s\n", problems, text_count(r->nfiles, "file", files),
           text_count(r->ntensors, "tensor", tensors), text_bytes(r->read_nbytes, nbytes),
           text_seconds(r->seconds, seconds),
           quick       ? " (--quick: sizes, tables and index only)"
           : r->hashed ? ", every byte checked against its hash"
                       : unread);
}

/* Left-over files of writers are not problems of the checkpoint; they are listed separately. */
static int list_leftovers(struct printer *p, const char *path, const struct fsdpck_options *opt,
                          struct fsdpck_error *err)
{
    report_clear(p->report);
    if (!p->problems)
        return fsdpck_leftovers(path, FSDPCK_CLEAN_NOTHING, opt, ls_text_leftover, NULL, err);
    return fsdpck_leftovers(path, FSDPCK_CLEAN_NOTHING, opt, ls_json_leftover, &p->leftovers, err);
}

/* A checkpoint that does not open has a page too: its problems. */
static int write_page(const struct verify_args *args, const struct printer *p, const char *path,
                      const struct fsdpck_verify_result *r, struct fsdpck_error *err)
{
    const struct fsdpck_options quiet = { 0 };
    const struct picture picture = { .typed = p->typed, .damage = p->damage, .ndamage = r->nproblems };
    struct fsdpck_error ignored = { 0 };
    struct fsdpck_source *src = NULL;
    if (fsdpck_source_open(path, args->source.from, &quiet, &src, &ignored) && !r->nproblems)
        return *err = ignored, err->code;
    int rc = picture_write(args->html, src, &picture, err);
    fsdpck_source_close(src);
    return rc;
}

static int run(void *ctx, const char *const *at)
{
    const struct verify_args *args = ctx;
    const char *typed = at[0];
    char path[PATH_MAX];
    struct fsdpck_error err = { 0 };
    struct report report = { 0 };
    struct fsdpck_options opt;
    struct fsdpck_verify_result result = { 0 };
    report_start(&report, &args->common, &opt);
    struct printer p = { .typed = typed,
                         .report = &report,
                         .problems = args->common.json ? json_array() : NULL,
                         .leftovers.complete = true,
                         .complete = true };
    if (args->html)
        p.damage = json_array();
    int status, rc = (args->common.json && !p.problems) || (args->html && !p.damage)
                         ? fsdpck_error_nomem(&err, sizeof(json_t))
                         : 0;
    if (!rc)
        rc = model_path_resolve(typed, path, sizeof path, &err);
    if (!rc && (rc = fsdpck_verify(path, args->source.from, args->quick, &opt, on_problem, &p, &result, &err)))
        source_arg_blame(&args->source, &err);
    if (!rc && p.problems && !(p.leftovers.leftovers = json_array()))
        rc = fsdpck_error_nomem(&err, sizeof(json_t));
    if (!rc)
        rc = list_leftovers(&p, path, &opt, &err);
    if (!rc && args->html)
        rc = write_page(args, &p, path, &result, &err);
    report_clear(&report);
    status = rc ? report_error(&report, &err) : result.nproblems ? EXIT_NO : EXIT_DONE;
    if (!rc && p.problems)
        status = print_json(&p, &result, status);
    else if (!rc)
        print_summary(typed, args->quick, &result);
    json_decref(p.problems);
    json_decref(p.damage);
    json_decref(p.leftovers.leftovers);
    return status;
}

int cmd_verify(const struct command *self, int argc, char **argv)
{
    struct verify_args args = { 0 };
    const struct option_group groups[] = {
        { "Check", check_options, sizeof check_options / sizeof check_options[0], &args },
        SOURCE_GROUP(&args.source),
        COMMON_GROUP(&args.common),
    };
    const struct command_line line = {
        .command = self,
        .positionals = "SOURCE",
        .groups = groups,
        .ngroups = sizeof groups / sizeof groups[0],
        .notes = "Exit status 0: there are no problems. 1: there are problems; stdout has one line for each. 3: "
                 "there is nothing to check. Left-over files of writers are listed apart.",
        .exit_no = "The checkpoint has problems.",
        .examples = "fsdpck verify step-000200/\n"
                    "fsdpck verify step-000200/ --quick",
    };
    return options_run(&line, argc, argv, run, &args);
}
