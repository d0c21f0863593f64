/* SPDX-License-Identifier: Apache-2.0 */
/* Devices, streams and events. Kernels and copies take a stream. A device runs them later, in order; the CPU runs them
 * at once, in the calling thread and its pool. Errors are deferred: a call that fails leaves its message in the
 * stream, and later work on that stream does nothing until the error is taken. Errors that only a kernel on the device
 * can see (a wrong index) appear when the host synchronises. Until then, kernels that use indices do nothing, and
 * other kernels may run, within the memory they were given. */
#ifndef KERNELS_STREAM_H
#define KERNELS_STREAM_H

#include <kernels/pool.h>
#include <kernels/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kern_ops;
struct kern_expert_ops;
struct kern_image_ops;
struct kern_memory;
struct kern_stream;
struct kern_event;
struct kern_recording;

/* A kind of device. kern_device_find returns it; it stays valid for ever. */
struct kern_device {
    const char *name;     /* "cpu", "cuda" */
    bool separate_memory; /* true: the device has its own memory (KERN_MEMORY_DEVICE), which the host cannot read, and
                   its kernels read no other. false: device memory is host memory */
    int64_t row_unit; /* height of a tile; callers round recurring numbers of rows (tokens) up to a multiple of it, so
                         that few shapes occur and each is chosen once */
    const struct kern_ops *ops;
    const struct kern_expert_ops *experts; /* experts.h */
    const struct kern_image_ops *images;   /* image.h; NULL: the device has none */
    const struct kern_memory *memory;

    /* index: the device number (CPU: 0). pool: borrowed, for CPU kernels; NULL: one thread. On a device, a stream
     * without a pool has high priority; it serves the copies and exchanges that kernels wait for. It has no scratch, so
     * it must not run products, adamw, sum_squares or attention_one. On failure *out is unchanged and message
     * (KERN_MESSAGE_BYTES) gives the reason. */
    int (*stream_new)(int index, struct kern_pool *pool, struct kern_stream **out, char *message);
    /* Call it after the work on the stream has run. NULL does nothing. */
    void (*stream_free)(struct kern_stream *);
    /* Waits for all work on the stream and returns its status: 0, or the first failure, with its message. Clears the
     * error. */
    int (*stream_sync)(struct kern_stream *, char *message);
    /* Returns the status known so far, without waiting or clearing it. */
    int (*stream_status)(struct kern_stream *, char *message);

    /* Recordings (CUDA graphs). Between record and recorded, the work that this thread puts on the stream is recorded,
     * not executed: operations, and copies on the device. replay enqueues all of it in one call, with the same
     * arguments. False or NULL: nothing was recorded, nothing was done, and the stream is as before. record is NULL on
     * a device without recordings. */
    bool (*record)(struct kern_stream *);
    struct kern_recording *(*recorded)(struct kern_stream *);
    void (*replay)(struct kern_recording *, struct kern_stream *);
    void (*recording_free)(struct kern_recording *); /* call it after all replays have run; NULL does nothing */

    /* An event marks a point in a stream. timed: event_elapsed_ns accepts it; waiting for it costs more. */
    int (*event_new)(int index, bool timed, struct kern_event **out, char *message);
    void (*event_free)(struct kern_event *); /* NULL does nothing */
    void (*event_record)(struct kern_event *, struct kern_stream *);
    /* Work enqueued from now on starts after the event. */
    void (*event_wait)(struct kern_event *, struct kern_stream *);
    /* Blocks the calling thread. */
    int (*event_sync)(struct kern_event *);
    /* Time between two events that are recorded, timed and reached. */
    uint64_t (*event_elapsed_ns)(struct kern_event *from, struct kern_event *to);
};

/* "cpu" always exists; other devices come from modules (module.h). Returns NULL and one sentence in message
 * (KERN_MESSAGE_BYTES) if there is no such device. */
const struct kern_device *kern_device_find(const char *name, char *message);

/* Describes the CPU kernels for logs: "avx512, oneDNN 2.6.3, bf16 products as such". text: of KERN_MESSAGE_BYTES. */
void kern_cpu_describe(char *text);

#ifdef __cplusplus
}
#endif
#endif
