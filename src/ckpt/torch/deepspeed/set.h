/* SPDX-License-Identifier: Apache-2.0 */
/* The files of one DeepSpeed checkpoint: global_stepN/, or the folder above it, whose file `latest` or
 * `latest_universal` names it. */
#ifndef CKPT_DEEPSPEED_SET_H
#define CKPT_DEEPSPEED_SET_H

#include "engine/source_impl.h"

#define FSDPCK_DS_UNIVERSAL "zero" /* the folder of a universal checkpoint's parameters */

struct ds_set {
    char *folder; /* with the files */
    char **names; /* (nnames) its entries, sorted */
    size_t nnames;
    bool stage3;          /* every rank has a file of model states */
    uint32_t nranks;      /* that have files of partitions; 0: none has */
    bool universal;       /* instead of partitions there are files of each parameter: zero/NAME/STATE.pt */
    bool sliced;          /* universal: the model states are those of tensor-parallel ranks, each with slices */
    uint32_t nstates;     /* files of model states: 1, or one for each rank: with stage3 of data, if sliced of tensor
                             parallelism */
    uint32_t nexperts;    /* files of experts' weights */
    const char **states;  /* (nstates) */
    const char **optim;   /* (nranks) */
    const char **experts; /* (nexperts) */
};

/* Lists the files. A missing or second file of a rank is an error, and so are files of pipelines and, but for universal
 * checkpoints, of tensor parallelism, which cannot be joined. fsdpck_ds_set_free() also after a failure. */
int fsdpck_ds_set_list(struct ds_set *s, const struct fsdpck_source *src, struct fsdpck_error *err);
void fsdpck_ds_set_free(struct ds_set *s);

#endif
