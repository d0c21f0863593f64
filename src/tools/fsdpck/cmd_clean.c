/* SPDX-License-Identifier: Apache-2.0 */
/* `fsdpck clean`: removes the left-over temporaries of dead writers. */
#include "commands.h"

#include <stdio.h>

#include <fsdpck/check.h>

#include "common/json_out.h"
#include "common/report.h"
#include "common/text.h"

struct clean_args {
    struct common_args common;
};

struct printer {
    json_t *leftovers; /* NULL: print lines */
    uint64_t count;
    bool complete;
};

static bool add_json(json_t *leftovers, const struct fsdpck_leftover *l)
{
    json_t *o = json_object();
    bool ok = json_out_put(o, "path", json_out_text(l->path));
    ok = json_out_put(o, "removed", json_boolean(l->removed)) && ok;
    ok = json_out_put(o, "alive", json_boolean(l->alive)) && ok;
    ok = json_out_put(o, "why", json_out_text(l->why)) && ok;
    return json_out_append(leftovers, o) && ok;
}

static void on_leftover(void *ctx, const struct fsdpck_leftover *l)
{
    struct printer *p = ctx;
    p->count++;
    if (p->leftovers) {
        p->complete = add_json(p->leftovers, l) && p->complete;
        return;
    }
    fputs(l->removed ? "removed " : "left ", stdout);
    text_print(stdout, l->path);
    fputs(": ", stdout);
    text_print(stdout, l->why);
    putchar('\n');
}

static int print_json(struct printer *p, const char *path)
{
    json_t *o = json_object();
    bool ok = json_out_put(o, "path", json_out_text(path)) && p->complete;
    ok = json_out_put(o, "leftovers", json_incref(p->leftovers)) && ok;
    return json_out_print(o, ok, EXIT_DONE);
}

static int run(void *ctx, const char *const *at)
{
    const struct clean_args *args = ctx;
    const char *path = at[0];
    struct fsdpck_error err = { 0 };
    struct report report = { 0 };
    struct fsdpck_options opt;
    report_start(&report, &args->common, &opt);
    struct printer p = { .leftovers = args->common.json ? json_array() : NULL, .complete = true };
    int status = EXIT_DONE, rc = args->common.json && !p.leftovers ? fsdpck_error_nomem(&err, sizeof(json_t)) : 0;
    if (!rc)
        rc = fsdpck_leftovers(path, FSDPCK_CLEAN_ALL, &opt, on_leftover, &p, &err);
    report_clear(&report);
    if (rc) {
        status = report_error(&report, &err);
    } else if (p.leftovers) {
        status = print_json(&p, path);
    } else if (p.count == 0) {
        text_print(stdout, path);
        puts(": nothing to clean");
    }
    json_decref(p.leftovers);
    return status;
}

int cmd_clean(const struct command *self, int argc, char **argv)
{
    struct clean_args args = { 0 };
    const struct option_group groups[] = { COMMON_GROUP(&args.common) };
    const struct command_line line = {
        .command = self,
        .positionals = "DIR",
        .groups = groups,
        .ngroups = 1,
        .notes = "clean looks beside DIR, for DIR.tmp-…, DIR.old-… and DIR.damaged-…, and directly in it. It "
                 "leaves what belongs to a writer that may be alive.",
        .examples = "fsdpck clean step-000200/",
    };
    return options_run(&line, argc, argv, run, &args);
}
