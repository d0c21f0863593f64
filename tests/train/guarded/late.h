/* SPDX-License-Identifier: Apache-2.0 */
/* Streams that run as late as allowed. Work on a stream runs only when a thread waits for it, together with the work
 * that events order before it. So work that misses an event, or memory that is reused too early, gives a wrong result
 * every time, and not only now and then as on a GPU. Times of events come from a clock that advances with each piece of
 * work. Otherwise these streams and events obey the contract of kern_device (kernels/stream.h). */
#ifndef GUARDED_LATE_H
#define GUARDED_LATE_H

#include <kernels/stream.h>

#include <stddef.h>

/* inner: a stream of the processor, on which it runs at once. */
typedef void (*late_fn)(struct kern_stream *inner, void *args);

/* args: of malloc, taken over. Any thread. It may touch the device's memory when it runs. */
void late_put(struct kern_stream *s, late_fn run, void *args);
/* One that may wait for other ranks, and enters the memory itself. */
void late_put_waiting(struct kern_stream *s, late_fn run, void *args);
/* One block of a copy of each, the second behind the first and aligned; where it is goes to *second. Ends the program
 * where there is no memory. */
void *late_copy(const void *first, size_t first_nbytes, const void *second_from, size_t second_nbytes, void **second);
/* All that has been put there by now is run. */
void late_run(struct kern_stream *s);
/* How much of it has run. */
uint64_t late_done(struct kern_stream *s);
struct kern_stream *late_inner(const struct kern_stream *s);
bool late_is_early(const struct kern_stream *s);

/* early: what is put on it runs at once, and of other streams what events tie it to. */
int late_stream_new(struct kern_stream *inner, bool early, struct kern_stream **out, char *message);
/* Runs what is there. Returns its inner stream, which is the caller's. */
struct kern_stream *late_stream_end(struct kern_stream *s);

int late_event_new(int index, bool timed, struct kern_event **out, char *message);
void late_event_free(struct kern_event *e);
void late_event_record(struct kern_event *e, struct kern_stream *s);
void late_event_wait(struct kern_event *e, struct kern_stream *s);
int late_event_sync(struct kern_event *e);
/* The clock. */
uint64_t late_now_ns(void);
uint64_t late_event_elapsed_ns(struct kern_event *from, struct kern_event *to);

#endif
