/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks end with the launcher when a host is lost, and go on from a copy in memory or the last checkpoint when it
 * starts them again. An exit code of their own (--exit-on-loss) tells a loss from other failures. */
#include "hosts_run.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <train/train.h>
#include <unistd.h>

#include "common/stop.h"
#include "common/tool.h"
#include "common/usage.h"
#include "common/values.h"
#include "hosts_command.h"
#include "hosts_list.h"
#include "hosts_loss.h"
#include "hosts_memory.h"

/* STOPPED and LOST: exit codes of the ranks that no other end of theirs has. */
enum { POLL_MS = 100, NO_LAUNCHER = 127, STOPPED = 78, LOST = 79, MOST_ASK_SECONDS = 60, END_SECONDS = 6 };

struct hosts_run {
    const struct hosts_args *args;
    const struct hosts_starter *by;
    struct hosts_list hosts;
    struct hosts_memory *memory; /* NULL without checkpoint.memory_every */
    struct report *report;
    char program[PATH_MAX]; /* this one, on all hosts */
    char metrics[PATH_MAX]; /* the file that grows with every step */
    struct hosts_loss loss;
    int argc;
    char **argv;
    uint32_t nrestarts;
    bool again;    /* the ranks were started before */
    bool progress; /* the ranks have done a step since their start */
    bool returns;  /* a host answers again: the ranks save and end */
    off_t metrics_nbytes;
    double last_step;   /* time when metrics grew last */
    double lost_after;  /* last_step before a loss from which the run has not gone on; 0: none */
    double ask_at;      /* time when hosts that do not answer are asked next */
    double ask_seconds; /* after that */
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void __attribute__((format(printf, 2, 3))) note(const struct hosts_run *run, const char *format, ...)
{
    char line[600];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    report_note(run->report, line);
}

/* True if the ranks do not get this option. *next: its value is the next word. */
static bool is_kept_back(const struct hosts_run *run, const char *word, bool *next)
{
    const size_t n = strcspn(word, "=");
    char name[24];
    snprintf(name, sizeof name, "%.*s", (int)n, word);
    *next = !word[n];
    return value_choice(name, "--hosts|--launcher|--elastic|--max-restarts|--exit-on-loss|--exit-on-stop") ||
           (run->again && strcmp(name, "--resume") == 0); /* "never" would refuse this run's own checkpoints */
}

/* The command line of the launcher and the ranks, up to NULL. */
static bool put_command(const struct hosts_run *run, struct strings *words)
{
    bool ok = run->by->put(words, &run->hosts) && hosts_put(words, run->program) && hosts_put(words, "run") &&
              hosts_put_number(words, "--exit-on-loss", LOST) && hosts_put_number(words, "--exit-on-stop", STOPPED) &&
              hosts_put(words, "--loss-file") && hosts_put(words, run->loss.path);
    if (run->memory)
        ok = ok && hosts_put(words, "--keeper") && hosts_put(words, hosts_memory_name(run->memory));
    for (int i = 0; i < run->argc && ok; i++) {
        bool next;
        if (!is_kept_back(run, run->argv[i], &next))
            ok = hosts_put(words, run->argv[i]);
        else
            i += next;
    }
    return ok;
}

/* The launcher is in a process group of its own, as Ctrl-C would make it kill the ranks before they save. */
static pid_t start(const struct hosts_run *run)
{
    struct strings words = { 0 };
    char **command = NULL;
    pid_t pid = -1;
    if (put_command(run, &words) && (command = calloc(words.count + 1, sizeof *command))) {
        memcpy(command, words.at, words.count * sizeof *command);
        pid = fork();
    }
    if (pid == 0) {
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        hosts_limit_silence(run->args->patience);
        if (!freopen("/dev/null", "r", stdin))
            _exit(NO_LAUNCHER);
        execvp(command[0], command);
        fprintf(stderr, "%s: '%s' could not be started: %s\n", tool_name, command[0], strerror(errno));
        _exit(NO_LAUNCHER);
    }
    free(command);
    strings_free(&words);
    return pid;
}

static off_t metrics_nbytes(const struct hosts_run *run)
{
    struct stat s;
    return stat(run->metrics, &s) == 0 ? s.st_size : 0;
}

static void look_at_metrics(struct hosts_run *run)
{
    const off_t nbytes = metrics_nbytes(run);
    if (nbytes > run->metrics_nbytes) {
        run->last_step = now();
        if (run->lost_after > 0)
            note(run, "the next step was done %.1f s after the last one before the loss",
                 run->last_step - run->lost_after);
        run->lost_after = 0;
        run->progress = true;
    }
    run->metrics_nbytes = nbytes;
}

/* Asks a host that does not answer, without waiting. Returns true if it answers again. */
static bool look_at_host(struct hosts_run *run, struct host *h, bool ask)
{
    if (h->answers || host_is_asked(h))
        return false;
    if (h->answers)
        note(run, "host '%s' answers again: the run saves, and starts again with it", h->name);
    else if (ask)
        host_ask(h, run->by->ask, false);
    return h->answers;
}

/* Asks less and less often. The ranks are ended only after they have done a step, so that the run gets on even if a
 * host comes and goes. */
static void look_for_returns(struct hosts_run *run, pid_t launcher)
{
    const bool ask = now() >= run->ask_at;
    if (run->returns || !run->progress)
        return;
    for (size_t i = 0; i < run->hosts.count; i++)
        run->returns |= look_at_host(run, &run->hosts.at[i], ask);
    if (run->returns)
        kill(launcher, SIGUSR1);
    if (!ask)
        return;
    run->ask_seconds = run->ask_seconds < MOST_ASK_SECONDS / 2 ? 2 * run->ask_seconds : MOST_ASK_SECONDS;
    run->ask_at = now() + run->ask_seconds;
}

/* mpirun may wait for a lost host for ever. */
static void look_for_loss(struct hosts_run *run, pid_t launcher)
{
    if (run->loss.told_at <= 0 && access(run->loss.path, F_OK) == 0)
        run->loss.told_at = now();
    else if (run->loss.told_at > 0 && now() > run->loss.told_at + END_SECONDS)
        train_end_launcher(launcher);
}

/* Launchers pass SIGUSR1 and SIGUSR2 on to the ranks. Returns the exit code of the launcher. */
static int watch(struct hosts_run *run, pid_t launcher)
{
    int status = 0, saves = save_signals;
    bool stopped = false;
    run->returns = run->progress = false;
    run->ask_seconds = 1;
    run->ask_at = now() + run->ask_seconds;
    while (waitpid(launcher, &status, WNOHANG) == 0) {
        if (stop_signal && !stopped)
            kill(launcher, SIGUSR1);
        stopped = stop_signal != 0;
        for (; saves != save_signals; saves++)
            kill(launcher, SIGUSR2);
        look_at_metrics(run);
        look_for_loss(run, launcher);
        if (!stopped)
            look_for_returns(run, launcher);
        hosts_memory_beat(run->memory);
        nanosleep(&(struct timespec){ 0, POLL_MS * 1000000L }, NULL);
    }
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static bool is_loss(int code)
{
    return code > EXIT_SYSTEM && code != NO_LAUNCHER && code != STOPPED;
}

/* The launcher is not asked about its own host. */
static void ask_hosts(struct hosts_run *run, bool says)
{
    hosts_ask(&run->hosts, run->by->ask, says);
    for (size_t i = 0; i < run->hosts.count; i++) {
        struct host *h = &run->hosts.at[i];
        h->answers |= host_is_this(h);
        if (!h->answers)
            note(run, "host '%s' does not answer", h->name);
    }
}

static int __attribute__((format(printf, 1, 2))) give_up(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s: ", tool_name);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return EXIT_SYSTEM;
}

/* "16 of 24 ranks on 2 hosts" */
static const char *describe(const struct hosts_run *run, uint32_t all, char text[80])
{
    const uint32_t nhosts = hosts_nanswers(&run->hosts);
    snprintf(text, 80, "%u of %u ranks on %u host%s", hosts_nranks(&run->hosts), all, nhosts, fsdpck_plural(nhosts));
    return text;
}

/* Prints why the ranks are not started, if too few hosts answer. */
static int check_hosts(const struct hosts_run *run, const char *why, uint32_t all)
{
    const uint32_t left = hosts_nranks(&run->hosts), least = run->args->least;
    return left >= least ? EXIT_DONE
                         : give_up("%s%sthe hosts that answer have %u of %u ranks, and --elastic wants at least %u",
                                   why, *why ? "; " : "", left, all, least);
}

/* Prepares the next start, unless a stop is requested, or prints why there is none. all: ranks of all hosts. */
static int recover(struct hosts_run *run, bool lost, uint32_t all)
{
    const struct hosts_args *args = run->args;
    const char *why = lost ? "ranks were lost" : "the state was not saved";
    char ranks[80];
    if (run->nrestarts == args->max_restarts)
        return give_up("%s; the ranks were started again %u time%s before, as often as --max-restarts allows", why,
                       run->nrestarts, fsdpck_plural(run->nrestarts));
    ask_hosts(run, false);
    if (stop_signal)
        return EXIT_DONE;
    const int status = check_hosts(run, why, all);
    if (status != EXIT_DONE)
        return status;
    run->nrestarts++;
    if (run->last_step > 0)
        run->lost_after = run->last_step;
    note(run,
         lost ? "ranks were lost; going on with %s (restart %u of at most %u)"
              : "the state was not saved; going on with %s (restart %u of at most %u)",
         describe(run, all, ranks), run->nrestarts, args->max_restarts);
    return EXIT_DONE;
}

/* A stop while no rank runs. */
static int stopped_between(const struct hosts_run *run)
{
    fprintf(stderr,
            "%s: stopped before the ranks started%s; to go on from the last checkpoint: run the same command again\n",
            tool_name, run->again ? " again" : "");
    return (int)run->args->exit_on_stop;
}

/* Starts the ranks, and waits for their end. Returns the exit code of the launcher, or -1 if there is none. */
static int run_ranks(struct hosts_run *run)
{
    hosts_memory_start(run->memory, &run->hosts, run->by->ask, run->program, run->report);
    if (stop_signal)
        return STOPPED;
    hosts_loss_next(&run->loss);
    const pid_t launcher = start(run);
    run->again = true;
    return launcher < 0 ? -1 : watch(run, launcher);
}

/* The hosts that answer, before the first start. */
static int begin(struct hosts_run *run, uint32_t all)
{
    char ranks[80];
    run->metrics_nbytes = metrics_nbytes(run); /* those of the run that this one resumes */
    ask_hosts(run, true);
    if (stop_signal)
        return EXIT_DONE;
    const int status = check_hosts(run, "", all);
    if (status == EXIT_DONE && hosts_nranks(&run->hosts) < all)
        note(run, "starting with %s", describe(run, all, ranks));
    return status;
}

/* True if the ranks can go on after such an end. A save that failed while they ended for a host that has come back is
 * none of their own failures. */
static bool is_end_to_recover(const struct hosts_run *run, int code)
{
    return is_loss(code) || (run->returns && code == EXIT_SYSTEM);
}

static int go(struct hosts_run *run)
{
    const uint32_t all = hosts_nranks(&run->hosts);
    char ranks[80];
    if (begin(run, all) != EXIT_DONE)
        return (int)run->args->exit_on_loss;
    for (;;) {
        if (stop_signal)
            return stopped_between(run);
        const int code = run_ranks(run);
        if (code < 0)
            return give_up("there is no memory or process for a launcher");
        if (code == STOPPED && run->returns && !stop_signal)
            note(run, "going on with %s", describe(run, all, ranks));
        else if (!is_end_to_recover(run, code))
            return code == STOPPED ? (int)run->args->exit_on_stop : code == NO_LAUNCHER ? EXIT_SYSTEM : code;
        else if (stop_signal || recover(run, is_loss(code), all) != EXIT_DONE)
            return (int)run->args->exit_on_loss;
    }
}

static int check(const struct hosts_run *run)
{
    const struct hosts_list *hosts = &run->hosts;
    const uint32_t all = hosts_nranks(hosts);
    if (strcmp(run->args->launcher, "local") == 0)
        return usage_error("--launcher local has no effect with --hosts");
    if (run->args->least >= all)
        return usage_error("--elastic: found %u of %u ranks, wanted a smaller number than those of --hosts",
                           run->args->least, all);
    if (strcmp(run->args->resume, "auto") != 0 && strcmp(run->args->resume, "never") != 0)
        return usage_error("--resume: found '%s', wanted auto or never: with --hosts, a restart takes the newest "
                           "checkpoint in output_dir",
                           run->args->resume);
    for (size_t i = 1; i < hosts->count && run->by->same_ranks; i++)
        if (hosts->at[i].nranks != hosts->at[0].nranks)
            return usage_error("--hosts: '%s' has %u rank%s and '%s' %u, wanted the same number for srun",
                               hosts->at[0].name, hosts->at[0].nranks, fsdpck_plural(hosts->at[0].nranks),
                               hosts->at[i].name, hosts->at[i].nranks);
    return OPTIONS_OK;
}

/* The ranks check the rest of the config. */
static int read_config(struct hosts_run *run)
{
    const struct hosts_args *args = run->args;
    struct train_config config;
    struct fsdpck_error err = { 0 };
    int rc = train_config_read(args->config, (const char *const *)args->sets->at, args->sets->count, &config, &err);
    if (!rc && config.checkpoint.memory_every)
        rc = hosts_memory_new(run->hosts.count, &run->memory, &err);
    if (!rc) {
        snprintf(run->metrics, sizeof run->metrics, "%s/%s", config.output_dir, config.log.jsonl);
        hosts_loss_in(config.output_dir, &run->loss);
    }
    train_config_free(&config);
    return rc ? report_error(run->report, &err) : EXIT_DONE;
}

int hosts_run(const struct hosts_args *args, int argc, char **argv, struct report *report)
{
    const bool slurm =
        strcmp(args->launcher, "srun") == 0 || (strcmp(args->launcher, "auto") == 0 && getenv("SLURM_JOB_ID"));
    struct hosts_run run = {
        .args = args, .by = hosts_starter_of(slurm), .report = report, .argc = argc, .argv = argv
    };
    if (readlink("/proc/self/exe", run.program, sizeof run.program - 1) < 0)
        snprintf(run.program, sizeof run.program, "%s", tool_name);
    int status = hosts_list_read(args->hosts, &run.hosts);
    if (status == OPTIONS_OK)
        status = check(&run);
    if (status == OPTIONS_OK)
        status = read_config(&run);
    signal(SIGCHLD, SIG_DFL); /* if the caller had it ignored, the launcher's exit code would be lost */
    if (status == EXIT_DONE)
        status = go(&run);
    hosts_loss_forget(&run.loss);
    hosts_memory_free(run.memory);
    hosts_list_free(&run.hosts);
    return status;
}
