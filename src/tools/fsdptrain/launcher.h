/* SPDX-License-Identifier: Apache-2.0 */
/* The launcher (mpirun, srun) that started this process as one rank of several, as the environment shows it. */
#ifndef TOOLS_LAUNCHER_H
#define TOOLS_LAUNCHER_H

#include <stdbool.h>
#include <stdint.h>

struct launcher;

/* One process of a launch. Zero: no launcher; the ranks are processes that the run starts itself. */
struct launch {
    const struct launcher *by;
    uint32_t rank, nranks;   /* nranks 0: the launcher does not tell */
    uint32_t local, nlocal;  /* the same for this host; nlocal 0: the launcher does not tell */
    const char *bad;         /* the variable whose value makes no sense, or NULL */
    const char *bad_because; /* what was wanted in its place */
};

/* Finds the launcher in the environment. A launch of a single process counts as none: it is a run of its own. */
void launch_find(struct launch *out);
/* Whether the ranks of this launch can join by MPI, and so can report an error once between them. */
bool launch_joins(const struct launch *launch);
/* Applies --launcher and --ranks (0: not given) to what launch_find() found. Returns OPTIONS_OK, or prints one usage
 * error for all processes of the launch. */
int launch_choose(struct launch *launch, const char *word, uint32_t ranks);

bool launch_spans_hosts(const struct launch *launch);
/* Whether SIGTERM to the launcher ends the ranks before a step can be finished. */
bool launch_dies_of_sigterm(const struct launch *launch);
/* Names of the launcher's processes, up to NULL, if it never ends after a host was lost; otherwise NULL. */
const char *const *launch_hanging_processes(const struct launch *launch);
/* What to type before `fsdptrain run` to start the same ranks again: "mpirun -n 4 ", or "" without a launcher. */
void launch_command(const struct launch *launch, char *out, unsigned nbytes);

#endif
