/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the time of work on a stream, by kind: a pair of events around each interval, read after it has ended. Not
 * thread-safe. */
#ifndef TRAIN_STREAM_TIMER_H
#define TRAIN_STREAM_TIMER_H

#include <fsdpck/error.h>
#include <kernels/stream.h>

struct stream_timer;

enum { STREAM_TIMER_INTERVALS = 1024 }; /* more than the gathers or exchanges of a micro-batch */

/* nintervals: maximum number of unread intervals; one more waits until all have ended. device is borrowed. */
int stream_timer_new(const struct kern_device *device, int index, unsigned nkinds, size_t nintervals,
                     struct stream_timer **out, struct fsdpck_error *err);
void stream_timer_free(struct stream_timer *l); /* NULL does nothing */

/* The work enqueued between begin and end is one interval; intervals do not nest. */
void stream_timer_begin(struct stream_timer *l, unsigned kind, struct kern_stream *s);
void stream_timer_end(struct stream_timer *l, struct kern_stream *s);
/* Total time of a kind; waits until all intervals have ended. */
uint64_t stream_timer_ns(struct stream_timer *l, unsigned kind);

#endif
