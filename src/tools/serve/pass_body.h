/* SPDX-License-Identifier: Apache-2.0 */
/* The body of a pass, in protobuf: from its bytes to the data and the loss of a task. Everything in it is untrusted. */
#ifndef SERVE_PASS_BODY_H
#define SERVE_PASS_BODY_H

#include <train/serve.h>

#include "tinker.pb-c.h"

struct pass_body {
    TinkerPublic__ForwardBackwardRequest *message; /* owned: its model_id and seq_id */
    struct serve_datum *data;                      /* (ndata) */
    size_t ndata;
    void **arrays; /* (narrays) of the data */
    size_t narrays, capacity;
};

/* The reason of a refusal, for the client. */
struct pass_wrong {
    char text[300];
};

/* NULL: the bytes are not such a message, or there is no memory. */
struct pass_body *pass_body_new(const void *bytes, size_t nbytes);
void pass_body_free(struct pass_body *b); /* NULL does nothing */
/* Fills all of *out but its results; its data are borrowed from b. The values of tokens are not checked
 * (serve_check()). */
bool pass_body_take(struct pass_body *b, struct serve_pass *out, struct pass_wrong *wrong);

#endif
