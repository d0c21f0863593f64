/* train_run: the supervisor. It checks everything, starts one process a rank over shared memory, watches them, and says what became of the run. A rank that dies
 * is named and ends the others; none is waited for without end. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "run/files.h"
#include "run/job.h"
#include "run/loop.h"

enum { GRACE_MS = 3000, POLL_MS = 20 };

static void note(const struct train_options *opt, const char *line)
{
    if (opt->note)
        opt->note(opt->ctx, line);
}

/* The newest checkpoint that opens and fits; those that do not open are said and passed over. */
static int find_newest(const struct job *job, char path[FILES_PATH], bool *found, struct fsdpck_error *err)
{
    uint64_t *steps, step;
    size_t count;
    char line[FILES_PATH + 2400], text[2048];
    int rc = files_list_checkpoints(job->config, &steps, &count, err);
    for (size_t i = 0; i < count && !rc && !*found; i++) {
        struct fsdpck_error why = { 0 };
        rc = files_checkpoint_path(job->config, steps[i], path, err);
        int bad = rc ? 0 : job_check_resume(job, path, &step, &why);
        *found = !rc && !bad;
        if (bad == FSDPCK_ERR_USAGE) { /* a good one, of another run */
            *err = why;
            rc = bad;
        } else if (bad) {
            snprintf(line, sizeof line, "checkpoint passed over: %s", fsdpck_error_format(&why, text, sizeof text));
            note(job->opt, line);
        }
    }
    free(steps);
    return rc;
}

/* *found: there is one to go on from, at path. */
static int choose_resume(const struct job *job, char path[FILES_PATH], bool *found, struct fsdpck_error *err)
{
    const char *how = job->opt->resume ? job->opt->resume : "auto";
    char line[FILES_PATH + 64];
    uint64_t step;
    int rc = 0;
    *found = false;
    if (strcmp(how, "never") == 0) {
        uint64_t *steps;
        size_t count;
        rc = files_list_checkpoints(job->config, &steps, &count, err);
        free(steps);
        if (!rc && count)
            rc = fsdpck_error_set(err, FSDPCK_ERR_EXISTS, job->config->output_dir, "it holds checkpoints of a run: --resume never needs another output_dir");
        return rc;
    }
    if (strcmp(how, "auto") == 0) {
        rc = find_newest(job, path, found, err);
    } else {
        snprintf(path, FILES_PATH, "%s", how);
        rc = job_check_resume(job, path, &step, err);
        *found = !rc;
    }
    if (!rc && *found) {
        snprintf(line, sizeof line, "going on from %s", path);
        note(job->opt, line);
    }
    return rc;
}

/* In a process of its own. Ends it. */
_Noreturn static void run_rank(struct job *job, struct comm_world *world, uint32_t number, const char *resume, pid_t supervisor)
{
    struct fsdpck_error err = { 0 };
    struct comm *comm = NULL;
    struct rank *r = NULL;
    struct loop_notes scratch = { 0 };
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != supervisor)
        _exit(4);
    signal(SIGINT, SIG_IGN); /* the supervisor passes a stop on */
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    if (number != 0)
        job->fs.note = NULL;
    int rc = comm_world_join(world, number, &comm, &err);
    if (!rc)
        rc = rank_open(job, comm, &r, &err);
    if (!rc) {
        r->at = comm_world_at;
        rc = loop_run(r, resume, number == 0 ? (struct loop_notes *)comm_world_notes(world) : &scratch, &err);
    }
    if (rc && comm)
        comm_world_fail(comm, &err);
    rank_close(r);
    if (comm)
        comm->ops->free(comm);
    _exit(rc ? 1 : 0);
}

static void sleep_ms(long ms)
{
    const struct timespec t = { ms / 1000, ms % 1000 * 1000000 };
    nanosleep(&t, NULL);
}

static void kill_all(const pid_t *pids, uint32_t n, int signal_number)
{
    for (uint32_t i = 0; i < n; i++) {
        if (pids[i] > 0)
            kill(pids[i], signal_number);
    }
}

/* Takes the process that ended out of pids, and says so to the others where it did not end well. */
static void rank_ended(struct comm_world *world, pid_t *pids, uint32_t n, pid_t pid, int status, bool *failed)
{
    char how[80];
    for (uint32_t i = 0; i < n; i++) {
        if (pids[i] != pid)
            continue;
        pids[i] = 0;
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
            return;
        *failed = true;
        if (WIFSIGNALED(status))
            snprintf(how, sizeof how, "was killed by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
        else
            snprintf(how, sizeof how, "ended with code %d", WEXITSTATUS(status));
        comm_world_lost(world, i, how); /* nothing where the rank has left an error itself */
    }
}

static bool any_left(const pid_t *pids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (pids[i] > 0)
            return true;
    }
    return false;
}

/* Until every process is gone. */
static bool watch(const struct job *job, struct comm_world *world, pid_t *pids, uint32_t n)
{
    bool failed = false, told = false;
    long waited_ms = 0;
    while (any_left(pids, n)) {
        int status;
        for (uint32_t i = 0; i < n; i++) {
            pid_t pid = pids[i] > 0 ? waitpid(pids[i], &status, WNOHANG) : 0;
            if (pid > 0)
                rank_ended(world, pids, n, pid, status, &failed);
        }
        if (job->opt->stop && *job->opt->stop && !told) {
            comm_world_stop(world);
            told = true;
        }
        if (failed && (waited_ms += POLL_MS) > GRACE_MS)
            kill_all(pids, n, SIGKILL);
        if (any_left(pids, n))
            sleep_ms(POLL_MS);
    }
    return failed;
}

static bool start(struct job *job, struct comm_world *world, const char *resume, pid_t *pids)
{
    pid_t supervisor = getpid();
    for (uint32_t i = 0; i < job->nranks; i++) {
        pids[i] = fork();
        if (pids[i] == 0)
            run_rank(job, world, i, resume, supervisor);
        if (pids[i] < 0) {
            kill_all(pids, i, SIGKILL);
            return false;
        }
    }
    return true;
}

static void take_result(const struct job *job, struct comm_world *world, struct train_result *result)
{
    const struct loop_notes *notes = (struct loop_notes *)comm_world_notes(world);
    struct fsdpck_error none = { 0 };
    result->nsteps = job->nsteps;
    result->ndone = notes->ndone;
    result->stopped = notes->stopped;
    result->save_failed = notes->save_failed;
    if (notes->saved)
        files_checkpoint_path(job->config, notes->saved, result->checkpoint, &none);
}

static int run_ranks(struct job *job, const char *resume, struct train_result *result, struct fsdpck_error *err)
{
    double patience = job->opt->patience_seconds > 0 ? job->opt->patience_seconds : 600;
    struct comm_world *world = NULL;
    pid_t *pids = calloc(job->nranks, sizeof *pids);
    int rc = pids ? 0 : fsdpck_error_nomem(err, job->nranks * sizeof *pids);
    if (!rc)
        rc = comm_world_new(job->nranks, job->layout.value_nbytes, job->layout.grad_nelem, patience, &world, err);
    if (!rc) {
        bool failed = !start(job, world, resume, pids);
        if (failed)
            rc = fsdpck_error_sys(err, errno, NULL, "fork");
        failed = watch(job, world, pids, job->nranks) || failed;
        if (!rc && failed)
            rc = comm_world_error(world, err) ? err->code : fsdpck_error_set(err, FSDPCK_ERR_IO, NULL, "a rank ended without a word");
        take_result(job, world, result);
    }
    comm_world_free(world);
    free(pids);
    return rc;
}

int train_run(const struct train_config *config, const struct train_options *opt, struct train_result *result, struct fsdpck_error *err)
{
    struct train_result done = { 0 };
    struct job job;
    char path[FILES_PATH], line[400];
    bool found = false;
    int rc = job_open(config, opt, &job, err);
    if (rc)
        return rc;
    rc = files_make_folders(config, err);
    if (!rc)
        rc = choose_resume(&job, path, &found, err);
    if (!rc) {
        snprintf(line, sizeof line, "%s, %lld parameters trained, %lld frozen; %u ranks of %u threads, parameters mapped and not copied; reduction invariant, %s",
                 job.model.family, (long long)job.layout.ntrained, (long long)job.layout.nfrozen, job.nranks, job.nthreads, config->dtype.param);
        note(opt, line);
        rc = run_ranks(&job, found ? path : NULL, &done, err);
        struct fsdpck_error ignored = { 0 }; /* the run's own error counts more */
        int rc2 = files_write_summary(&job, &done, rc ? &ignored : err);
        rc = rc ? rc : rc2;
    }
    job_close(&job);
    if (result)
        *result = done;
    return rc;
}
