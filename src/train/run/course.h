/* SPDX-License-Identifier: Apache-2.0 */
/* One training, from step to step: what a rank keeps of it, and what follows the gradients of a step. A run has one; a
 * run with tenants has one for each. All ranks execute it in lockstep; rank 0 also writes the small files. */
#ifndef TRAIN_COURSE_H
#define TRAIN_COURSE_H

#include <stdio.h>

#include "rank/offload.h"
#include "rank/rank.h"
#include "run/control.h"
#include "run/optimize.h"
#include "run/pace.h"
#include "run/results.h"
#include "state/saver.h"

struct profile;

/* What each rank computed in a step, and for how long; and what came from other hosts. */
struct step_times {
    struct step_facts facts;
    int64_t ntok[COMM_MAX_SUM];
    uint64_t before_nbytes;     /* received by this rank before the first step */
    uint64_t from_hosts_nbytes; /* received by all ranks since then, up to the last norm */
};

/* The totals at the start of a step. */
struct course_step {
    double started;
    struct rank_times before;
    struct offload_times offloaded;
};

struct course {
    struct rank *rank;
    struct loop_results *results; /* borrowed */
    struct saver *saver;
    struct profile *profile; /* NULL: none */
    FILE *metrics;           /* of rank 0 */
    struct control control;  /* of the first rank of a supervisor */
    bool listens;            /* it is that */
    struct step_times times;
    struct course_step step;
    struct pace pace;
    uint64_t first;                /* the first step of this process */
    uint64_t pss_nbytes, gathered; /* as measured last; gathered before this step */
    bool stopping;                 /* this step was the last */
    struct course **writing; /* beside others: the one of them that saved last; NULL: alone. Savers share a lane */
    bool apart;              /* others go on if this one fails: */
    bool gone;               /* the folder of its output is, and nothing more is written to it */
    bool failed;             /* the error that was returned is known to all ranks, and is of this training alone */
};

/* After the state is loaded. *nagain: finished steps that must be done again. After a failure, close the files and
 * free. */
int course_open(struct rank *r, struct loop_results *results, struct course *c, uint64_t *nagain,
                struct fsdpck_error *err);
int course_report_start(const struct rank *r, struct fsdpck_error *err);
/* Takes over from the rank what was done before. */
void course_count(const struct rank *r, struct loop_results *results);
/* Between steps: adds what the user asks for. */
void course_poll(struct course *c, struct requests *requests);

void course_begin_step(struct course *c, struct train_metrics *m);
double course_seconds(const struct course *c); /* since then */
/* The gradients are there, m->loss too, or rc is why not. Norm, update; the step is done. *requests: as in
 * rank_norm(). */
int course_update(struct course *c, int rc, const struct step_plan *plan, struct train_metrics *m,
                  struct requests *requests, struct fsdpck_error *err);
/* Draws the pictures of a run that has done no step: what the model makes without the adapter. Collective. */
int course_draw_first(struct course *c, struct fsdpck_error *err);
/* Evaluation, samples, save, log. */
int course_end_step(struct course *c, struct train_metrics *m, const struct requests *requests,
                    struct fsdpck_error *err);

/* Saves between steps, if the last step is not saved yet. */
int course_save(struct course *c, struct fsdpck_error *err);
/* Whether an error of any rank ends this training alone: then all ranks learn of it, and c->failed is set. Otherwise
 * the rank that has one ends, and with it the run. */
int course_agree(struct course *c, int rc, struct fsdpck_error *err);
/* After the last step, also after a failure: waits for the save in flight. */
void course_end(struct course *c);
/* Exports from the last checkpoint: the adapter, or at the end of the run the whole model. */
int course_export(const struct course *c, struct fsdpck_error *err);
/* *rc: in, whether the training has failed; out, also whether a file could not be written. */
void course_close_files(struct course *c, int *rc, struct fsdpck_error *err);
void course_free(struct course *c);

#endif
