/* SPDX-License-Identifier: Apache-2.0 */
/* Probes: calls of operations whose time gives a rate. The same call on a device on paper gives the amount of work. */
#ifndef TRAIN_PROBE_H
#define TRAIN_PROBE_H

#include <kernels/stream.h>

#include "price/rates.h"

enum { PROBE_ARENA_NBYTES = 96 << 20 };

struct prober {
    const struct kern_device *device; /* the real one, or one on paper */
    struct kern_stream *stream;
    char *arena; /* (PROBE_ARENA_NBYTES) operands and results */
    size_t at;   /* bytes of the arena that the probe has taken; 0 before each call */
    enum kern_dtype dtype;
    bool variant;      /* attention: several short documents instead of a long one */
    unsigned nthreads; /* of the stream */
    double busy;       /* sum of nbusy values of rates_busy() */
    unsigned nbusy;
};

typedef void probe_fn(struct prober *p);

/* NULL: the rate follows from that before it. */
extern probe_fn *const probe_typed[RATES_NTYPED];
probe_fn probe_adamw, probe_squares, probe_memory, probe_calls;

#endif
