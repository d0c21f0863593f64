/* SPDX-License-Identifier: Apache-2.0 */
/* A child process tells the other ranks, so that this process can end it if MPI hangs. */
#include "run/refusal.h"

#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/comm_mpi.h"

enum { POLL_MS = 20, NOTIFY_MS = 10000, REPORT_MS = 20000, SHORT_REPORT_MS = 4000 };

void refusal_await_report(const struct train_options *opt, const struct fsdpck_error *err)
{
    const bool signals = opt->dies_of_sigterm && err->sys_errno != ETIMEDOUT;
    for (long ms = 0; ms < (signals ? REPORT_MS : SHORT_REPORT_MS) && !(opt->stop && *opt->stop); ms += POLL_MS)
        usleep(1000 * POLL_MS);
}

bool train_has_mpi(void)
{
    return comm_mpi_is_built();
}

bool refusal_report(const struct train_options *opt, const struct fsdpck_error *err)
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
        comm_mpi_report_failure(job_status, opt->launched_rank, opt->launched_nranks);
        _exit(0);
    }
    bool ended = pid < 0;
    for (long ms = 0; ms < NOTIFY_MS && !ended; ms += POLL_MS) {
        usleep(1000 * POLL_MS);
        ended = waitpid(pid, NULL, WNOHANG) != 0;
    }
    if (!ended) {
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
    bool reports = !job_status_is_muted(job_status);
    job_status_free(job_status);
    if (!reports)
        refusal_await_report(opt, err);
    return reports;
}

bool train_reports_error(const struct train_options *opt, const struct fsdpck_error *err)
{
    return refusal_report(opt, err);
}
