/* SPDX-License-Identifier: Apache-2.0 */
/* Numbered requests: a retry is the request that it repeats, and a refused one uses its number up. */
#ifndef SERVE_ADMIT_H
#define SERVE_ADMIT_H

#include "serve/call.h"

/* NULL: the request is new. Otherwise the answer that its first arrival got, or a refusal. */
struct MHD_Response *admit_again(const struct numbers *n, int64_t number, uint64_t hash, unsigned *status);
/* The model of a request that is new; NULL: *answer is the answer. */
struct model *admit_model(struct call *c, const char *id, int64_t seq, unsigned *status, struct MHD_Response **answer);
/* Refuses a request of a model, after admit_model(). */
struct MHD_Response *admit_refuse(struct call *c, struct model *m, int64_t seq, struct MHD_Response *refusal);
/* Gives r (NULL: out of memory) a future, and submits it in order. */
struct MHD_Response *admit_submit(struct call *c, struct model *m, int64_t seq, struct request *r, unsigned *status);

#endif
