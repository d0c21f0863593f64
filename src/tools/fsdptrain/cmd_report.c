/* SPDX-License-Identifier: Apache-2.0 */
/* `fsdptrain report`: one HTML file that shows runs, or a table of their metrics. It only reads the runs. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "common/options.h"
#include "common/out_file.h"
#include "common/page_out.h"
#include "common/report.h"
#include "common/text.h"
#include "metrics_option.h"
#include "report/report_out.h"

/* Samples of a run, and of all runs; each run has two at least. */
enum { MOST_SAMPLES = 20, ALL_SAMPLES = 80 };

struct report_args {
    const char *out, *jsonl;
    bool csv;
};

#define AT(field) offsetof(struct report_args, field)

static const struct option report_options[] = {
    { .name = "out",
      .type = OPTION_STRING,
      .offset = AT(out),
      .value = "FILE",
      .help = "file to write; a report that exists is replaced",
      .computed = "report.html, or standard output with --csv" },
    { .name = "csv",
      .type = OPTION_FLAG,
      .offset = AT(csv),
      .help = "write the metrics as CSV instead of a page: a line for each step, with all digits" },
    METRICS_OPTION(AT(jsonl)),
};

static int read_run(const char *folder, const char *jsonl, size_t nsamples, struct report_run *run,
                    struct fsdpck_error *err)
{
    char path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s/%s", folder, jsonl);
    run->name = run->folder_path = folder;
    if (n < 0 || (size_t)n >= sizeof path)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, folder, "the path is too long");
    int rc = train_history_read(path, &run->history, err);
    return rc ? rc : train_folder_read(folder, nsamples, &run->folder, err);
}

struct report_files {
    const struct report_args *args;
    const struct report_run *runs;
    size_t nruns;
};

static bool put_report(FILE *f, const void *ctx)
{
    const struct report_files *r = ctx;
    return r->args->csv ? report_out_csv(f, r->runs, r->nruns) : report_out_page(f, r->runs, r->nruns);
}

static int write_report(const char *out, const struct report_files *files, struct fsdpck_error *err)
{
    static const char *const heads[] = { PAGE_HEAD, REPORT_CSV_HEAD, NULL };
    const struct out_file file = { out, "report", "--out", heads, put_report, files };
    if (out)
        return out_file_write(&file, err);
    if (!put_report(stdout, files))
        return fsdpck_error_nomem(err, files->nruns * sizeof *files->runs);
    return fflush(stdout) || ferror(stdout) ? fsdpck_error_sys(err, errno ? errno : EIO, "standard output", "write")
                                            : 0;
}

static int report(void *ctx, const char *const *at)
{
    const struct report_args *args = ctx;
    const char *out = args->out || args->csv ? args->out : "report.html";
    struct fsdpck_error err = { 0 };
    struct report screen = { 0 };
    size_t nruns = 0, nread = 0;
    while (at[nruns])
        nruns++;
    struct report_run *runs = calloc(nruns, sizeof *runs);
    int rc = runs ? 0 : fsdpck_error_nomem(&err, nruns * sizeof *runs);
    const size_t share = ALL_SAMPLES / nruns > 2 ? ALL_SAMPLES / nruns : 2;
    for (; nread < nruns && !rc; nread++)
        rc = read_run(at[nread], args->jsonl, share < MOST_SAMPLES ? share : MOST_SAMPLES, &runs[nread], &err);
    if (!rc)
        rc = write_report(out, &(struct report_files){ args, runs, nruns }, &err);
    for (size_t i = 0; i < nread; i++) {
        if (!rc && runs[i].history.nbad) {
            fputs("note: ", stderr);
            text_print(stderr, at[i]);
            fprintf(stderr,
                    ": %llu line%s of the metrics could not be read; a run that is under way or was killed "
                    "leaves one\n",
                    (unsigned long long)runs[i].history.nbad, fsdpck_plural(runs[i].history.nbad));
        }
        train_history_free(&runs[i].history);
        train_folder_free(&runs[i].folder);
    }
    free(runs);
    if (!rc && out) {
        text_print(stdout, out);
        printf(": %zu run%s\n", nruns, fsdpck_plural(nruns));
    }
    return rc ? report_error(&screen, &err) : EXIT_DONE;
}

int cmd_report(const struct command *self, int argc, char **argv)
{
    struct report_args args = { 0 };
    const struct option_group groups[] = { { "Options", report_options,
                                             sizeof report_options / sizeof report_options[0], &args } };
    const struct command_line line = {
        .command = self,
        .positionals = "RUN…",
        .groups = groups,
        .ngroups = 1,
        .notes = "RUN is the output_dir of a run, which may be under way. Nothing in it changes.\n"
                 "The page is one file without links to others. It draws the curves of the runs over each other, and "
                 "shows times, memory, checkpoints, samples, settings that differ, and interruptions.",
        .examples = "fsdptrain report runs/first\n"
                    "fsdptrain report runs/first runs/second --out both.html\n"
                    "fsdptrain report runs/first --csv > first.csv",
    };
    return options_run(&line, argc, argv, report, &args);
}
