/* SPDX-License-Identifier: Apache-2.0 */
/* The norm of a step's gradients, and the update of the parameters. */
#ifndef TRAIN_OPTIMIZE_H
#define TRAIN_OPTIMIZE_H

#include "rank/rank.h"

/* Requests of the user, handled between steps. */
struct requests {
    bool stop, save, sample;
    bool pause, resume; /* of a tenant, for cycle.c */
    bool reload;        /* of a run with tenants: read the config anew */
};
/* What ranks tell each other in every step, for the metrics. In: this rank's, at its place; out: all ranks'. */
struct step_facts {
    double busy_seconds[COMM_MAX_SUM]; /* (nranks) what a rank has computed in this step */
    uint64_t from_hosts_nbytes;        /* what it has received from other hosts in this run; out: the sum */
};
/* The global norm, the same on every rank; NaN if a gradient is not finite. *requests: in, those to this rank; out, to
 * any rank. */
int rank_norm(struct rank *r, double *norm, struct requests *requests, struct step_facts *facts,
              struct fsdpck_error *err);
/* With gradients in a file: sums of squares of a group's rows, for the norm. Its gradients are in memory. */
void rank_sum_group(struct rank *r, uint32_t group, struct kern_stream *stream);
int rank_update(struct rank *r, double norm, double lr, struct fsdpck_error *err);
/* Name of the first tensor whose gradient is not finite, or "loss". Collective. */
int rank_find_nonfinite(struct rank *r, const char **name, struct fsdpck_error *err);

#endif
