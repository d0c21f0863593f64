/* SPDX-License-Identifier: Apache-2.0 */
/* The supervisor starts a process for each rank, watches the processes, and reports how they ended. If a rank dies or
 * stalls, the supervisor names it and ends the others; every wait is bounded. Under a launcher it has one rank, the one
 * that the launcher started, and reports for it. */
#include "run/supervise.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "comm/comm_local.h"
#include "comm/comm_mpi.h"
#include "rank/files.h"
#include "run/loop.h"
#include "state/whole.h"

enum { GRACE_MS = 3000, POLL_MS = 20, LAUNCHED_GRACE = 12, TELL_MS = 10000, SPEAK_MS = 20000 };

/* Data shared by the processes. world: NULL under a launcher. */
struct supervisor {
    struct job *job;
    struct job_status *job_status;
    struct comm_world *world;
    const char *resume;
    pid_t supervisor;
    uint32_t n; /* number of ranks of this supervisor */
};

struct child {
    pid_t pid; /* 0: ended */
    uint64_t beats;
    double seen; /* time of the last change of beats */
};

static void sleep_ms(long ms)
{
    const struct timespec t = { ms / 1000, ms % 1000 * 1000000 };
    nanosleep(&t, NULL);
}

/* Hints how to continue after a rank was lost. */
static void hint_way_on(const struct job *job, struct fsdpck_error *err)
{
    const char *how = job->opt->resume;
    struct fsdpck_error none = { 0 };
    uint64_t *steps;
    size_t count = 0;
    if (files_list_checkpoints(job->config, &steps, &count, &none) == 0 && count)
        fsdpck_error_hint(err,
                          "the checkpoint of step %llu is committed: run the same command again%s, with any number of "
                          "ranks, to go on from it",
                          (unsigned long long)steps[0], how && strcmp(how, "auto") != 0 ? " with --resume auto" : "");
    else
        fsdpck_error_hint(err, "no checkpoint was committed yet: the same command begins anew");
    free(steps);
}

/* If its supervisor was killed, the rank reports that itself and ends: under a launcher, other ranks wait for it. */
static void *watch_supervisor(void *arg)
{
    const struct supervisor *f = arg;
    struct fsdpck_error err = { 0 };
    while (getppid() == f->supervisor)
        sleep_ms(POLL_MS);
    job_status_lost(f->job_status, f->job->first, "was killed");
    bool said = job_status_error(f->job_status, &err);
    hint_way_on(f->job, &err);
    if (said && f->job->opt->lost)
        f->job->opt->lost(f->job->opt->ctx, &err);
    _exit(4);
}

static int tie_to_supervisor(struct supervisor *f, struct fsdpck_error *err)
{
    pthread_t thread;
    if (f->world)
        return prctl(PR_SET_PDEATHSIG, SIGKILL) ? fsdpck_error_sys(err, errno, NULL, "prctl") : 0;
    int failed = pthread_create(&thread, NULL, watch_supervisor, f);
    if (!failed)
        pthread_detach(thread);
    return failed ? fsdpck_error_sys(err, failed, NULL, "pthread_create") : 0;
}

static int join(const struct supervisor *f, uint32_t number, struct comm **comm, struct fsdpck_error *err)
{
    if (f->world)
        return comm_world_join(f->world, number, comm, err);
    return comm_mpi_join(f->job_status, number, f->job->nranks, job_comm_sizes(f->job), comm, err);
}

static struct job_status *signalled_status; /* status of the rank that runs in this process */

static void on_signal(int number)
{
    if (number == SIGUSR2)
        job_status_ask_save(signalled_status);
    else
        job_status_stop(signalled_status);
}

/* A signal to a rank means the whole run, like a signal to its supervisor: schedulers signal every process. A signal
 * that was ignored before (nohup) remains ignored. */
static void take_signals(struct job_status *job_status)
{
    static const int all[] = { SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 };
    const struct sigaction tell = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
    struct sigaction old;
    signalled_status = job_status;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (sigaction(all[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            sigaction(all[i], &tell, NULL);
    }
}

/* Runs a rank in its own process, then exits. */
_Noreturn static void run_rank(struct supervisor *f, uint32_t number)
{
    struct fsdpck_error err = { 0 };
    struct comm *comm = NULL;
    struct rank *r = NULL;
    struct loop_notes scratch = { 0 };
    take_signals(f->job_status);
    signal(SIGXFSZ, SIG_IGN); /* report a file size limit as EFBIG; mpirun does not let ranks inherit SIG_IGN */
    int rc = tie_to_supervisor(f, &err);
    if (getppid() != f->supervisor)
        _exit(4);
    if (number != 0)
        f->job->fs.note = NULL;
    if (!rc)
        rc = join(f, number, &comm, &err);
    if (!rc)
        rc = rank_open(f->job, comm, &r, &err);
    if (!rc)
        rc = loop_run(r, f->resume,
                      number == f->job->first ? (struct loop_notes *)job_status_notes(f->job_status) : &scratch, &err);
    if (rc)
        rank_fail(f->job, f->job_status, &err);
    if (rc && comm && !f->world)
        comm_mpi_abandon(comm);
    rank_close(r);
    if (comm && (f->world || !rc)) /* after a failure, MPI would wait for the others */
        comm->ops->free(comm);
    _exit(rc ? 1 : 0);
}

static void kill_all(const struct child *children, uint32_t n, int signal_number)
{
    for (uint32_t i = 0; i < n; i++) {
        if (children[i].pid > 0)
            kill(children[i].pid, signal_number);
    }
}

/* Reports a rank that failed to the others, unless it has recorded an error itself. */
static void child_ended(const struct supervisor *f, uint32_t number, int status, bool *failed)
{
    char how[80];
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return;
    *failed = true;
    if (WIFSIGNALED(status))
        snprintf(how, sizeof how, "was killed by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        snprintf(how, sizeof how, "ended with code %d", WEXITSTATUS(status));
    job_status_lost(f->job_status, number, how);
}

static double now(void)
{
    return 1e-9 * (double)comm_now_ns();
}

/* Ranks that wait for each other still beat. A rank without a heartbeat is stopped, or stuck in the kernel. */
static bool is_stalled(const struct supervisor *f, uint32_t number, struct child *c)
{
    uint64_t beats = job_status_heartbeats(f->job_status, number);
    char how[80];
    if (beats != c->beats || c->seen == 0) {
        c->beats = beats;
        c->seen = now();
    }
    if (now() - c->seen <= job_status_patience(f->job_status) +
                               (f->world ? 1 : LAUNCHED_GRACE)) /* under a launcher, the other ranks report first */
        return false;
    snprintf(how, sizeof how, "has given no sign of life for %.0f s", now() - c->seen);
    job_status_lost(f->job_status, number, how);
    return true;
}

static uint32_t look_at_children(const struct supervisor *f, struct child *children, bool *failed)
{
    uint32_t left = 0;
    int status;
    for (uint32_t i = 0; i < f->n; i++) {
        if (children[i].pid > 0 && waitpid(children[i].pid, &status, WNOHANG) > 0) {
            children[i].pid = 0;
            child_ended(f, f->job->first + i, status, failed);
        }
        if (children[i].pid > 0) {
            left++;
            *failed |= is_stalled(f, f->job->first + i, &children[i]);
        }
    }
    return left;
}

/* Prints the note once and at once: a step may take long, and a user who sees nothing signals again, which ends the run
 * without a save. On SIGTERM under mpirun, prints nothing, because mpirun kills the ranks before a step can end. */
static void tell_stop(const struct supervisor *f, bool *noted)
{
    const struct train_options *opt = f->job->opt;
    const bool kills = opt->launched_nranks && opt->stop && *opt->stop == SIGTERM;
    if (!*noted && f->job->first == 0 && opt->note && !kills)
        opt->note(opt->ctx,
                  "stopping: the step is finished and saved first; a second signal ends the run at once, unsaved");
    *noted = true;
}

/* Watches until every process has ended. */
static bool watch(const struct supervisor *f, struct child *children)
{
    const volatile int *stop = f->job->opt->stop;
    bool failed = false, noted = false;
    for (long waited_ms = 0; look_at_children(f, children, &failed) > 0;) {
        if (stop && *stop)
            job_status_stop(f->job_status);
        if (job_status_stopping(f->job_status) && !failed && !job_status_failed(f->job_status))
            tell_stop(f, &noted);
        if (f->job->opt->saves)
            job_status_ask_saves(f->job_status, (uint64_t)*f->job->opt->saves);
        if ((failed || job_status_failed(f->job_status)) &&
            (waited_ms += POLL_MS) > GRACE_MS + (f->world ? 0 : 1000 * LAUNCHED_GRACE))
            kill_all(children, f->n, SIGKILL);
        sleep_ms(POLL_MS);
    }
    return failed;
}

static int start(struct supervisor *f, struct child *children, struct fsdpck_error *err)
{
    f->supervisor = getpid();
    for (uint32_t i = 0; i < f->n; i++) {
        pid_t pid = fork();
        if (pid == 0)
            run_rank(f, f->job->first + i);
        if (pid < 0) {
            kill_all(children, i, SIGKILL);
            return fsdpck_error_sys(err, errno, NULL, "fork");
        }
        children[i].pid = pid;
    }
    return 0;
}

/* mpirun ends all processes when the first one fails. So this process waits until the rank that prints the error has
 * ended and mpirun sends SIGTERM. */
static void await_speaker(const struct train_options *opt)
{
    for (long ms = 0; ms < SPEAK_MS && !(opt->stop && *opt->stop); ms += POLL_MS)
        sleep_ms(POLL_MS);
}

static void take_result(const struct supervisor *f, struct train_result *result)
{
    const struct loop_notes *notes = (struct loop_notes *)job_status_notes(f->job_status);
    struct fsdpck_error none = { 0 };
    result->nsteps = f->job->nsteps;
    result->ndone = notes->ndone;
    result->stopped = notes->stopped;
    result->save_failed = notes->save_failed;
    result->nskipped = notes->skipped;
    result->ntrailing = notes->trailing;
    result->diverged = loop_diverged(notes, f->job->nsteps);
    const bool finished = !result->diverged && notes->ndone >= f->job->nsteps && notes->saved == notes->ndone;
    if (finished && f->job->config->lora.enabled && f->job->config->checkpoint.export_adapter)
        snprintf(result->adapter, sizeof result->adapter, "%s/adapter", f->job->config->output_dir);
    if (finished && !whole_path(f->job->config, result->model))
        result->model[0] = '\0';
    if (notes->saved)
        files_checkpoint_path(f->job->config, notes->saved, result->checkpoint, &none);
}

int supervise(struct job *job, const char *resume, struct train_result *result, struct fsdpck_error *err)
{
    double patience = job->opt->patience_seconds > 0 ? job->opt->patience_seconds : 600;
    struct supervisor f = { .job = job, .resume = resume, .n = job->opt->launched_nranks ? 1 : job->nranks };
    struct child *children = calloc(f.n, sizeof *children);
    int rc = children ? 0 : fsdpck_error_nomem(err, f.n * sizeof *children);
    if (!rc)
        rc = job_status_new(job->first, f.n, job->nranks, patience, &f.job_status, err);
    if (!rc && !job->opt->launched_nranks)
        rc = comm_world_new(job->nranks, job_comm_sizes(job), f.job_status, &f.world, err);
    if (!rc) {
        rc = start(&f, children, err);
        bool failed = watch(&f, children);
        if (!rc && failed)
            rc = job_status_error(f.job_status, err)
                     ? err->code
                     : fsdpck_error_set(err, FSDPCK_ERR_IO, NULL, "a rank ended without a word");
        if (job_status_has_lost(f.job_status))
            hint_way_on(job, err);
        take_result(&f, result);
        result->said_elsewhere = rc && job_status_is_muted(f.job_status);
        if (result->said_elsewhere)
            await_speaker(job->opt);
    }
    comm_world_free(f.world);
    job_status_free(f.job_status);
    free(children);
    return rc;
}

bool supervise_refusal(const struct train_options *opt, const struct fsdpck_error *err)
{
    struct fsdpck_error ignored = { 0 };
    struct job_status *job_status = NULL;
    if (!opt->launched_nranks || !comm_mpi_is_built() ||
        job_status_new(opt->launched_rank, 1, opt->launched_nranks, 1, &job_status, &ignored))
        return true;
    job_status_fail(job_status, err);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        comm_mpi_tell(job_status, opt->launched_rank, opt->launched_nranks);
        _exit(0);
    }
    bool ended = pid < 0;
    for (long ms = 0; ms < TELL_MS && !ended; ms += POLL_MS) {
        sleep_ms(POLL_MS);
        ended = waitpid(pid, NULL, WNOHANG) != 0;
    }
    if (!ended) {
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
    bool speaks = !job_status_is_muted(job_status);
    job_status_free(job_status);
    if (!speaks)
        await_speaker(opt);
    return speaks;
}
