/* SPDX-License-Identifier: Apache-2.0 */
/* A message to one rank, and one from another: data only, without a communicator. */
#ifndef TRAIN_TRADE_H
#define TRAIN_TRADE_H

#include <stddef.h>
#include <stdint.h>

enum { TRADE_SPANS = 8 };

/* Memory of the calling rank. */
struct trade_span {
    void *data; /* not changed in `out` */
    size_t nbytes;
};

/* The message from a rank is the one that it sends to the caller in the same operation: its spans have the sizes of
 * `in`. */
struct comm_trade {
    uint32_t to, from;
    struct trade_span out[TRADE_SPANS], in[TRADE_SPANS]; /* (nout), (nin) */
    size_t nout, nin;
};

/* Adds a span; nothing if it has no bytes. */
static inline void trade_send(struct comm_trade *t, void *data, size_t nbytes)
{
    if (nbytes)
        t->out[t->nout++] = (struct trade_span){ data, nbytes };
}

static inline void trade_receive(struct comm_trade *t, void *data, size_t nbytes)
{
    if (nbytes)
        t->in[t->nin++] = (struct trade_span){ data, nbytes };
}

#endif
