/* SPDX-License-Identifier: Apache-2.0 */
/* `fsdptrain top`: looks at a run from another terminal. It only reads the run's files. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "commands.h"
#include "common/options.h"
#include "common/report.h"
#include "metrics_option.h"
#include "top_view.h"

/* TAIL_NBYTES: of the metrics; thousands of steps of some ranks, tens of a thousand ranks. */
enum { TAIL_NBYTES = 2 << 20 };

struct top_args {
    const char *jsonl;
    bool once;
    double every;
};

#define AT(field) offsetof(struct top_args, field)

static const struct option top_options[] = {
    { .name = "once",
      .type = OPTION_FLAG,
      .offset = AT(once),
      .help = "print once and end, as where standard output is no terminal or the run has ended" },
    { .name = "every",
      .type = OPTION_NUMBER,
      .offset = AT(every),
      .value = "SECONDS",
      .help = "how often to look again",
      .usual = "1" },
    METRICS_OPTION(AT(jsonl)),
};

static double age_of(const char *path)
{
    struct stat st;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return stat(path, &st) ? 0 : difftime(now.tv_sec, st.st_mtim.tv_sec);
}

static unsigned terminal_rows(void)
{
    struct winsize w;
    return isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 ? w.ws_row : 0;
}

/* Builds the whole screen first: it is then replaced at once. */
static int print_screen(const struct top_run *run, bool replaces, struct fsdpck_error *err)
{
    char *text = NULL;
    size_t nbytes;
    FILE *f = open_memstream(&text, &nbytes);
    if (!f)
        return fsdpck_error_nomem(err, BUFSIZ);
    top_view_print(f, run, terminal_rows());
    if (fclose(f)) {
        free(text);
        return fsdpck_error_nomem(err, BUFSIZ);
    }
    if (replaces) /* the cursor home; the rest of the screen is erased */
        fputs("\033[H\033[J", stdout);
    fputs(text, stdout);
    free(text);
    return fflush(stdout) ? fsdpck_error_sys(err, errno, "standard output", "write") : 0;
}

/* *drawn: in, whether a screen is there to be replaced; out, whether the run goes on. */
static int look(const char *name, const struct top_args *args, bool once, bool *drawn, struct fsdpck_error *err)
{
    char path[PATH_MAX];
    struct train_history history = { 0 };
    struct train_folder folder = { 0 };
    const int n = snprintf(path, sizeof path, "%s/%s", name, args->jsonl);
    if (n < 0 || (size_t)n >= sizeof path)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, name, "the path is too long");
    int rc = train_folder_read(name, 0, &folder, err);
    const bool loads = folder.trains && access(path, F_OK) && errno == ENOENT; /* no step yet */
    if (!rc && !loads)
        rc = train_history_read_tail(path, TAIL_NBYTES, &history, err);
    const struct top_run run = { name, &history, &folder, age_of(path) };
    if (!rc)
        rc = print_screen(&run, !once && (*drawn || folder.trains), err);
    *drawn = folder.trains;
    train_history_free(&history);
    train_folder_free(&folder);
    return rc;
}

static int top(void *ctx, const char *const *at)
{
    const struct top_args *args = ctx;
    const bool once = args->once || !isatty(STDOUT_FILENO);
    struct report screen = { 0 };
    struct fsdpck_error err = { 0 };
    bool trains = false;
    int rc;
    if (!(args->every >= 0.1 && args->every <= 3600))
        return usage_error("--every: found %g, wanted 0.1 to 3600 seconds", args->every);
    do {
        rc = look(at[0], args, once, &trains, &err);
        if (!rc && !once && trains)
            usleep((useconds_t)(args->every * 1e6));
    } while (!rc && !once && trains);
    return rc ? report_error(&screen, &err) : EXIT_DONE;
}

int cmd_top(const struct command *self, int argc, char **argv)
{
    struct top_args args = { 0 };
    const struct option_group groups[] = { { "Options", top_options, sizeof top_options / sizeof top_options[0],
                                             &args } };
    const struct command_line line = {
        .command = self,
        .positionals = "RUN",
        .groups = groups,
        .ngroups = 1,
        .notes = "RUN is the output_dir of a run, which may have ended. Nothing in it changes.\n"
                 "Means are of the last 32 steps. The number after the loss is its change from the 32 steps before. "
                 "busy s/it is the time that a rank computes in a step, without waiting for others.",
        .examples = "fsdptrain top runs/first\n"
                    "fsdptrain top runs/first --once",
    };
    return options_run(&line, argc, argv, top, &args);
}
