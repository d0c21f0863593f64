/* SPDX-License-Identifier: Apache-2.0 */
/* The files with the weights of a run, those of the base model and of the adapter: the name of each parameter there,
 * and an account of the other tensors. */
#ifndef TRAIN_SOURCES_H
#define TRAIN_SOURCES_H

#include "rank/rank.h"

/* adapter: a PEFT folder's file, or a checkpoint; else a model. */
int sources_open(const char *path, bool adapter, const struct fsdpck_options *opt, struct fsdpck_source **out,
                 struct fsdpck_error *err);
/* Whether a parameter is read out of the adapter's files, or out of the base's. */
bool sources_has(const struct job *job, const struct param *p, bool adapter);
/* As those files call it. */
const char *sources_name(const struct param *p, bool adapter);
/* The parameter's tensor there, which has its shape and a type that is trained. */
int sources_find(const struct fsdpck_source *src, const struct param *p, bool adapter, const struct fsdpck_tensor **out,
                 struct fsdpck_error *err);

/* Before the ranks part: all tensors are there, with the right shapes, and what else is there is accounted for. */
int job_check_sources(const struct job *job, struct fsdpck_error *err);

#endif
