/* SPDX-License-Identifier: Apache-2.0 */
/* A model to compute with, not to train, with an adapter if one is wanted: in this process, or sharded over the ranks
 * of a run. Uses the tables and the loading code of training, without trained parameters. */
#ifndef TRAIN_WHOLE_H
#define TRAIN_WHOLE_H

#include <train/sample.h>

#include "rank/alone.h"

struct whole {
    struct train_config config;
    struct train_options opt;
    struct job job;
    struct rank_alone alone;
};

/* How a model is opened: what is checked, the room for tokens, and the ranks that hold it. */
struct whole_choice {
    /* Looks at the numbers that were read, and may change them before the weights are read. */
    int (*check)(void *ctx, struct model *m, const char *path, struct fsdpck_error *err);
    void *ctx;
    bool partial;            /* the files may hold tensors that are not used */
    int64_t ntok;            /* the rank has buffers for a micro-batch of so many tokens; 0: it has none */
    const struct job *among; /* the ranks of this job hold a part each; NULL: a single rank holds all */
};

/* Makes out->job, and no rank. *out needs whole_close() also after a failure; it must not move. */
int whole_describe(const char *model, const struct sampler_options *opt, const struct whole_choice *choice,
                   struct whole *out, struct fsdpck_error *err);
/* The same, with a single rank that has loaded the weights. */
int whole_open(const char *model, const struct sampler_options *opt, const struct whole_choice *choice,
               struct whole *out, struct fsdpck_error *err);
void whole_close(struct whole *w); /* does nothing if all zeros */

#endif
