/* SPDX-License-Identifier: Apache-2.0 */
/* A whole model in this process, with an adapter if one is wanted: to compute with, not to train. Uses the tables and
 * the loading code of training, as a single rank without trained parameters. */
#ifndef TRAIN_WHOLE_H
#define TRAIN_WHOLE_H

#include <train/sample.h>

#include "rank/alone.h"

struct whole {
    struct train_config config;
    struct train_options opt;
    struct job job;
    struct rank_alone alone; /* its rank has the weights, and no buffers for micro-batches */
};

/* Which models are taken, and how much of them. */
struct whole_choice {
    /* Looks at the numbers that were read, and may change them before the weights are read. */
    int (*check)(void *ctx, struct model *m, const char *path, struct fsdpck_error *err);
    void *ctx;
    bool partial; /* the files may hold tensors that are not used */
};

/* *out needs whole_close() also after a failure; it must not move. */
int whole_open(const char *model, const struct sampler_options *opt, const struct whole_choice *choice,
               struct whole *out, struct fsdpck_error *err);
void whole_close(struct whole *w); /* does nothing if all zeros */

#endif
