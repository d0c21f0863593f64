/* SPDX-License-Identifier: Apache-2.0 */
/* State of `fsdptrain ui`: one server, its queue, and what is known of the jobs that run. */
#ifndef UI_UI_H
#define UI_UI_H

#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "ui/guard.h"
#include "ui/sql.h"
#include "ui/tickets.h"

struct ui {
    struct sql *sql;
    char state[PATH_MAX];                     /* folder of the queue, of configs and logs */
    char dir[PATH_MAX];                       /* where new runs go */
    char cwd[PATH_MAX];                       /* that paths in configs are relative to */
    char program[PATH_MAX], fsdpck[PATH_MAX]; /* what jobs run */
    json_t *devices;                          /* names: "cpu:0", "cuda:0"; fixed */
    uint32_t nslots, nprocessors;             /* of the processors: jobs at once, and how many there are */
    struct guard guard;
    struct tickets tickets;

    pthread_mutex_t mutex; /* of what follows */
    pthread_cond_t changed;
    uint64_t version;  /* grows with each change of a job */
    uint64_t ticks;    /* grows with each look at the processes and their files */
    bool pokes, stops; /* look at once; end */
    json_t *progress; /* { "ID": { "step": …, "steps": …, "loss": …, "tokens_per_second": … } } of those that run */
    unsigned nstreams, nchats;
};

/* Makes the queue be looked at at once, and the pages be told. */
void ui_poke(struct ui *ui);
/* The path of a job's file in the state folder: ".json", ".log", ".began". Returns buf. */
char *ui_job_file(const struct ui *ui, int64_t id, const char *ending, char buf[PATH_MAX]);
/* path, or what it is beside cwd. Returns false if it is too long. */
bool ui_absolute(const char *cwd, const char *path, char out[PATH_MAX]);

#endif
