/* SPDX-License-Identifier: Apache-2.0 */
/* `fsdpck doctor`: reports the defects of a model or adapter folder, one per line. */
#include "commands.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include <fsdpck/doctor.h>

#include "common/json_out.h"
#include "common/model_path.h"
#include "common/report.h"
#include "common/text.h"

struct doctor_args {
    const char *base, *consumer;
    bool deep;
    struct common_args common;
};

struct printer {
    const char *typed;
    json_t *findings; /* NULL: print lines */
    bool complete;
};

static const struct option doctor_options[] = {
    { .name = "base",
      .type = OPTION_STRING,
      .value = "BASE",
      .offset = offsetof(struct doctor_args, base),
      .help = "compare with the model that SOURCE was made from, or that the adapter is for" },
    { .name = "for",
      .type = OPTION_CHOICE,
      .value = "vllm|llama.cpp|peft-0.5",
      .also = "peft=0.5",
      .offset = offsetof(struct doctor_args, consumer),
      .help = "the program that is to load an adapter: what it refuses or ignores is an error" },
    { .name = "deep",
      .type = OPTION_FLAG,
      .offset = offsetof(struct doctor_args, deep),
      .help = "read the weights too: NaN, zeros, a head that is not tied, rows of new tokens, untrained adapters" },
};

static void print_line(const struct printer *p, const struct fsdpck_finding *f)
{
    printf("%s: ", fsdpck_severity_name(f->severity));
    text_print(stdout, *f->file ? f->file : p->typed);
    if (*f->subject) {
        fputs(": '", stdout);
        text_print(stdout, f->subject);
        putchar('\'');
    }
    fputs(": found ", stdout);
    text_print(stdout, f->found);
    fputs("; expected ", stdout);
    text_print(stdout, f->expected);
    fputs("; to mend it: ", stdout);
    text_print(stdout, f->mend);
    putchar('\n');
}

static bool add_json(json_t *findings, const struct fsdpck_finding *f)
{
    json_t *o = json_object();
    bool ok = json_out_put(o, "severity", json_out_text(fsdpck_severity_name(f->severity)));
    ok = json_out_put(o, "check", json_out_text(f->check)) && ok;
    ok = json_out_put(o, "file", json_out_text(f->file)) && ok;
    ok = json_out_put(o, "subject", json_out_text(f->subject)) && ok;
    ok = json_out_put(o, "found", json_out_text(f->found)) && ok;
    ok = json_out_put(o, "expected", json_out_text(f->expected)) && ok;
    ok = json_out_put(o, "mend", json_out_text(f->mend)) && ok;
    return json_out_append(findings, o) && ok;
}

static void on_finding(void *ctx, const struct fsdpck_finding *f)
{
    struct printer *p = ctx;
    if (p->findings)
        p->complete = add_json(p->findings, f) && p->complete;
    else
        print_line(p, f);
}

static int print_json(struct printer *p, const struct fsdpck_doctor_result *r, int status)
{
    json_t *o = json_object();
    bool ok = json_out_put(o, "path", json_out_text(p->typed)) && p->complete;
    ok = json_out_put(o, "findings", json_incref(p->findings)) && ok;
    ok = json_out_put(o, "errors", json_out_u64(r->nerrors)) && ok;
    ok = json_out_put(o, "warnings", json_out_u64(r->nwarnings)) && ok;
    ok = json_out_put(o, "notes", json_out_u64(r->nnotes)) && ok;
    ok = json_out_put(o, "tensors", json_out_u64(r->ntensors)) && ok;
    ok = json_out_put(o, "files", json_out_u64(r->nfiles)) && ok;
    ok = json_out_put(o, "checked", json_out_u64(r->nchecked)) && ok;
    ok = json_out_put(o, "unchecked", json_out_u64(r->nunchecked)) && ok;
    ok = json_out_put(o, "seconds", json_out_double(r->seconds)) && ok;
    return json_out_print(o, ok, status);
}

static void print_summary(const char *typed, const struct fsdpck_doctor_result *r)
{
    char errors[TEXT_NBYTES] = "no errors", warnings[TEXT_NBYTES + 8] = "", notes[TEXT_NBYTES + 8] = "";
    char count[TEXT_NBYTES], checks[TEXT_NBYTES], tensors[TEXT_NBYTES], files[TEXT_NBYTES];
    if (r->nerrors)
        text_count(r->nerrors, "error", errors);
    if (r->nwarnings)
        snprintf(warnings, sizeof warnings, ", %s", text_count(r->nwarnings, "warning", count));
    if (r->nnotes)
        snprintf(notes, sizeof notes, ", %s", text_count(r->nnotes, "note", count));
    text_print(stdout, typed);
    printf(": %s%s%s in %s, %s; %s made, %llu not possible here\n", errors, warnings, notes,
           text_count(r->nfiles, "file", files), text_count(r->ntensors, "tensor", tensors),
           text_count(r->nchecked, "check", checks), (unsigned long long)r->nunchecked);
}

/* A release is written with either sign. */
static const char *consumer_word(const char *typed)
{
    return typed && strcmp(typed, "peft=0.5") == 0 ? "peft-0.5" : typed;
}

static int run(void *ctx, const char *const *at)
{
    const struct doctor_args *args = ctx;
    char path[PATH_MAX], base[PATH_MAX];
    struct fsdpck_error err = { 0 };
    struct report report = { 0 };
    struct fsdpck_options opt;
    struct fsdpck_doctor_result result = { 0 };
    report_start(&report, &args->common, &opt);
    struct printer p = { .typed = at[0], .findings = args->common.json ? json_array() : NULL, .complete = true };
    int rc = args->common.json && !p.findings ? fsdpck_error_nomem(&err, sizeof(json_t)) : 0;
    if (!rc)
        rc = model_path_resolve(at[0], path, sizeof path, &err);
    if (!rc && args->base)
        rc = model_path_resolve(args->base, base, sizeof base, &err);
    const struct fsdpck_doctor_request req = { .base = args->base ? base : NULL,
                                               .consumer = consumer_word(args->consumer),
                                               .deep = args->deep };
    if (!rc)
        rc = fsdpck_doctor(path, &req, &opt, on_finding, &p, &result, &err);
    report_clear(&report);
    int status = rc ? report_error(&report, &err) : result.nerrors ? EXIT_NO : EXIT_DONE;
    if (!rc && p.findings)
        status = print_json(&p, &result, status);
    else if (!rc)
        print_summary(at[0], &result);
    json_decref(p.findings);
    return status;
}

int cmd_doctor(const struct command *self, int argc, char **argv)
{
    struct doctor_args args = { 0 };
    const struct option_group groups[] = {
        { "Check", doctor_options, sizeof doctor_options / sizeof doctor_options[0], &args },
        COMMON_GROUP(&args.common),
    };
    const struct command_line line = {
        .command = self,
        .positionals = "SOURCE",
        .groups = groups,
        .ngroups = sizeof groups / sizeof groups[0],
        .notes = "doctor reads the JSON files, the index and the headers of a Hugging Face model folder or a PEFT "
                 "adapter; weights only with --deep, but for a few values of a head beside a tied embedding. Of a "
                 "folder that the ranks of a training wrote (PyTorch DCP, "
                 "Megatron-core, DeepSpeed) it checks that it is whole. Exit status 0: no errors, though there may be "
                 "warnings. 1: there are errors. 3: SOURCE is no such folder.",
        .exit_no = "The model has defects that a loader would meet.",
        .examples = "fsdpck doctor model/\n"
                    "fsdpck doctor tuned/ --base model/ --deep",
    };
    return options_run(&line, argc, argv, run, &args);
}
