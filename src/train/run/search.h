/* SPDX-License-Identifier: Apache-2.0 */
/* The search for an open job, behind train_search() and the keys that are "auto". */
#ifndef TRAIN_SEARCH_JOB_H
#define TRAIN_SEARCH_JOB_H

#include <train/search.h>

#include "price/rates.h"
#include "rank/job.h"

/* The rates that opt names or keeps; without either, measures this machine. A device's rates must be named. */
int search_rates(const struct train_options *opt, struct rates *out, struct fsdpck_error *err);
/* Of these keys (enum train_automatic), those that make a difference in the job. Those of fsdp make none where ranks
 * map each other's parameters. */
unsigned search_keys(const struct job *job, unsigned keys);
/* The memory that a rank may take; 0: not known, as that of a device. */
uint64_t search_limit(const struct job *job);
/* Plans the candidates within out->limit_nbytes (0: no limit). keys: enum train_automatic, those to vary; recompute:
 * vary fsdp.activation_checkpointing too. The others stay as in the job. job_set_config() must follow: the rows of
 * micro-batches are those of the last candidate. */
int search_job(const struct job *job, unsigned keys, bool recompute, const struct rates *rates,
               struct train_search *out, struct fsdpck_error *err);
/* Gives the keys of fsdp.offload the values of a choice. */
void search_offload(enum train_offload offload, struct train_config *config);
/* Gives these keys of a config the values of the candidate. */
void search_take(const struct train_candidate *c, unsigned keys, struct train_config *config);

#endif
