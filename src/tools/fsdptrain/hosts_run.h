/* SPDX-License-Identifier: Apache-2.0 */
/* `fsdptrain run --hosts`: starts a launcher, and starts it again on the hosts that answer after one was lost. */
#ifndef TOOLS_HOSTS_RUN_H
#define TOOLS_HOSTS_RUN_H

#include "common/report.h"

/* Options of the verb. */
struct hosts_args {
    const char *hosts;    /* as hosts_list_read() wants */
    const char *launcher; /* auto, mpirun or srun */
    const char *resume;
    const char *config; /* path */
    const struct strings *sets;
    double patience;
    uint32_t least, max_restarts, exit_on_stop, exit_on_loss;
};

/* argv: (argc) of the verb; the ranks get it without the options above. Returns an exit code. */
int hosts_run(const struct hosts_args *args, int argc, char **argv, struct report *report);

#endif
