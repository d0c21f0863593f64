/* SPDX-License-Identifier: Apache-2.0 */
/* The main function of a rank that trains several adapters on one base. */
#ifndef TRAIN_CYCLE_H
#define TRAIN_CYCLE_H

#include "rank/rank.h"
#include "run/results.h"

/* A tenant as its supervisor and its ranks know it, besides its job. */
struct cycle_tenant {
    double share;
    const char *resume;           /* the checkpoint to resume from, or NULL */
    bool paused;                  /* it begins with a pause */
    struct cycle_result *results; /* in memory that the processes share */
};

struct cycle_result {
    struct loop_results loop;
    bool paused;    /* until the end */
    bool by_reload; /* it ended only because the run reads its config anew */
    bool reload;    /* the run has ended to read its config anew; of the first tenant */
    int failed;     /* the code of the error that ended the tenant, as a note said; 0: none did */
};

/* Trains the tenants of r->job until each has ended. tenants: (r->job->ntenants). An error of one tenant ends that
 * tenant; what is returned ended the run. */
int cycle_run(struct rank *r, const struct cycle_tenant *tenants, struct fsdpck_error *err);

#endif
