/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU's stream: the pool that runs its work synchronously, its error, and the scratch and primitives that it
 * caches. */
#ifndef CPU_STREAM_H
#define CPU_STREAM_H

#include <kernels/stream.h>

#include <pthread.h>

struct cpu_simd;
struct cpu_matmuls;
struct cpu_panels;
struct cpu_packed_choices;

/* Scratch of a worker, kept between calls. It grows before the pieces of a call start. */
struct cpu_scratch {
    void *data;
    size_t nbytes;
};

struct kern_stream {
    struct kern_pool *pool;
    const struct cpu_simd *simd;
    struct cpu_matmuls *matmuls;
    const struct cpu_panels *panels[2]; /* by kern_dtype; NULL: none */
    struct cpu_packed_choices *choices; /* the fastest plan of each shape, measured */
    struct cpu_scratch *scratch;        /* (nthreads) */
    pthread_mutex_t lock;               /* protects the two below, because pieces may fail concurrently */
    int status;
    char message[KERN_MESSAGE_BYTES];
};

/* Records a failure; the first one wins. Returns the stream's status. */
int cpu_fail(struct kern_stream *stream, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Grows every worker's scratch to at least nbytes, aligned to 64. Out of memory: sets the stream's error and returns
 * false. */
bool cpu_reserve(struct kern_stream *stream, size_t nbytes);

extern const struct kern_ops cpu_ops;
extern const struct kern_memory cpu_memory;
extern const struct kern_device cpu_device;

#endif
