/* SPDX-License-Identifier: Apache-2.0 */
/* Finds a rank that is slower than the others: all of them wait for it in every step. Pure: takes times, knows no
 * clock. */
#ifndef TRAIN_PACE_H
#define TRAIN_PACE_H

#include "rank/rank.h"

enum { PACE_STEPS = 16 }; /* steps that are judged together */

struct pace {
    uint64_t nsteps;              /* added since the last judgement */
    double seconds[COMM_MAX_SUM]; /* of each rank in these steps */
    int64_t ntok[COMM_MAX_SUM];   /* that it computed in them */
    bool is_known[COMM_MAX_SUM];  /* it has been reported */
};

/* Tokens of each of the n ranks in a step. per: micro-batches of a packet. */
void pace_tokens(const struct step_plan *plan, size_t per, uint32_t n, int64_t *ntok);
/* Adds a step: what each of the n ranks computed, and how long it took. Returns true if a rank that has not been
 * reported yet takes much longer for a token than the others; writes a sentence about it to line. */
bool pace_add(struct pace *p, uint32_t n, const double *busy_seconds, const int64_t *ntok, char line[240]);

#endif
