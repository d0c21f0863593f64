/* SPDX-License-Identifier: Apache-2.0 */
/* A run as far as snapshots know it, for their tests. Its values are known for every step. */
#ifndef TESTS_SNAPSHOT_RUN_H
#define TESTS_SNAPSHOT_RUN_H

#include "model/compute.h"
#include "rank/device.h"
#include "state/snapshots.h"

enum { NPARAMS = 3, MAX_RANKS = 5, NELEM = 4096 };

/* The parameter between is frozen. */
struct snapshot_run {
    struct param params[NPARAMS];
    struct train_config config;
    struct train_options opt;
    struct job job;
    struct job_status *job_status;
    struct compute computes[MAX_RANKS];
    struct rank_device where;
    struct comm comms[MAX_RANKS];
    struct rank ranks[MAX_RANKS];
    float values[NELEM], m[MAX_RANKS][NELEM], v[MAX_RANKS][NELEM];
};

struct snapshot_run *snapshot_run_start(uint32_t nranks);
void snapshot_run_end(struct snapshot_run *run);
float snapshot_value(uint64_t step, int tree, int param, int64_t row, int64_t col);
/* Counts the elements that differ from those of the step, or sets them. */
int snapshot_run_each(struct snapshot_run *run, uint64_t step, bool set);

#endif
