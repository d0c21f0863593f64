/* SPDX-License-Identifier: Apache-2.0 */
/* The training data: documents (token ids and labels), and the assignment of documents to micro-batches and steps. A
 * pure function of (files, seed, step): it does not depend on ranks, and resuming needs no stored state. */
#ifndef TRAIN_DATA_H
#define TRAIN_DATA_H

#include <fsdpck/source.h>
#include <train/train.h>

struct data;

/* Some documents, one after the other. Rows matter no more: attention sees documents, and there is no padding. */
struct micro_batch {
    const uint32_t *docs; /* (ndocs) */
    size_t ndocs;
    int64_t ntok;
    int64_t token0; /* tokens of the step before this micro-batch */
    int64_t nsupervised;
};

struct step_plan {
    struct micro_batch *micros; /* (nmicros), in global order. Owned */
    size_t nmicros;
    int64_t ntok, nsupervised;
    uint32_t *docs; /* owns what the micros point at, or NULL */
};

/* Reads data.train and data.plan whole. Ids are checked against nvocab. */
int data_open(const struct train_config *config, int64_t nvocab, const struct fsdpck_options *opt, struct data **out,
              struct fsdpck_error *err);
void data_close(struct data *d); /* NULL does nothing */

/* Steps of the whole run: of num_train_epochs, or max_steps. Refuses a max_steps that data.plan cannot give. */
int data_nsteps(const struct data *d, const struct train_config *config, uint64_t *out, struct fsdpck_error *err);
/* Tokens and documents of the largest micro-batch that can come, for buffers. */
void data_largest(const struct data *d, int64_t *ntok, size_t *ndocs);
void data_tell(const struct data *d, struct train_data_facts *out);
/* Equal for equal tokens, whatever rows they are packed into. */
uint64_t data_content(const struct data *d);
/* Equal for equal data, plan, packing and batch: what a resumed run compares. */
uint64_t data_fingerprint(const struct data *d);

/* Whether documents hold the date. */
bool data_is_dated(const struct data *d);

/* step counts from 0. Release with step_plan_free() in every case. One thread at a time: the order of the epoch is
 * kept. */
int data_step(const struct data *d, const struct train_config *config, uint64_t step, struct step_plan *out,
              struct fsdpck_error *err);
void step_plan_free(struct step_plan *p);
/* Every row once, in micro-batches of the order of packing: for evaluation. Release like a step's. */
int data_whole(const struct data *d, struct step_plan *out, struct fsdpck_error *err);

/* The micro-batch token for token: ids, positions (inside the document), targets (-1: none), each (ntok); bounds of
 * documents (ndocs + 1). */
void data_fill(const struct data *d, const struct micro_batch *m, int32_t *ids, int32_t *positions, int32_t *targets,
               int64_t *cu_seqlens);

#endif
