/* SPDX-License-Identifier: Apache-2.0 */
/* The ids of a tokenizer.json, read in one pass, and those that tokenizer_config.json adds: the highest one, and those
 * of tokens that look special. */
#ifndef CKPT_DOCTOR_TOKENS_H
#define CKPT_DOCTOR_TOKENS_H

#include "doctor/model.h"

struct doctor_tokens {
    uint64_t count;   /* highest id + 1; 0: there are none */
    const char *last; /* the token with the highest id, or "" */
    struct fsdpck_arena arena;
    struct fsdpck_vec ids;     /* uint64_t: of tokens that begin with '<' or '[' */
    struct fsdpck_names names; /* of these */
};

/* Returns 0 with *found false if there is no tokenizer.json: t has only what tokenizer_config.json adds.
 * fsdpck_doctor_tokens_free() releases t even after failure. */
int fsdpck_doctor_tokens_read(const struct doctor_model *m, struct doctor_tokens *t, bool *found,
                              struct fsdpck_error *err);
void fsdpck_doctor_tokens_free(struct doctor_tokens *t);
/* Returns false if the tokenizer has no such token. */
bool fsdpck_doctor_token_id(const struct doctor_tokens *t, const char *token, uint64_t *id);

#endif
