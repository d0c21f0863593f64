/* SPDX-License-Identifier: Apache-2.0 */
/* Devices, streams and events. Kernels and copies take a stream: a device's runs later and in order, the CPU's runs in line, in the calling thread and its
 * pool. Errors come late: a call that fails leaves its words in the stream, and what follows on that stream does nothing until they are taken. What a device's
 * kernel finds wrong with numbers that only it sees (an index) is known when somebody waits: kernels that go by indices do nothing from then on, others may have
 * run, inside the memory they were given. */
#ifndef KERNELS_STREAM_H
#define KERNELS_STREAM_H

#include <kernels/pool.h>
#include <kernels/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kern_ops;
struct kern_memory;
struct kern_stream;
struct kern_event;
struct kern_recording;

/* One row a kind of device. Ask kern_device_find for it; hold it for as long as you like. */
struct kern_device {
    const char *name; /* "cpu", "cuda" */
    bool apart;       /* its memory (KERN_PLACE_DEVICE) is its own: the host cannot read it, and its kernels read no other. Else both are the same */
    int64_t row_unit; /* numbers of rows (tokens) that recur are worth rounding up to a multiple of it: tiles are as high, and what is chosen by shape is chosen once */
    const struct kern_ops *ops;
    const struct kern_memory *memory;

    /* index: which of the devices of this kind (CPU: 0). pool: borrowed, for work in line; NULL is one thread, and on a device a stream whose work goes ahead of
     * those with a pool: copies and exchanges, which kernels wait for, and what operations do without scratch, which it has none of: no products, adamw,
     * sum_squares or attention_one. On failure *out is left alone and message, of KERN_MESSAGE_BYTES, says why. */
    int (*stream_new)(int index, struct kern_pool *pool, struct kern_stream **out, char *message);
    /* After what is on it has run. NULL does nothing. */
    void (*stream_free)(struct kern_stream *);
    /* Waits for all that was put on the stream, and returns its status: 0, or the first failure, with its words in message. Taking it clears it. */
    int (*stream_sync)(struct kern_stream *, char *message);
    /* The same without waiting: what is known so far; it stays. */
    int (*stream_status)(struct kern_stream *, char *message);

    /* Work that comes again and again. What this thread puts on the stream between record and recorded is not done but kept: operations, and copies on
     * the device; replay puts all of it on the stream, with the same arguments, by one call. False or NULL: there is no recording, nothing was done, and the stream
     * is as before. record is NULL on a device without recordings. */
    bool (*record)(struct kern_stream *);
    struct kern_recording *(*recorded)(struct kern_stream *);
    void (*replay)(struct kern_recording *, struct kern_stream *);
    void (*recording_free)(struct kern_recording *); /* after what it put on streams has run; NULL does nothing */

    /* An event marks a place in a stream. timed: event_elapsed_ns takes it, and waiting for it costs more. */
    int (*event_new)(int index, bool timed, struct kern_event **out, char *message);
    void (*event_free)(struct kern_event *); /* NULL does nothing */
    void (*event_record)(struct kern_event *, struct kern_stream *);
    /* What is put on the stream from now on starts after the event. */
    void (*event_wait)(struct kern_event *, struct kern_stream *);
    /* The calling thread waits. */
    int (*event_sync)(struct kern_event *);
    /* Between two recorded events that are timed, both reached. */
    uint64_t (*event_elapsed_ns)(struct kern_event *from, struct kern_event *to);
};

/* "cpu" is always there; others come out of modules (module.h). Else NULL and one sentence in message (KERN_MESSAGE_BYTES). */
const struct kern_device *kern_device_find(const char *name, char *message);

/* What the CPU's kernels run on, for logs: "avx512, oneDNN 2.6.3, bf16 products as such". text: of KERN_MESSAGE_BYTES. */
void kern_cpu_describe(char *text);

#ifdef __cplusplus
}
#endif
#endif
