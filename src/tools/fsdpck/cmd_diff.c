/* SPDX-License-Identifier: Apache-2.0 */
/* `fsdpck diff`: lists the differences between two checkpoints of any kind and sharding. */
#include "commands.h"

#include <inttypes.h>
#include <stdio.h>

#include <fsdpck/check.h>

#include "common/json_out.h"
#include "common/report.h"
#include "common/text.h"
#include "source_arg.h"

struct diff_args {
    double tolerance;
    struct common_args common;
    struct source_args source;
};

static const struct option compare_options[] = {
    { .name = "tolerance",
      .type = OPTION_NUMBER,
      .offset = offsetof(struct diff_args, tolerance),
      .value = "X",
      .help = "ignore differences up to X",
      .computed = "every bit counts" },
};

struct printer {
    const char *const *sides; /* A and B as typed */
    struct report *report;
    json_t *differences; /* NULL: print lines */
    bool complete;
};

static void print_shapes(const struct fsdpck_difference *d)
{
    char a[256], b[256];
    printf(": shape %s in A, %s in B", text_shape(d->a->ndim, d->a->shape, a, sizeof a),
           text_shape(d->b->ndim, d->b->shape, b, sizeof b));
}

static void print_line(const struct printer *p, const struct fsdpck_difference *d)
{
    report_clear(p->report);
    putchar('\'');
    text_print(stdout, d->tensor);
    putchar('\'');
    if (!d->a || !d->b) {
        fputs(": only in ", stdout);
        text_print(stdout, p->sides[d->a ? 0 : 1]);
    } else {
        if (!d->same_shape)
            print_shapes(d);
        if (!d->same_dtype)
            printf(": dtype %s in A, %s in B", fsdpck_dtype_info(d->a->dtype)->name,
                   fsdpck_dtype_info(d->b->dtype)->name);
        if (d->ndifferent)
            printf(": %" PRIu64 " of %" PRIu64 " element%s differ%s, by %.9g at most", d->ndifferent, d->a->nelem,
                   fsdpck_plural(d->a->nelem), d->ndifferent == 1 ? "s" : "", d->max_abs);
    }
    putchar('\n');
}

static json_t *side(const struct fsdpck_tensor *t)
{
    if (!t)
        return json_null();
    json_t *o = json_object();
    bool ok = json_out_put(o, "dtype", json_out_text(fsdpck_dtype_info(t->dtype)->name));
    ok = json_out_put(o, "shape", json_out_u64s(t->shape, t->ndim)) && ok;
    if (ok)
        return o;
    json_decref(o);
    return NULL;
}

static bool add_json(json_t *differences, const struct fsdpck_difference *d)
{
    json_t *o = json_object();
    bool ok = json_out_put(o, "tensor", json_out_text(d->tensor));
    ok = json_out_put(o, "a", side(d->a)) && ok;
    ok = json_out_put(o, "b", side(d->b)) && ok;
    if (d->a && d->b) {
        ok = json_out_put(o, "same_dtype", json_boolean(d->same_dtype)) && ok;
        ok = json_out_put(o, "same_shape", json_boolean(d->same_shape)) && ok;
        ok = json_out_put(o, "different_elements", json_out_u64(d->ndifferent)) && ok;
        ok = json_out_put(o, "max_abs", json_out_double(d->max_abs)) && ok;
    }
    return json_out_append(differences, o) && ok;
}

static void on_difference(void *ctx, const struct fsdpck_difference *d)
{
    struct printer *p = ctx;
    if (p->differences)
        p->complete = add_json(p->differences, d) && p->complete;
    else
        print_line(p, d);
}

static int print_json(struct printer *p, const struct fsdpck_diff_result *r, int status)
{
    json_t *o = json_object();
    bool ok = json_out_put(o, "a", json_out_text(p->sides[0])) && p->complete;
    ok = json_out_put(o, "b", json_out_text(p->sides[1])) && ok;
    ok = json_out_put(o, "equal", json_boolean(r->ndifferent == 0)) && ok;
    ok = json_out_put(o, "differences", json_incref(p->differences)) && ok;
    ok = json_out_put(o, "compared", json_out_u64(r->ntensors)) && ok;
    ok = json_out_put(o, "equal_by_content_id", json_out_u64(r->nskipped)) && ok;
    ok = json_out_put(o, "seconds", json_out_double(r->seconds)) && ok;
    return json_out_print(o, ok, status);
}

static void print_summary(const char *const *sides, double tolerance, const struct fsdpck_diff_result *r)
{
    char differences[TEXT_NBYTES], tensors[TEXT_NBYTES], seconds[TEXT_NBYTES];
    text_print(stdout, sides[0]);
    fputs(" and ", stdout);
    text_print(stdout, sides[1]);
    if (r->ndifferent)
        printf(": %s", text_count(r->ndifferent, "difference", differences));
    else if (tolerance < 0)
        fputs(": equal", stdout);
    else
        printf(": equal within %g", tolerance);
    printf(", %s compared in %s\n", text_count(r->ntensors, "tensor", tensors), text_seconds(r->seconds, seconds));
}

static int run(void *ctx, const char *const *at)
{
    const struct diff_args *args = ctx;
    struct fsdpck_error err = { 0 };
    struct report report = { 0 };
    struct fsdpck_options opt;
    struct fsdpck_source *a = NULL, *b = NULL;
    struct fsdpck_diff_result result = { 0 };
    report_start(&report, &args->common, &opt);
    struct printer p = {
        .sides = at, .report = &report, .differences = args->common.json ? json_array() : NULL, .complete = true
    };
    int status, rc = args->common.json && !p.differences ? fsdpck_error_nomem(&err, sizeof(json_t)) : 0;
    if (!rc)
        rc = source_arg_open(at[0], &args->source, &opt, &a, &err);
    if (!rc)
        rc = source_arg_open(at[1], &args->source, &opt, &b, &err);
    if (!rc)
        rc = fsdpck_diff(a, b, args->tolerance, &opt, on_difference, &p, &result, &err);
    report_clear(&report);
    status = rc ? report_error(&report, &err) : result.ndifferent ? EXIT_NO : EXIT_DONE;
    if (!rc && p.differences)
        status = print_json(&p, &result, status);
    else if (!rc)
        print_summary(at, args->tolerance, &result);
    json_decref(p.differences);
    fsdpck_source_close(a);
    fsdpck_source_close(b);
    return status;
}

int cmd_diff(const struct command *self, int argc, char **argv)
{
    struct diff_args args = { .tolerance = -1 };
    const struct option_group groups[] = {
        { "Compare", compare_options, sizeof compare_options / sizeof compare_options[0], &args },
        SHOWN_NAMES_GROUP(&args.source),
        VALUES_GROUP(&args.source),
        READ_GROUP(&args.source),
        COMMON_GROUP(&args.common),
    };
    const struct command_line line = {
        .command = self,
        .positionals = "A B",
        .groups = groups,
        .ngroups = sizeof groups / sizeof groups[0],
        .notes = "Exit status 0: the checkpoints are equal. 1: they differ; stdout has one line for each tensor "
                 "that differs.",
        .exit_no = "The checkpoints differ.",
        .examples = "fsdpck diff step-000200/ exported/",
    };
    return options_run(&line, argc, argv, run, &args);
}
