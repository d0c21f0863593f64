/* SPDX-License-Identifier: Apache-2.0 */
/* Streams that run as late as allowed. Work on a stream runs only when a thread waits for it, together with the work
 * that events order before it. So work that misses an event, or memory that is reused too early, gives a wrong result
 * every time, and not only now and then as on a GPU. Times of events come from a clock that advances with each piece of
 * work. Otherwise these streams and events obey the contract of kern_device (kernels/stream.h). */
#ifndef GUARDED_LATE_H
#define GUARDED_LATE_H

#include <kernels/stream.h>

#include <stddef.h>

/* inner: a stream of the CPU, on which the work runs at once. */
typedef void (*late_fn)(struct kern_stream *inner, void *args);

/* Appends work. args: from malloc; takes ownership. Any thread may call it. `run` may access the device's memory. */
void late_put(struct kern_stream *s, late_fn run, void *args);
/* The same for work that may wait for other ranks. It must enter the memory itself. */
void late_put_waiting(struct kern_stream *s, late_fn run, void *args);
/* Copies both blocks into one allocation, the second aligned behind the first; *second: its address. Ends the program
 * if out of memory. */
void *late_copy(const void *first, size_t first_nbytes, const void *second_from, size_t second_nbytes, void **second);
/* Runs all work that is on the stream now. */
void late_run(struct kern_stream *s);
/* Number of commands that have run. */
uint64_t late_done(struct kern_stream *s);
struct kern_stream *late_inner(const struct kern_stream *s);
bool late_is_early(const struct kern_stream *s);

/* early: work runs at once, together with the work of other streams that events order before it. */
int late_stream_new(struct kern_stream *inner, bool early, struct kern_stream **out, char *message);
/* Runs the remaining work. Returns the inner stream, which the caller owns. */
struct kern_stream *late_stream_end(struct kern_stream *s);

int late_event_new(int index, bool timed, struct kern_event **out, char *message);
void late_event_free(struct kern_event *e);
void late_event_record(struct kern_event *e, struct kern_stream *s);
void late_event_wait(struct kern_event *e, struct kern_stream *s);
int late_event_sync(struct kern_event *e);
/* Time of the device's clock. */
uint64_t late_now_ns(void);
uint64_t late_event_elapsed_ns(struct kern_event *from, struct kern_event *to);

#endif
