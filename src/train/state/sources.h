/* SPDX-License-Identifier: Apache-2.0 */
/* The files with the weights of a run, of the base model and of the adapter: the name of each parameter in them, and a
 * check of all other tensors. */
#ifndef TRAIN_SOURCES_H
#define TRAIN_SOURCES_H

#include "rank/rank.h"

/* Opens the files of lora.init_adapter (adapter), or those of the model, with its weights as dtype.base says. */
int sources_open(const struct job *job, bool adapter, struct fsdpck_source **out, struct fsdpck_error *err);
/* Lists the weights of the model that stay quantized, and gives a note about them. */
int sources_packed(const struct job *job, struct packed_weights *out, struct fsdpck_error *err);
/* True if the parameter is read from the adapter's files (adapter) or from the base's (!adapter). */
bool sources_has(const struct job *job, const struct param *p, bool adapter);
/* The parameter's name in those files. */
const char *sources_name(const struct param *p, bool adapter);
/* Finds the parameter's tensor, and checks its shape and that its dtype can be trained. */
int sources_find(const struct fsdpck_source *src, const struct param *p, bool adapter, const struct fsdpck_tensor **out,
                 struct fsdpck_error *err);

/* False if the folder of the model holds no weights at all. */
bool sources_has_weights(const struct job *job);
/* Called before the ranks start. Checks that all tensors exist with the right shapes, and reports all other tensors. */
int job_check_sources(const struct job *job, struct fsdpck_error *err);
/* Hash of samples of all tensors that the run reads, of the model and of lora.init_adapter. */
int sources_hash(const struct job *job, uint64_t *out, struct fsdpck_error *err);

#endif
