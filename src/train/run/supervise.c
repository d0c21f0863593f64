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
#include "image/encoding.h"
#include "rank/files.h"
#include "run/agree.h"
#include "run/cycle.h"
#include "run/automatic.h"
#include "run/encoder.h"
#include "run/kept.h"
#include "run/launcher_end.h"
#include "run/loop.h"
#include "run/refusal.h"
#include "state/export_model.h"

enum { GRACE_MS = 3000, LAUNCHED_GRACE_MS = 12000, POLL_MS = 20, LAUNCHED_STALL_SECONDS = 5, FAILED = 1 };

/* Data shared by the processes. world: NULL under a launcher. */
struct supervisor {
    struct job *job;
    struct job_status *job_status;
    struct comm_world *world;
    struct encoder *encoder;
    const char *resume;
    const struct cycle_tenant *tenants;
    pid_t supervisor;
    uint32_t n;         /* number of ranks of this supervisor */
    uint64_t failed_ns; /* time when the first failure was noticed; 0: none */
    bool killed;        /* the ranks were ended */
};

struct child {
    pid_t pid; /* 0: ended */
    bool lost; /* killed, stalled, or ended without an error of its own, before the others were ended */
    uint64_t beats;
    double seen; /* time of the last change of beats */
};

static void sleep_ms(long ms)
{
    const struct timespec t = { ms / 1000, ms % 1000 * 1000000 };
    nanosleep(&t, NULL);
}

/* Hints how to continue after a rank was lost. */
static void hint_resume(const struct job *job, struct fsdpck_error *err)
{
    const char *how = job->opt->resume;
    struct fsdpck_error none = { 0 };
    uint64_t *steps;
    size_t count = 0;
    if (job->ntenants) {
        fsdpck_error_hint(err, "run the same command again, with any number of ranks: each tenant goes on from its "
                               "last checkpoint");
        return;
    }
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
    job_status_lost(f->job_status, f->job->first, false, "was killed");
    bool has_error = job_status_error(f->job_status, &err);
    hint_resume(f->job, &err);
    if (has_error && f->job->opt->lost)
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

static int join_local(const struct supervisor *f, uint32_t number, struct comm **comm, struct fsdpck_error *err)
{
    int rc = encoder_run(f->encoder, f->job, number, NULL, err);
    return rc ? rc : comm_world_join(f->world, number, comm, err);
}

/* Joins the ranks that a launcher started. They agree on what rank 0 chooses before they allocate memory. settled: must
 * live as long as the job. */
static int join_launched(const struct supervisor *f, uint32_t number, struct train_config *settled, struct comm **comm,
                         struct fsdpck_error *err)
{
    int rc = comm_mpi_join(f->job_status, number, f->job->nranks, comm, err);
    if (!rc)
        rc = agree_on_build(*comm, err);
    if (!rc)
        rc = encoder_run(f->encoder, f->job, number, *comm, err);
    if (!rc)
        rc = automatic_agree(*comm, f->job, settled, err);
    if (!rc)
        rc = comm_mpi_share_memory(*comm, job_comm_sizes(f->job), err);
    return rc ? rc : agree_on_mesh(*comm, f->job, err);
}

static struct job_status *signalled_status; /* status of the rank that runs in this process */

static void on_signal(int number)
{
    if (number == SIGUSR2)
        job_status_request_save(signalled_status);
    else
        job_status_stop(signalled_status);
}

/* A signal to a rank means the whole run, like a signal to its supervisor: schedulers signal every process. A signal
 * that was ignored before (nohup) remains ignored. */
static void install_signal_handlers(struct job_status *job_status)
{
    static const int all[] = { SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 };
    const struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
    struct sigaction old;
    signalled_status = job_status;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (sigaction(all[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            sigaction(all[i], &action, NULL);
    }
}

/* True if a rank, perhaps with its host, does not answer. */
static bool has_timed_out(const struct job_status *job_status)
{
    struct fsdpck_error err;
    return job_status_error(job_status, &err) && err.sys_errno == ETIMEDOUT;
}

/* Only rank 0 passes on what libfsdpck says. */
static void silence(struct job *job)
{
    job->fs.note = NULL;
    for (size_t i = 0; i < job->ntenants; i++)
        job->tenants[i]->fs.note = NULL;
}

/* Runs a rank in its own process, then exits. */
_Noreturn static void run_rank(struct supervisor *f, uint32_t number)
{
    struct fsdpck_error err = { 0 };
    struct comm *comm = NULL;
    struct rank *r = NULL;
    struct loop_results scratch = { 0 },
                        *results = number == f->job->first ? (void *)job_status_results(f->job_status) : &scratch;
    struct train_config settled;
    install_signal_handlers(f->job_status);
    signal(SIGXFSZ, SIG_IGN); /* report a file size limit as EFBIG; mpirun does not let ranks inherit SIG_IGN */
    int rc = tie_to_supervisor(f, &err);
    if (getppid() != f->supervisor)
        _exit(4);
    if (number != 0)
        silence(f->job);
    if (!rc)
        rc = f->world ? join_local(f, number, &comm, &err) : join_launched(f, number, &settled, &comm, &err);
    if (!rc)
        results->encoded = true;
    if (!rc)
        rc = kept_open(f->job, comm, f->resume, &err);
    if (!rc)
        rc = rank_open(f->job, comm, &r, &err);
    if (!rc && f->job->ntenants)
        rc = cycle_run(r, f->tenants, &err);
    else if (!rc)
        rc = loop_run(r, f->resume, results, &err);
    if (rc)
        rank_fail(f->job, f->job_status, &err);
    if (rc && comm && !f->world)
        comm_mpi_abandon(comm);
    rank_close(r);
    if (rc && comm && !f->world && !has_timed_out(f->job_status))
        comm_mpi_leave(comm);
    if (comm && (f->world || !rc)) /* after a failure, MPI would wait for the others */
        comm->ops->free(comm);
    _exit(rc ? FAILED : 0);
}

static void kill_all(const struct child *children, uint32_t n, int signal_number)
{
    for (uint32_t i = 0; i < n; i++) {
        if (children[i].pid > 0)
            kill(children[i].pid, signal_number);
    }
}

/* A page of a mapped file that its disk does not give, or has no room for. */
static bool is_of_disk(const struct supervisor *f, int signal_number)
{
    return signal_number == SIGBUS && job_offloads_params(f->job);
}

/* Reports a rank that failed to the others, unless it has recorded an error itself. Returns true if it has failed. */
static bool child_ended(const struct supervisor *f, uint32_t number, int status)
{
    char how[300];
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return false;
    if (WIFSIGNALED(status) && is_of_disk(f, WTERMSIG(status)))
        snprintf(how, sizeof how,
                 "found no page of the parameters in a file of '%.200s' (fsdp.offload_params): the disk failed",
                 f->job->config->fsdp.offload);
    else if (WIFSIGNALED(status))
        snprintf(how, sizeof how, "was killed by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        snprintf(how, sizeof how, "ended with code %d", WEXITSTATUS(status));
    job_status_lost(f->job_status, number, false, how);
    return true;
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
    /* under a launcher, other ranks report first; while MPI starts, all stall if one is lost, and rank 0 reports */
    const double more = f->world ? 1 : LAUNCHED_STALL_SECONDS + (number ? 2 : 0);
    if (now() - c->seen <= job_status_patience(f->job_status) + more)
        return false;
    snprintf(how, sizeof how, "has given no sign of life for %.0f s", now() - c->seen);
    job_status_lost(f->job_status, number, true, how);
    kill(c->pid, SIGKILL); /* it cannot report anything */
    return true;
}

/* Number of ranks that were lost, if a loss came first. 0: the run ended for another reason. */
static uint32_t count_lost(const struct supervisor *f, const struct child *children)
{
    uint32_t n = 0;
    bool late = false;
    for (uint32_t i = 0; i < f->n; i++) {
        n += children[i].lost;
        late |= job_status_is_late(f->job_status, f->job->first + i);
    }
    return late || job_status_has_lost(f->job_status) ? n : 0;
}

static uint32_t poll_children(const struct supervisor *f, struct child *children, bool *failed)
{
    uint32_t left = 0;
    int status;
    for (uint32_t i = 0; i < f->n; i++) {
        struct child *c = &children[i];
        bool lost = false;
        if (c->pid > 0 && waitpid(c->pid, &status, WNOHANG) > 0) {
            c->pid = 0;
            *failed |= child_ended(f, f->job->first + i, status);
            lost = WIFSIGNALED(status) || WEXITSTATUS(status) > FAILED;
        }
        if (c->pid > 0) {
            left++;
            lost = is_stalled(f, f->job->first + i, c);
            *failed |= lost;
        }
        c->lost |= (lost && !f->killed) || job_status_is_late(f->job_status, f->job->first + i);
    }
    return left;
}

static const struct loop_results *results_of(const struct supervisor *f)
{
    return (struct loop_results *)job_status_results(f->job_status);
}

/* A run that is stopped before its first step has nothing to save. */
static const char *note_of_stop(const struct supervisor *f)
{
    if (f->job->encoding && !results_of(f)->encoded)
        return "stopping: the texts and pictures that are encoded stay in the cache";
    return f->job->opt->launched_nranks
               ? "stopping: the step is finished and saved first"
               : "stopping: the step is finished and saved first; a second signal ends the run at once, unsaved";
}

/* Prints the note once and at once: a step may take long, and a user who sees nothing signals again, which ends the run
 * without a save. On SIGTERM under mpirun, prints nothing, because mpirun kills the ranks before a step can end. */
static void note_stop(const struct supervisor *f, bool failed, bool *noted)
{
    const struct train_options *opt = f->job->opt;
    if (*noted || failed || !job_status_stopping(f->job_status) || job_status_failed(f->job_status))
        return;
    const bool kills = opt->dies_of_sigterm && opt->stop && *opt->stop == SIGTERM;
    if (f->job->first == 0 && opt->note && !kills)
        opt->note(opt->ctx, note_of_stop(f));
    *noted = true;
}

/* Milliseconds in which the other ranks may end by themselves after a failure. A run that goes on without the lost rank
 * does not need their last words. */
static long grace_ms(const struct supervisor *f, const struct child *children)
{
    if (f->job->opt->elastic_nranks && count_lost(f, children))
        return 2 * POLL_MS;
    return GRACE_MS + (f->world ? 0 : LAUNCHED_GRACE_MS);
}

/* Watches until every process has ended. */
static bool watch(struct supervisor *f, struct child *children)
{
    const volatile int *stop = f->job->opt->stop;
    bool failed = false, noted = false;
    for (long waited_ms = 0; poll_children(f, children, &failed) > 0;) {
        if (stop && *stop)
            job_status_stop(f->job_status);
        note_stop(f, failed, &noted);
        if (f->job->opt->saves)
            job_status_set_requested_saves(f->job_status, (uint64_t)*f->job->opt->saves);
        const bool ending = failed || job_status_failed(f->job_status);
        if (ending && !f->failed_ns)
            f->failed_ns = comm_now_ns();
        if (ending && (waited_ms += POLL_MS) > grace_ms(f, children)) {
            kill_all(children, f->n, SIGKILL);
            f->killed = true;
        }
        sleep_ms(POLL_MS);
    }
    note_stop(f, failed, &noted); /* the ranks may have saved and ended before this process was scheduled again */
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
            const int why = errno;
            kill_all(children, i, SIGKILL);
            f->killed = true; /* so that none of them counts as lost */
            return fsdpck_error_sys(err, why, NULL, "fork");
        }
        children[i].pid = pid;
    }
    return 0;
}

void supervise_read(const struct job *job, const struct loop_results *results, struct train_result *result)
{
    struct fsdpck_error none = { 0 };
    result->nsteps = job->nsteps;
    result->ndone = results->ndone;
    result->stopped = results->stopped;
    result->save_failed = results->save_failed;
    result->nskipped = results->skipped;
    result->ntrailing = results->trailing;
    result->diverged = results_diverged(results, job->nsteps);
    const bool finished = !result->diverged && results->ndone >= job->nsteps && results->saved == results->ndone;
    if (finished && job->config->lora.enabled && job->config->checkpoint.export_adapter)
        snprintf(result->adapter, sizeof result->adapter, "%s/adapter", job->config->output_dir);
    if (finished && !export_model_path(job->config, result->model))
        result->model[0] = '\0';
    if (results->saved)
        files_checkpoint_path(job->config, results->saved, result->checkpoint, &none);
}

int supervise(struct job *job, const char *resume, const struct cycle_tenant *tenants, struct train_result *result,
              struct supervise_end *end, struct fsdpck_error *err)
{
    double patience = job->opt->patience_seconds > 0 ? job->opt->patience_seconds : 600;
    struct supervisor f = {
        .job = job, .resume = resume, .tenants = tenants, .n = job->opt->launched_nranks ? 1 : job->nranks
    };
    struct encoder encoder = { 0 };
    struct child *children = calloc(f.n, sizeof *children);
    int rc = children ? 0 : fsdpck_error_nomem(err, f.n * sizeof *children);
    f.encoder = &encoder;
    if (!rc)
        rc = job_status_new(job->first, f.n, job->nranks, patience, &f.job_status, err);
    if (!rc && !job->opt->launched_nranks)
        rc = comm_world_new(job->nranks, job_comm_sizes(job), f.job_status, &f.world, err);
    if (!rc)
        rc = encoder_open(job, f.job_status, &encoder, err);
    *end = (struct supervise_end){ 0 };
    if (!rc && job->recovery.stopping)
        job_status_stop(f.job_status);
    if (!rc) {
        rc = start(&f, children, err);
        encoder_unmap(&encoder);
        bool failed = watch(&f, children);
        if (!rc && failed)
            rc = job_status_error(f.job_status, err)
                     ? err->code
                     : fsdpck_error_set(err, FSDPCK_ERR_IO, NULL, "a rank ended without a word");
        result->lost = rc && (job_status_has_lost(f.job_status) || err->sys_errno == ETIMEDOUT);
        if (result->lost)
            hint_resume(job, err);
        if (job->encoding)
            job->encoding->complete |= results_of(&f)->encoded > 0;
        if (!tenants)
            supervise_read(job, results_of(&f), result);
        *end = (struct supervise_end){ .nlost = rc ? count_lost(&f, children) : 0,
                                       .comes_back = results_of(&f)->comes_back,
                                       .stopping = job_status_stopping(f.job_status),
                                       .ndone = result->ndone,
                                       .skipped_before = results_of(&f)->skipped_before,
                                       .ended_ns = f.failed_ns };
        result->reported_elsewhere = rc && job_status_is_muted(f.job_status);
        if (rc && err->sys_errno == ETIMEDOUT && job->opt->hanging_launcher)
            launcher_end_later(job->opt->hanging_launcher);
        if (result->reported_elsewhere)
            refusal_await_report(job->opt, err);
    }
    encoder_close(&encoder);
    comm_world_free(f.world);
    job_status_free(f.job_status);
    free(children);
    return rc;
}
