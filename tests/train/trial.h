/* SPDX-License-Identifier: Apache-2.0 */
/* A small random model with its data and config, for tests of gradients: as the fp64 reference has it, and as files. */
#ifndef TRIAL_H
#define TRIAL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <train/train.h>

#include "reference.h"

/* The first TRIALS_DENSE of the TRIALS have no experts. */
enum { TRIALS = 52, TRIALS_DENSE = 28, DOCUMENTS = 7, LONGEST = 19 };

struct document {
    int32_t ids[LONGEST], labels[LONGEST];
    int64_t ntok;
};

struct trial {
    uint64_t random;
    const char *family;
    bool lora, attention_bias, mlp_bias, recompute;
    double balance;      /* factor of the load balancing loss; 0: there is none */
    int64_t first_dense; /* of a mixture of experts: the layer without experts; -1: every layer has some */
    char targets[200];
    struct reference ref;
    struct document documents[DOCUMENTS];
    int64_t nsupervised;
    char folder[40], text[2400]; /* text: description of the trial, for messages */
    struct train_config config;
    struct train_session *session;
};

/* 0 … n-1 */
int64_t trial_below(struct trial *t, int64_t n);
/* -1 … 1 */
double trial_uniform(struct trial *t);
/* True for the families whose router is that of DeepSeek-V3. */
bool trial_has_sigmoids(const struct trial *t);
/* Adds a tensor to the reference: random values around `middle`, which fp32 can represent. */
void trial_add_tensor(struct trial *t, const char *name, int64_t nrow, int64_t ncol, double middle, double spread);
/* From t->random: everything but the files. */
void trial_draw(struct trial *t, int number);
/* Into t->folder; reads t->config. */
void trial_write(struct trial *t);
void trial_unlink(const struct trial *t);
void trial_must(int rc, const struct fsdpck_error *err);

#endif
