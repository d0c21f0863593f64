/* SPDX-License-Identifier: Apache-2.0 */
/* State of the server: its queue, and the progress of running jobs. */
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
    char cwd[PATH_MAX];                       /* start of relative paths in configs */
    char program[PATH_MAX], fsdpck[PATH_MAX]; /* programs that jobs run */
    json_t *devices;                          /* names: "cpu:0", "cuda:0"; fixed */
    uint32_t nslots, nprocessors;             /* jobs on processors at once; number of processors */
    struct guard guard;
    struct tickets tickets;

    pthread_mutex_t mutex; /* protects the members below */
    pthread_cond_t changed;
    uint64_t version;  /* grows with each change of a job */
    uint64_t ticks;    /* grows with each round of the scheduler */
    bool pokes, stops; /* schedule now; the server ends */
    json_t *progress; /* { "ID": { "step": …, "steps": …, "loss": …, "tokens_per_second": … } } of running jobs */
    unsigned nstreams, nchats;
};

/* Runs the scheduler at once, and notifies the pages. */
void ui_poke(struct ui *ui);
/* The path of a job's file in the state folder: ".json", ".log", ".began". Returns buf. */
char *ui_job_file(const struct ui *ui, int64_t id, const char *ending, char buf[PATH_MAX]);
/* Makes a path absolute, relative to cwd. Returns false if it is too long. */
bool ui_absolute(const char *cwd, const char *path, char out[PATH_MAX]);

#endif
