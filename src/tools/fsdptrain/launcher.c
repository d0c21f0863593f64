/* SPDX-License-Identifier: Apache-2.0 */
/* One table of launchers: the variables that show each, where its ranks are numbered, whether they can join, and the
 * command that starts ranks which can. Ranks of a launcher that cannot join would each train the whole run in the same
 * output_dir, so they are refused. docs/hosts.md describes the table to users. */
#include "launcher.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <train/train.h>

#include "common/options.h"
#include "common/usage.h"

enum { MAX_SHOWN = 2, MAX_PROCESSES = 7 };

struct launcher {
    const char *word;             /* value of --launcher; NULL: its ranks cannot join */
    const char *title;            /* in messages */
    const char *shown[MAX_SHOWN]; /* variables that are all set if this launcher started the process */
    const char *size, *rank;      /* variables; size NULL: the launcher does not tell */
    const char *local_size;       /* or NULL */
    const char *local_rank;       /* or NULL */
    const char *tasks, *node; /* instead of local_size: ranks of each node, "2(x3),1", and the number of this node */
    const char *command;      /* starts ranks that join; their number follows */
    bool one_host_too;        /* if a user of this launcher may mean the ranks of one host: --ranks does it */
    bool dies_of_sigterm;
    const char *hanging[MAX_PROCESSES]; /* names of its processes, if it does not end when a host is lost */
};

/* The first row that is shown counts: mpirun within a Slurm job is mpirun, and srun sets PMI variables too. */
static const struct launcher launchers[] = {
    { .word = "mpirun",
      .title = "mpirun",
      .shown = { "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK" },
      .size = "OMPI_COMM_WORLD_SIZE",
      .rank = "OMPI_COMM_WORLD_RANK",
      .local_size = "OMPI_COMM_WORLD_LOCAL_SIZE",
      .local_rank = "OMPI_COMM_WORLD_LOCAL_RANK",
      .command = "mpirun -n",
      .dies_of_sigterm = true,
      .hanging = { "mpirun", "orterun", "mpiexec", "mpirun.openmpi", "mpiexec.openmpi", "orted" } },
    { .word = "srun",
      .title = "srun",
      .shown = { "SLURM_STEP_ID", "PMIX_RANK" },
      .size = "SLURM_STEP_NUM_TASKS",
      .rank = "SLURM_PROCID",
      .local_rank = "SLURM_LOCALID",
      .tasks = "SLURM_STEP_TASKS_PER_NODE",
      .node = "SLURM_NODEID",
      .command = "srun --mpi=pmix -n" },
    { .title = "srun without --mpi=pmix",
      .shown = { "SLURM_STEP_ID", "SLURM_PROCID" },
      .size = "SLURM_STEP_NUM_TASKS",
      .rank = "SLURM_PROCID",
      .command = "srun --mpi=pmix -n" },
    { .title = "torchrun, or another launcher that sets RANK and WORLD_SIZE,",
      .shown = { "RANK", "WORLD_SIZE" },
      .size = "WORLD_SIZE",
      .rank = "RANK",
      .command = "mpirun -n",
      .one_host_too = true },
    { .title = "the launcher of another MPI (PMI_RANK is set)",
      .shown = { "PMI_RANK" },
      .size = "PMI_SIZE",
      .rank = "PMI_RANK",
      .command = "mpirun -n",
      .one_host_too = true },
    { .title = "a PMIx launcher that is neither srun nor Open MPI's mpirun",
      .shown = { "PMIX_RANK" },
      .rank = "PMIX_RANK",
      .command = "mpirun -n",
      .one_host_too = true },
};
enum { NLAUNCHERS = sizeof launchers / sizeof launchers[0] };

/* Returns the first of the row's variables that is not set, or NULL. */
static const char *missing_variable(const struct launcher *by)
{
    for (size_t i = 0; i < MAX_SHOWN && by->shown[i]; i++) {
        if (!getenv(by->shown[i]))
            return by->shown[i];
    }
    return NULL;
}

static bool parse_number(const char *text, char **end, uint32_t *out)
{
    if (*text < '0' || *text > '9')
        return false;
    errno = 0;
    const unsigned long value = strtoul(text, end, 10);
    *out = (uint32_t)value;
    return !errno && value <= UINT32_MAX;
}

/* Reads a number below `limit`. A variable that is not set leaves *out as it is. */
static void read_number(struct launch *launch, const char *variable, uint64_t limit, uint32_t *out)
{
    const char *text = variable ? getenv(variable) : NULL;
    char *end;
    uint32_t value;
    if (!text || launch->bad)
        return;
    if (parse_number(text, &end, &value) && !*end && value < limit) {
        *out = value;
        return;
    }
    launch->bad = variable;
    launch->bad_because = limit > UINT32_MAX ? "a number of processes" : "a number below that of the processes";
}

/* "2(x3),1": three nodes with two tasks each and one with one. */
static uint32_t tasks_of_node(const char *text, uint32_t node)
{
    for (char *end; text; text = *end == ',' ? end + 1 : NULL) {
        uint32_t ntasks, times = 1;
        if (!parse_number(text, &end, &ntasks))
            return 0;
        if (*end == '(' && (end[1] != 'x' || !parse_number(end + 2, &end, &times) || *end++ != ')'))
            return 0;
        if (*end && *end != ',')
            return 0;
        if (node < times)
            return ntasks;
        node -= times;
    }
    return 0;
}

static void read_local_size(struct launch *launch, const struct launcher *by)
{
    uint32_t node = UINT32_MAX;
    read_number(launch, by->local_size, (uint64_t)launch->nranks + 1, &launch->nlocal);
    if (!by->tasks || !getenv(by->tasks))
        return;
    read_number(launch, by->node, launch->nranks, &node);
    launch->nlocal = tasks_of_node(getenv(by->tasks), node);
    if (!launch->bad && (launch->nlocal == 0 || launch->nlocal > launch->nranks)) {
        launch->bad = by->tasks;
        launch->bad_because = "numbers of tasks like 2(x3),1, with this node's";
    }
}

static void read_launch(const struct launcher *by, struct launch *out)
{
    *out = (struct launch){ .by = by };
    read_number(out, by->size, (uint64_t)UINT32_MAX + 1, &out->nranks);
    if (by->word && !out->nranks && !out->bad) {
        out->bad = by->size;
        out->bad_because = "a number of processes";
    }
    read_number(out, by->rank, by->size && getenv(by->size) ? out->nranks : (uint64_t)UINT32_MAX + 1, &out->rank);
    if (!by->word)
        return;
    out->local = out->rank;
    read_number(out, by->local_rank, out->nranks, &out->local);
    read_local_size(out, by);
}

void launch_find(struct launch *out)
{
    *out = (struct launch){ 0 };
    for (size_t i = 0; i < NLAUNCHERS; i++) {
        if (missing_variable(&launchers[i]))
            continue;
        read_launch(&launchers[i], out);
        if (out->nranks == 1 && !out->bad)
            *out = (struct launch){ 0 };
        return;
    }
}

bool launch_joins(const struct launch *launch)
{
    return launch->by && launch->by->word && !launch->bad && train_has_mpi();
}

/* --launcher mpirun or srun: also for a single process. */
static int take_named(struct launch *launch, const char *word)
{
    for (size_t i = 0; i < NLAUNCHERS; i++) {
        const struct launcher *by = &launchers[i];
        if (!by->word || strcmp(by->word, word) != 0)
            continue;
        if (missing_variable(by))
            return usage_error("--launcher %s: %s is not set, so %s has not started this process; to start ranks: %s N "
                               "fsdptrain run CONFIG.json",
                               word, missing_variable(by), word, by->command);
        read_launch(by, launch);
    }
    return OPTIONS_OK;
}

/* The tasks of srun share a terminal: only the first prints it. Other launchers may keep a log for each process. */
static int refuse_launcher(const struct launch *launch)
{
    char n[16] = "several", ranks[80] = "";
    if (launch->rank != 0 && !launch->by->one_host_too)
        return EXIT_USAGE;
    if (launch->nranks)
        snprintf(n, sizeof n, "%u", launch->nranks);
    const char *count = launch->nranks ? n : "N";
    if (launch->by->one_host_too)
        snprintf(ranks, sizeof ranks, "fsdptrain run CONFIG.json --ranks %s, or on several hosts: ", count);
    return usage_error(
        "%s has started %s processes that cannot join: each would train the whole run in the same "
        "output_dir; to start ranks: %s%s %s fsdptrain run CONFIG.json (--launcher local: each process is "
        "a run of its own)",
        launch->by->title, n, ranks, launch->by->command, count);
}

int launch_choose(struct launch *launch, const char *word, uint32_t ranks)
{
    int status = OPTIONS_OK;
    if (strcmp(word, "local") == 0)
        *launch = (struct launch){ 0 };
    else if (strcmp(word, "auto") != 0)
        status = take_named(launch, word);
    if (status != OPTIONS_OK || !launch->by)
        return status;
    if (launch->bad)
        return usage_error("%s has set %s to '%s', wanted %s", launch->by->title, launch->bad,
                           getenv(launch->bad) ? getenv(launch->bad) : "", launch->bad_because);
    if (!launch->by->word)
        return refuse_launcher(launch);
    if (!train_has_mpi())
        return launch->rank != 0 ? EXIT_USAGE
                                 : usage_error("%s has started %u ranks, and this fsdptrain was built without MPI: "
                                               "--ranks N starts the ranks of one host",
                                               launch->by->title, launch->nranks);
    if (ranks && ranks != launch->nranks)
        return usage_error("%s has started %u rank%s: --ranks %u is for ranks without it", launch->by->title,
                           launch->nranks, fsdpck_plural(launch->nranks), ranks);
    return OPTIONS_OK;
}

bool launch_spans_hosts(const struct launch *launch)
{
    return launch->nranks && launch->nlocal != launch->nranks;
}

bool launch_dies_of_sigterm(const struct launch *launch)
{
    return launch->by && launch->by->dies_of_sigterm;
}

const char *const *launch_hanging_processes(const struct launch *launch)
{
    return launch->by && launch->by->hanging[0] ? launch->by->hanging : NULL;
}

void launch_command(const struct launch *launch, char *out, unsigned nbytes)
{
    out[0] = '\0';
    if (launch->by)
        snprintf(out, nbytes, "%s %u ", launch->by->command, launch->nranks);
}
