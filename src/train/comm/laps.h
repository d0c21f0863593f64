/* SPDX-License-Identifier: Apache-2.0 */
/* How long work took on a stream, by kind: a pair of events a piece, asked when it is over. The host sees only how long it took to put it there. One thread. */
#ifndef TRAIN_LAPS_H
#define TRAIN_LAPS_H

#include <fsdpck/error.h>
#include <kernels/stream.h>

struct laps;

enum { LAPS_OF_COMM = 1024 }; /* more than a micro-batch gathers or exchanges */

/* nlaps: pieces that may be unasked; at one more all are waited for. device is borrowed. */
int laps_new(const struct kern_device *device, int index, unsigned nkinds, size_t nlaps, struct laps **out, struct fsdpck_error *err);
void laps_free(struct laps *l); /* NULL does nothing */

/* What the stream is given between them is one piece; pieces do not nest. */
void laps_begin(struct laps *l, unsigned kind, struct kern_stream *s);
void laps_end(struct laps *l, struct kern_stream *s);
/* Of all pieces that have ended, which it waits for. */
uint64_t laps_ns(struct laps *l, unsigned kind);

#endif
