/* SPDX-License-Identifier: Apache-2.0 */
/* Streams that run as late as they may: what is put on one lies there until somebody waits for it, and then brings with
 * it only what events tie it to. Work that starts without the event it needs, or memory that is used again too early,
 * so gives a wrong result every time, where a GPU would give one now and then. Times of events are those of a clock
 * that goes on with each piece of work that has run. All of kern_device's contract of streams and events
 * (kernels/stream.h) but for this. */
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
