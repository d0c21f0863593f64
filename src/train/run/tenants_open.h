/* SPDX-License-Identifier: Apache-2.0 */
/* The jobs of a run with tenants, in the process that starts the ranks. */
#ifndef TRAIN_TENANTS_OPEN_H
#define TRAIN_TENANTS_OPEN_H

#include "rank/files.h"
#include "run/cycle.h"

struct opened {
    const struct train_tenant *tenant;
    const struct train_options *parent;
    struct train_options opt; /* of its job: says whose words they are */
    bool started;             /* told by rank 0, in its process */
    struct job job;
    char resume[FILES_PATH];
};

struct tenants {
    struct train_tenant *configs; /* (n) */
    size_t n;
    struct opened *opened; /* (nopened) those that can begin */
    size_t nopened;
    int left_out;                 /* the code of the first error of the others */
    struct job **jobs;            /* (nopened) */
    struct cycle_tenant *cycle;   /* (nopened) */
    struct cycle_result *results; /* (nopened) shared with the ranks */
    struct train_config config;   /* of the run: what all tenants share, borrowed from the first */
    struct job joint;
};

enum { TENANTS_MOST = 64 }; /* a rank tells the others of all in one sum (cycle.c) */
enum { TENANTS_NAME = 72 }; /* bytes of a name */

/* Opens each tenant; those that cannot begin are left out. On paper (train_options), no folder is made and none is
 * resumed. config and opt must outlive *t, which is to be closed, also after a failure. */
int tenants_open(struct tenants *t, const struct train_config *config, const struct train_options *opt,
                 struct fsdpck_error *err);
/* Then joins them: t->joint is the job of the run, and the layouts of the jobs are parts of its own. */
int tenants_join(struct tenants *t, const struct train_config *config, const struct train_options *opt,
                 struct fsdpck_error *err);
void tenants_close(struct tenants *t);

#endif
