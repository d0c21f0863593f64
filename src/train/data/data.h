/* SPDX-License-Identifier: Apache-2.0 */
/* The training data: documents (token ids and labels), and their assignment to micro-batches and steps. A pure function
 * of (files, seed, step): it does not depend on the number of ranks, and a resumed run needs no stored state. */
#ifndef TRAIN_DATA_H
#define TRAIN_DATA_H

#include <fsdpck/source.h>
#include <train/train.h>

struct data;

/* Concatenated documents. Row boundaries no longer matter: attention is per document, and there is no padding. */
struct micro_batch {
    const uint32_t *docs; /* (ndocs) */
    size_t ndocs;
    int64_t ntok;
    int64_t token0; /* number of tokens of the step before this micro-batch */
    size_t number;  /* of this micro-batch in the step */
    int64_t nsupervised;
};

struct step_plan {
    struct micro_batch *micros; /* (nmicros), in global order. Owned */
    size_t nmicros;
    int64_t ntok, nsupervised;
    uint32_t *docs; /* owns the arrays that the micros point to, or NULL */
};

/* Reads all of data.train and data.plan. Checks ids against nvocab. */
int data_open(const struct train_config *config, int64_t nvocab, const struct fsdpck_options *opt, struct data **out,
              struct fsdpck_error *err);
void data_close(struct data *d); /* NULL does nothing */

/* Changes train.micro_batch_size, without reading anything again. */
void data_set_micro_rows(struct data *d, uint64_t nrows);
/* Number of steps of the whole run, from num_train_epochs or max_steps. Returns an error if data.plan has fewer than
 * max_steps. */
int data_nsteps(const struct data *d, const struct train_config *config, uint64_t *out, struct fsdpck_error *err);
/* Upper bounds for the tokens and documents of a micro-batch, for buffers. */
void data_largest(const struct data *d, int64_t *ntok, size_t *ndocs);
void data_describe(const struct data *d, struct train_data_facts *out);
/* Hash of the tokens. It does not depend on the packing into rows. */
uint64_t data_content(const struct data *d);
/* Hash of data, plan, packing and batch, which a resumed run must share. */
uint64_t data_fingerprint(const struct data *d);

/* True if documents contain the date. */
bool data_is_dated(const struct data *d);

/* step counts from 0. Release *out with step_plan_free(), also on failure. Not thread-safe: caches the order of the
 * epoch. */
int data_step(const struct data *d, const struct train_config *config, uint64_t step, struct step_plan *out,
              struct fsdpck_error *err);
void step_plan_free(struct step_plan *p);
/* Every row once, in micro-batches in packing order, for evaluation. Release *out with step_plan_free(). */
int data_all_rows(const struct data *d, struct step_plan *out, struct fsdpck_error *err);

/* Fills the token arrays of a micro-batch: ids, positions (within the document), targets (-1: none), each (ntok); and
 * the bounds of its documents (ndocs + 1). */
void data_fill(const struct data *d, const struct micro_batch *m, int32_t *ids, int32_t *positions, int32_t *targets,
               int64_t *cu_seqlens);

#endif
