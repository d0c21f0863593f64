/* SPDX-License-Identifier: Apache-2.0 */
/* `fsdptrain run`: reads the config, runs the trainer, shows the steps. */
#include "commands.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <train/train.h>
#include <unistd.h>

#include "common/model_path.h"
#include "common/stop.h"
#include "common/text.h"
#include "device_arg.h"
#include "run_view.h"

struct run_args {
    bool quiet, profile, several_hosts;
    uint32_t ranks, threads, exit_on_stop;
    uint32_t rank, launched; /* rank and number of ranks from a launcher; launched 0: no launcher */
    uint32_t local, nlocal;  /* the same for this host */
    const char *resume, *device, *gather;
    struct strings sets;
    double patience; /* negative: not given */
    struct run_view *view;
};

#define AT(field) offsetof(struct run_args, field)

static const struct option run_options[] = {
    { .name = "ranks",
      .type = OPTION_COUNT,
      .offset = AT(ranks),
      .value = "N",
      .help = "number of local processes that share the model (default 1)" },
    { .name = "threads",
      .type = OPTION_COUNT,
      .offset = AT(threads),
      .value = "T",
      .help = "threads of each rank (default: the processors, divided among the ranks)" },
    { .name = "resume",
      .type = OPTION_STRING,
      .offset = AT(resume),
      .value = "auto|never|DIR",
      .help = "checkpoint to resume from; auto (default) takes the newest complete one in output_dir" },
    { .name = "set",
      .type = OPTION_STRINGS,
      .offset = AT(sets),
      .value = "KEY=VALUE",
      .help = "set a key of the config, as in train.max_steps=10 (may be repeated)" },
    { .name = "device",
      .type = OPTION_CHOICE,
      .offset = AT(device),
      .value = "cpu|cuda",
      .help = "device to compute on (default: cuda where there is one)" },
    { .name = "gather",
      .type = OPTION_CHOICE,
      .offset = AT(gather),
      .value = "map|copy",
      .help = "how ranks of one host read each other's parameters (default map); between hosts they are copied" },
    { .name = "exit-on-stop",
      .type = OPTION_COUNT,
      .offset = AT(exit_on_stop),
      .value = "CODE",
      .help = "exit code after a stop by signal (default 0)" },
    { .name = "patience",
      .type = OPTION_NUMBER,
      .offset = AT(patience),
      .value = "SECONDS",
      .help = "how long a rank may stall before it is named and the run ends (default 600)" },
    { .name = "quiet", .letter = 'q', .type = OPTION_FLAG, .offset = AT(quiet), .help = "print no steps and no notes" },
    { .name = "profile",
      .type = OPTION_FLAG,
      .offset = AT(profile),
      .help = "show where the time of rank 0 goes, in a table at the end and in output_dir/profile.json" },
};

static void show_start(void *ctx, const struct train_start *start)
{
    struct run_args *args = ctx;
    run_view_start(args->view, start);
}

static void show_step(void *ctx, const struct train_metrics *m)
{
    struct run_args *args = ctx;
    run_view_step(args->view, m);
}

static void show_note(void *ctx, const char *line)
{
    struct run_args *args = ctx;
    if (args->rank == 0)
        report_note(&args->view->report, line);
}

static void show_phase(void *ctx, enum train_phase phase, uint64_t done, uint64_t total)
{
    struct run_args *args = ctx;
    if (args->rank == 0)
        run_view_phase(args->view, phase, done, total);
}

static void show_lost(void *ctx, const struct fsdpck_error *err)
{
    struct run_args *args = ctx;
    report_error(&args->view->report, err);
}

static void put_quoted(const char *argument)
{
    fputc('\'', stderr);
    text_print(stderr, argument);
    fputc('\'', stderr);
}

static void put_line(const char *title, const char *path)
{
    fputs(title, stdout);
    text_print(stdout, path);
    putchar('\n');
}

/* Prints the command that resumes the run, with the options of this one. */
static void show_resume(const struct run_args *args, const char *config, uint64_t ndone)
{
    fprintf(stderr, "fsdptrain: stopped after step %llu; to go on: ", (unsigned long long)ndone);
    if (args->launched)
        fprintf(stderr, "mpirun -n %u ", args->launched);
    fputs("fsdptrain run ", stderr);
    put_quoted(config);
    if (args->ranks)
        fprintf(stderr, " --ranks %u", args->ranks);
    if (args->device)
        fprintf(stderr, " --device %s", args->device);
    for (size_t i = 0; i < args->sets.count; i++) {
        fputs(" --set ", stderr);
        put_quoted(args->sets.at[i]);
    }
    fputc('\n', stderr);
}

/* Prints the last line on stdout; messages on stderr follow it. */
static void show_done(const struct train_result *done)
{
    if (done->ndone > done->nsteps)
        printf("nothing to do: %llu steps were done before, and the config asks for %llu",
               (unsigned long long)done->ndone, (unsigned long long)done->nsteps);
    else
        printf("%llu of %llu steps done", (unsigned long long)done->ndone, (unsigned long long)done->nsteps);
    if (done->nskipped)
        printf(", %llu of them skipped", (unsigned long long)done->nskipped);
    if (done->save_failed)
        put_line(", NOT saved; the last checkpoint: ", done->checkpoint[0] ? done->checkpoint : "none");
    else
        put_line(done->checkpoint[0] ? ", saved in " : "", done->checkpoint);
    if (done->adapter[0])
        put_line("the adapter: ", done->adapter);
    if (done->model[0])
        put_line("the model: ", done->model);
    fflush(stdout);
}

static int finish(const struct run_args *args, const char *config, const struct train_result *done)
{
    if (args->rank != 0) /* rank 0 reports for all ranks; mpirun ends it if another rank exits with a failure */
        return EXIT_DONE;
    show_done(done);
    if (done->save_failed) {
        fprintf(stderr, "fsdptrain: the last checkpoint could not be saved\n");
        return EXIT_SYSTEM;
    }
    if (done->diverged) {
        fprintf(stderr,
                "fsdptrain: the training diverged: the last %llu steps were skipped, for their gradients were not "
                "finite; nothing is exported\n"
                "hint: try a smaller train.learning_rate or lora.lora_alpha, or more train.warmup_steps, in another "
                "output_dir\n",
                (unsigned long long)done->ntrailing);
        return EXIT_REFUSED;
    }
    if (!done->stopped)
        return EXIT_DONE;
    show_resume(args, config, done->ndone);
    return (int)args->exit_on_stop;
}

static void note_idle(const struct run_args *args)
{
    if (args->rank == 0 && args->several_hosts && args->gather && strcmp(args->gather, "map") == 0)
        report_note(&args->view->report, "--gather map has no effect: between hosts parameters are copied");
}

static int run(struct run_args *args, const char *path)
{
    struct fsdpck_error err = { 0 };
    struct train_config config;
    struct train_result done = { 0 };
    struct device_arg device;
    device_choose(args->device, &device);
    struct train_options opt = { .device = device.name,
                                 .module = device.module,
                                 .launched_local = args->local,
                                 .launched_nlocal = args->nlocal,
                                 .nranks = args->ranks,
                                 .nthreads = args->threads,
                                 .resume = args->resume,
                                 .patience_seconds = args->patience > 0 ? args->patience : 0,
                                 .on_start = show_start,
                                 .on_step = show_step,
                                 .note = show_note,
                                 .phase = show_phase,
                                 .ctx = args,
                                 .stop = &stop_signal,
                                 .saves = &save_signals,
                                 .lost = show_lost,
                                 .profile = args->profile,
                                 .launched_rank = args->rank,
                                 .launched_nranks = args->launched,
                                 .several_hosts = args->several_hosts,
                                 .copy_gathers = args->gather && strcmp(args->gather, "copy") == 0 };
    char model[PATH_MAX];
    note_idle(args);
    int rc = train_config_read(path, (const char *const *)args->sets.at, args->sets.count, &config, &err);
    if (!rc)
        rc = model_path_resolve(config.model, model, sizeof model, &err);
    if (!rc) {
        config.model = model;
        rc = train_run(&config, &opt, &done, &err);
    } else {
        done.said_elsewhere = !train_speaks(&opt, &err);
    }
    train_config_free(&config);
    report_clear(&args->view->report);
    if (rc && done.said_elsewhere)
        return fsdpck_error_exit_code(err.code);
    return !rc ? finish(args, path, &done) : report_error(&args->view->report, &err);
}

/* Reads the variables that Open MPI sets for each process it starts. */
static void find_launcher(struct run_args *args)
{
    const char *size = getenv("OMPI_COMM_WORLD_SIZE"), *rank = getenv("OMPI_COMM_WORLD_RANK");
    const char *here = getenv("OMPI_COMM_WORLD_LOCAL_SIZE"), *local = getenv("OMPI_COMM_WORLD_LOCAL_RANK");
    if (!size || !rank)
        return;
    args->launched = (uint32_t)strtoul(size, NULL, 10);
    args->rank = (uint32_t)strtoul(rank, NULL, 10);
    args->nlocal = here ? (uint32_t)strtoul(here, NULL, 10) : 0;
    args->local = local ? (uint32_t)strtoul(local, NULL, 10) : args->rank;
    args->several_hosts = args->nlocal != args->launched;
}

static int check_patience(const struct run_args *args)
{
    return args->patience == 0 ? usage_error("--patience: found 0, wanted a number of seconds above 0") : OPTIONS_OK;
}

/* Refuses other launchers, because they would start one whole run per rank. */
static int check_launcher(const struct run_args *args)
{
    static const char *const others[] = { "PMI_SIZE", "PMIX_RANK", "PMI_RANK" };
    if (args->launched && args->ranks != args->launched && args->ranks != 0)
        return usage_error("mpirun has started %u ranks: --ranks %u is for ranks without it", args->launched,
                           args->ranks);
    for (size_t i = 0; !args->launched && i < sizeof others / sizeof others[0]; i++) {
        if (getenv(others[i]))
            return usage_error(
                "this launcher is not supported (Open MPI's mpirun is); --ranks N starts the ranks of one host");
    }
    return OPTIONS_OK;
}

/* All ranks of a launcher find the same mistake in their command line, and only one should report it. So each captures
 * its stderr until it knows which one does. */
struct captured_stderr {
    int out, words; /* the real stderr, and the file that replaces it; -1: not captured */
};

static struct captured_stderr capture_stderr(const struct run_args *args)
{
    struct captured_stderr h = { -1, -1 };
    fflush(stderr);
    if (args->launched)
        h = (struct captured_stderr){ dup(STDERR_FILENO), memfd_create("words", MFD_CLOEXEC) };
    if (h.out >= 0 && h.words >= 0)
        dup2(h.words, STDERR_FILENO);
    return h;
}

static void print_captured(const struct captured_stderr *h, const struct run_args *args, int status)
{
    const struct train_options opt = { .launched_rank = args->rank,
                                       .launched_nranks = args->launched,
                                       .stop = &stop_signal };
    struct fsdpck_error err = { .code = FSDPCK_ERR_USAGE };
    char words[4096];
    fflush(stderr);
    if (h->out >= 0 && h->words >= 0) {
        ssize_t n = pread(h->words, words, sizeof words, 0);
        dup2(h->out, STDERR_FILENO);
        if (n > 0 && (status == OPTIONS_OK || train_speaks(&opt, &err)))
            fwrite(words, 1, (size_t)n, stderr);
    }
    if (h->out >= 0)
        close(h->out);
    if (h->words >= 0)
        close(h->words);
}

int cmd_run(const struct command *self, int argc, char **argv)
{
    struct run_args args = { .patience = -1 };
    const struct option_group groups[] = { { "Options", run_options, sizeof run_options / sizeof run_options[0],
                                             &args } };
    const struct command_line line = {
        .command = self,
        .positionals = "CONFIG.json",
        .groups = groups,
        .ngroups = 1,
        .notes = "Losses, gradient norms and weights have the same bits for any number of ranks and threads.\n"
                 "On Ctrl-C, SIGTERM or SIGUSR1, the run finishes the step, saves a checkpoint and ends. On "
                 "SIGUSR2, it saves a checkpoint and continues.\n"
                 "While it trains, it reads words from OUTPUT_DIR/control: `echo save > OUTPUT_DIR/control` saves a "
                 "checkpoint, `echo stop` acts as Ctrl-C, `echo sample` generates from sample.prompts.",
        .examples = "fsdptrain run lora.json --ranks 2\n"
                    "fsdptrain run lora.json --ranks 3 --set train.max_steps=20 --set log.every=5",
    };
    const char *at[MAX_POSITIONALS];
    find_launcher(&args);
    const struct captured_stderr words = capture_stderr(&args);
    int status = options_parse(&line, argc, argv, at);
    if (status == OPTIONS_OK)
        status = check_patience(&args);
    if (status == OPTIONS_OK)
        status = check_launcher(&args);
    print_captured(&words, &args, status);
    if (status == OPTIONS_OK && !(args.view = run_view_new(args.quiet)))
        status = usage_error("no memory");
    stop_on_user_signal(); /* mpirun forwards these signals, and kills soon after SIGTERM */
    if (status == OPTIONS_OK)
        status = run(&args, at[0]);
    options_free(&line);
    return status;
}
