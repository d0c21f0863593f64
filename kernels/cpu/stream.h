/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU's stream: where work runs (in line, in a pool), what went wrong, and the scratch and primitives that products
 * keep. */
#ifndef CPU_STREAM_H
#define CPU_STREAM_H

#include <kernels/stream.h>

#include <pthread.h>

struct cpu_simd;
struct cpu_matmuls;
struct cpu_panels;

/* Scratch that a worker keeps from call to call; grown before a call's pieces start. */
struct cpu_scratch {
    void *data;
    size_t nbytes;
};

struct kern_stream {
    struct kern_pool *pool;
    const struct cpu_simd *simd;
    struct cpu_matmuls *matmuls;
    const struct cpu_panels *panels[2]; /* by kern_dtype; NULL: none */
    struct cpu_scratch *scratch;        /* (nthreads) */
    struct cpu_scratch shared;          /* all workers' */
    pthread_mutex_t lock;               /* of the two below: pieces fail too */
    int status;
    char message[KERN_MESSAGE_BYTES];
};

/* Keeps the first failure. Returns status. */
int cpu_fail(struct kern_stream *stream, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Makes every worker's scratch at least nbytes, aligned to 64. False, and the stream failed, where memory is not to be
 * had. */
bool cpu_reserve(struct kern_stream *stream, size_t nbytes);
/* Scratch that all workers share; NULL likewise. What was in it is lost. */
void *cpu_reserve_shared(struct kern_stream *stream, size_t nbytes);

extern const struct kern_ops cpu_ops;
extern const struct kern_memory cpu_memory;
extern const struct kern_device cpu_device;

#endif
