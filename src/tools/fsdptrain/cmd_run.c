/* SPDX-License-Identifier: Apache-2.0 */
/* `fsdptrain run`: reads the config, runs the trainer, shows the steps. */
#include "commands.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <train/train.h>
#include <unistd.h>

#include "common/model_path.h"
#include "common/stop.h"
#include "common/text.h"
#include "cache_folder.h"
#include "captured_stderr.h"
#include "device_arg.h"
#include "hosts_run.h"
#include "launcher.h"
#include "run_record.h"
#include "run_view.h"

struct run_args {
    bool quiet, profile, gather_given;
    uint32_t ranks, threads, exit_on_stop, exit_on_loss, elastic, max_restarts;
    struct launch launch;
    const char *config, *resume, *device, *gather, *launcher, *hosts, *keeper, *loss_file;
    struct strings sets;
    double patience;
    struct run_view *view;
    struct run_record *record;
    char model[PATH_MAX]; /* resolved */
};

#define AT(field) offsetof(struct run_args, field)

static const struct option run_options[] = {
    { .name = "ranks",
      .type = OPTION_COUNT,
      .offset = AT(ranks),
      .value = "N",
      .help = "number of local processes that share the model",
      .computed = "1, or those of the launcher" },
    { .name = "launcher",
      .type = OPTION_CHOICE,
      .offset = AT(launcher),
      .value = "auto|local|mpirun|srun",
      .help = "what started this process as one rank of several; local: nothing did, it is a run of its own",
      .usual = "auto" },
    { .name = "threads",
      .type = OPTION_COUNT,
      .offset = AT(threads),
      .value = "T",
      .help = "threads of each rank",
      .computed = "the processors, divided among the ranks" },
    { .name = "resume",
      .type = OPTION_STRING,
      .offset = AT(resume),
      .value = "auto|never|DIR",
      .help = "checkpoint to resume from; auto takes the newest complete one in output_dir",
      .usual = "auto" },
    { .name = "set",
      .type = OPTION_STRINGS,
      .offset = AT(sets),
      .value = "KEY=VALUE",
      .help = "set a key of the config, as in train.max_steps=10 (may be repeated)" },
    { .name = "device",
      .type = OPTION_CHOICE,
      .offset = AT(device),
      .value = "cpu|cuda",
      .help = "device to compute on",
      .computed = "cuda where there is one" },
    { .name = "gather",
      .type = OPTION_CHOICE,
      .offset = AT(gather),
      .value = "map|copy",
      .help = "how ranks of one host read each other's parameters; between hosts they are copied",
      .usual = "map",
      .given = AT(gather_given) },
    { .name = "exit-on-stop",
      .type = OPTION_EXIT_CODE,
      .offset = AT(exit_on_stop),
      .value = "CODE",
      .help = "exit code after a stop by signal",
      .usual = "0" },
    { .name = "exit-on-loss",
      .type = OPTION_EXIT_CODE,
      .offset = AT(exit_on_loss),
      .value = "CODE",
      .help = "exit code if the run ends because a rank or a host was lost",
      .usual = "4" },
    { .name = "patience",
      .type = OPTION_NUMBER,
      .offset = AT(patience),
      .value = "SECONDS",
      .help = "how long a rank may stand still; then the run ends and names the rank",
      .usual = "600" },
    { .name = "elastic",
      .type = OPTION_COUNT,
      .offset = AT(elastic),
      .value = "MIN",
      .help = "if ranks are lost, go on with those that are left, at least MIN; for --ranks or --hosts" },
    { .name = "max-restarts",
      .type = OPTION_COUNT,
      .offset = AT(max_restarts),
      .value = "N",
      .help = "how often --elastic starts the ranks again; then a loss ends the run",
      .needs = "elastic",
      .usual = "3" },
    { .name = "hosts",
      .type = OPTION_STRING,
      .offset = AT(hosts),
      .value = "HOST:N,HOST:N",
      .help = "start N ranks on each host, by srun in a Slurm job and by mpirun elsewhere (or as --launcher says), and "
              "start them again if a host is lost",
      .needs = "elastic",
      .excludes = "ranks" },
    { .name = "keeper",
      .type = OPTION_STRING,
      .offset = AT(keeper),
      .value = "NAME",
      .help = "for a rank of a launcher: keep the copies of checkpoint.memory_every in the memory of `fsdptrain keep "
              "NAME` on each host, as --hosts does",
      .excludes = "ranks|hosts|elastic" },
    { .name = "loss-file",
      .type = OPTION_STRING,
      .offset = AT(loss_file),
      .value = "FILE",
      .help = "create this file if the run ends because a rank or a host was lost; --hosts gives it to the ranks",
      .excludes = "hosts" },
    { .name = "quiet", .letter = 'q', .type = OPTION_FLAG, .offset = AT(quiet), .help = "print no steps and no notes" },
    { .name = "profile",
      .type = OPTION_FLAG,
      .offset = AT(profile),
      .help = "show where the time of rank 0 goes, in a table at the end and in output_dir/profile.json" },
};

static void put_quoted(FILE *f, const char *argument)
{
    fputc('\'', f);
    text_print(f, argument);
    fputc('\'', f);
}

/* The command that resumes the run, with the options of this one. */
static void put_command(FILE *f, const struct run_args *args, const char *config)
{
    char command[64];
    launch_command(&args->launch, command, sizeof command);
    fprintf(f, "%sfsdptrain run ", command);
    put_quoted(f, config);
    if (args->ranks)
        fprintf(f, " --ranks %u", args->ranks);
    if (args->elastic)
        fprintf(f, " --elastic %u --max-restarts %u", args->elastic, args->max_restarts);
    if (args->device)
        fprintf(f, " --device %s", args->device);
    for (size_t i = 0; i < args->sets.count; i++) {
        fputs(" --set ", f);
        put_quoted(f, args->sets.at[i]);
    }
}

static void show_start(void *ctx, const struct train_start *start)
{
    struct run_args *args = ctx;
    char launcher[64], *command = NULL;
    size_t nbytes;
    FILE *f = open_memstream(&command, &nbytes);
    launch_command(&args->launch, launcher, sizeof launcher);
    if (f)
        put_command(f, args, args->config);
    if (f && fclose(f) == 0 && !run_record_start(args->record, start, launcher, command))
        report_note(&args->view->report, "events.jsonl in output_dir could not be written: it lacks this start");
    free(command);
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
    if (args->launch.rank != 0)
        return;
    report_note(&args->view->report, line);
    run_record_note(args->record, line);
}

static void keep_tenant_note(void *ctx, const struct train_config *config, const char *line)
{
    (void)ctx;
    run_record_tenant_note(config, line);
}

static void show_phase(void *ctx, enum train_phase phase, uint64_t done, uint64_t total)
{
    struct run_args *args = ctx;
    if (args->launch.rank == 0)
        run_view_phase(args->view, phase, done, total);
}

static void put_line(const char *title, const char *path)
{
    fputs(title, stdout);
    text_print(stdout, path);
    putchar('\n');
}

/* Prints the last line on stdout; messages on stderr follow it. */
static void show_done(const struct train_result *done)
{
    if (done->ndone > done->nsteps)
        printf("nothing to do: %llu step%s done before, and the config asks for %llu", (unsigned long long)done->ndone,
               done->ndone == 1 ? " was" : "s were", (unsigned long long)done->nsteps);
    else
        printf("%llu of %llu step%s done", (unsigned long long)done->ndone, (unsigned long long)done->nsteps,
               fsdpck_plural(done->nsteps));
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

static void show_tenant_end(void *ctx, const char *name, const struct train_config *config,
                            const struct train_result *done)
{
    (void)ctx;
    run_record_tenant_end(config, done);
    text_print(stdout, name);
    fputs(done->failure ? ": ended by an error, " : ": ", stdout);
    show_done(done);
}

/* Of the run that this process starts. */
static int reread(void *ctx, struct train_config *out, struct fsdpck_error *err)
{
    struct run_args *args = ctx;
    char model[PATH_MAX];
    int rc = train_config_read(args->config, (const char *const *)args->sets.at, args->sets.count, out, err);
    if (rc)
        return rc;
    rc = model_path_resolve(out->model, model, sizeof model, err);
    if (!rc && strcmp(model, args->model) != 0)
        rc = fsdpck_error_set(err, FSDPCK_ERR_USAGE, args->config, "key 'model' is another one than at the start");
    if (!rc)
        rc = train_config_set_model(out, args->model, err);
    if (rc)
        train_config_free(out);
    return rc;
}

static void show_lost(void *ctx, const struct fsdpck_error *err)
{
    struct run_args *args = ctx;
    report_error(&args->view->report, err);
}

static void show_resume(const struct run_args *args, const struct train_result *done)
{
    fputs("fsdptrain: stopped", stderr);
    if (!done->ntenants)
        fprintf(stderr, " after step %llu", (unsigned long long)done->ndone);
    fputs("; to go on: ", stderr);
    put_command(stderr, args, args->config);
    fputc('\n', stderr);
}

/* Each tenant has had its line. */
static int finish_tenants(const struct run_args *args, const struct train_result *done)
{
    printf("%zu of %zu tenants finished", done->nfinished, done->ntenants);
    if (done->nfailed)
        printf(", %zu ended by an error", done->nfailed);
    putchar('\n');
    fflush(stdout);
    if (done->nstopped)
        show_resume(args, done);
    if (done->failure)
        return fsdpck_error_exit_code(done->failure);
    return done->nstopped ? (int)args->exit_on_stop : EXIT_DONE;
}

static int finish(const struct run_args *args, const struct train_result *done)
{
    if (args->launch.rank !=
        0) /* rank 0 reports for all ranks; a launcher ends it if another rank exits with a failure */
        return EXIT_DONE;
    if (done->ntenants)
        return finish_tenants(args, done);
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
    show_resume(args, done);
    return (int)args->exit_on_stop;
}

static void note_idle(const struct run_args *args)
{
    if (args->launch.rank == 0 && launch_spans_hosts(&args->launch) && args->gather_given &&
        strcmp(args->gather, "map") == 0)
        report_note(&args->view->report, "--gather map has no effect: between hosts parameters are copied");
}

/* A launcher that waits for a lost host does not end with its ranks: who has started it is told by a file. */
static void tell_loss(const struct run_args *args)
{
    const int fd = args->loss_file ? open(args->loss_file, O_WRONLY | O_CREAT | O_CLOEXEC, 0666) : -1;
    if (fd >= 0)
        close(fd);
}

static int run(struct run_args *args)
{
    struct fsdpck_error err = { 0 };
    struct train_config config;
    struct train_result done = { 0 };
    struct device_arg device;
    char cache[PATH_MAX];
    device_choose(args->device, &device);
    struct train_options opt = { .device = device.name,
                                 .module = device.module,
                                 .launched_local = args->launch.local,
                                 .launched_nlocal = args->launch.nlocal,
                                 .nranks = args->ranks,
                                 .nthreads = args->threads,
                                 .resume = args->resume,
                                 .patience_seconds = args->patience,
                                 .on_start = show_start,
                                 .on_step = show_step,
                                 .on_tenant_end = show_tenant_end,
                                 .reread = args->launch.nranks ? NULL : reread,
                                 .note = show_note,
                                 .on_tenant_note = keep_tenant_note,
                                 .phase = show_phase,
                                 .ctx = args,
                                 .stop = &stop_signal,
                                 .saves = &save_signals,
                                 .lost = show_lost,
                                 .profile = args->profile,
                                 .launched_rank = args->launch.rank,
                                 .launched_nranks = args->launch.nranks,
                                 .dies_of_sigterm = launch_dies_of_sigterm(&args->launch),
                                 .hanging_launcher = launch_hanging_processes(&args->launch),
                                 .cache = cache_folder(cache) ? cache : NULL,
                                 .several_hosts = launch_spans_hosts(&args->launch),
                                 .elastic_nranks = args->elastic,
                                 .max_restarts = args->max_restarts,
                                 .keeper = args->keeper,
                                 .copy_gathers = strcmp(args->gather, "copy") == 0 };
    note_idle(args);
    int rc = train_config_read(args->config, (const char *const *)args->sets.at, args->sets.count, &config, &err);
    if (!rc)
        rc = model_path_resolve(config.model, args->model, sizeof args->model, &err);
    if (!rc)
        rc = train_config_set_model(&config, args->model, &err);
    if (!rc) {
        rc = train_run(&config, &opt, &done, &err);
    } else {
        done.reported_elsewhere = !train_reports_error(&opt, &err);
    }
    train_config_free(&config);
    report_clear(&args->view->report);
    run_record_end(args->record, &done, &err);
    if (!rc)
        return finish(args, &done);
    const int code =
        done.reported_elsewhere ? fsdpck_error_exit_code(err.code) : report_error(&args->view->report, &err);
    if (!done.lost)
        return code;
    tell_loss(args);
    return (int)args->exit_on_loss;
}

static int check_patience(const struct run_args *args)
{
    return args->patience == 0 ? usage_error("--patience: found 0, wanted a number of seconds above 0") : OPTIONS_OK;
}

static int check_elastic(const struct run_args *args)
{
    const uint32_t ranks = args->ranks ? args->ranks : 1;
    if (!args->elastic)
        return OPTIONS_OK;
    if (args->launch.nranks)
        return usage_error(
            "--elastic is for ranks that --ranks or --hosts starts; %u ranks were started by a launcher, "
            "which ends them all if it loses one",
            args->launch.nranks);
    if (!args->hosts && args->elastic >= ranks)
        return usage_error("--elastic: found %u of %u rank%s, wanted a smaller number than --ranks", args->elastic,
                           ranks, fsdpck_plural(ranks));
    return OPTIONS_OK;
}

/* Starts a launcher instead of ranks. */
static int run_on_hosts(const struct run_args *args, int argc, char **argv)
{
    const struct hosts_args hosts = { .hosts = args->hosts,
                                      .launcher = args->launcher,
                                      .resume = args->resume,
                                      .config = args->config,
                                      .sets = &args->sets,
                                      .patience = args->patience,
                                      .least = args->elastic,
                                      .max_restarts = args->max_restarts,
                                      .exit_on_stop = args->exit_on_stop,
                                      .exit_on_loss = args->exit_on_loss };
    return hosts_run(&hosts, argc, argv, &args->view->report);
}

int cmd_run(const struct command *self, int argc, char **argv)
{
    struct run_args args = { 0 };
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
                 "checkpoint, `echo stop` acts as Ctrl-C, `echo sample` generates from sample.prompts.\n"
                 "Open MPI or Slurm start the ranks on several hosts: mpirun -n 4 --bind-to none fsdptrain run "
                 "CONFIG.json, or srun --mpi=pmix -n 4 fsdptrain run CONFIG.json. OUTPUT_DIR must then be a folder "
                 "that all hosts see.",
        .files = "OUTPUT_DIR/adapter/: The LoRA adapter, as PEFT loads it.\n"
                 "OUTPUT_DIR/model/: After full fine-tuning, the Hugging Face folder of the model.\n"
                 "OUTPUT_DIR/checkpoints/step-N/: Checkpoints; fsdpck(5) describes them.\n"
                 "OUTPUT_DIR/metrics.jsonl: One JSON object for each step.\n"
                 "OUTPUT_DIR/events.jsonl: One JSON object for each start, note and end of the run.\n"
                 "OUTPUT_DIR/events.out.tfevents.*: With log.report_to: what TensorBoard reads.\n"
                 "OUTPUT_DIR/summary.json: Whether the run has finished, its last step and its last checkpoint.\n"
                 "OUTPUT_DIR/samples/: The samples of sample.prompts.\n"
                 "OUTPUT_DIR/cache/: The tokenized data.\n"
                 "OUTPUT_DIR/control: Words to the run; see above.\n"
                 "OUTPUT_DIR/tenants/NAME/: With tenants in the config: all of the above for each.",
        .examples = "fsdptrain run lora.json --ranks 2\n"
                    "fsdptrain run lora.json --ranks 3 --set train.max_steps=20 --set log.every=5",
    };
    const char *at[MAX_POSITIONALS];
    launch_find(&args.launch);
    const struct captured_stderr words = capture_stderr(&args.launch);
    int status = options_parse(&line, argc, argv, at);
    if (status == OPTIONS_OK)
        status = check_patience(&args);
    if (status == OPTIONS_OK && !args.hosts)
        status = launch_choose(&args.launch, args.launcher, args.ranks);
    if (status == OPTIONS_OK)
        status = check_elastic(&args);
    print_captured(&words, &args.launch, status);
    if (status == OPTIONS_OK && (!(args.view = run_view_new(args.quiet)) || !(args.record = run_record_new())))
        status = usage_error("no memory");
    args.config = status == OPTIONS_OK ? at[0] : NULL;
    stop_on_user_signal(); /* launchers forward these signals, and mpirun kills soon after SIGTERM */
    if (args.launch.by)
        stop_on_repeated_signals();
    if (status == OPTIONS_OK)
        status = args.hosts ? run_on_hosts(&args, argc, argv) : run(&args);
    options_free(&line);
    return status;
}
