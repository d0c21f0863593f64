/* SPDX-License-Identifier: Apache-2.0 */
/* Memory on the host and on devices, and copies on a stream. */
#ifndef KERNELS_MEMORY_H
#define KERNELS_MEMORY_H

#include <kernels/stream.h>
#include <kernels/types.h>

#ifdef __cplusplus
extern "C" {
#endif

enum kern_memory_kind {
    KERN_MEMORY_HOST,
    KERN_MEMORY_PINNED, /* host memory that a device copies from at full speed; on the CPU the same as KERN_MEMORY_HOST
                         */
    KERN_MEMORY_DEVICE, /* the device's own; on the CPU the same as KERN_MEMORY_HOST */
};

struct kern_location {
    enum kern_memory_kind kind;
    int index;       /* device number, for KERN_MEMORY_DEVICE and KERN_MEMORY_PINNED */
    int numa_node;   /* host memory: preferred NUMA node + 1; 0: the node that touches it first */
    bool huge_pages; /* host memory: ask for them (madvise) */
};

/* Owns its memory. Zero bytes are a valid buffer with data NULL. */
struct kern_buffer {
    void *data; /* aligned to 4096 */
    size_t nbytes;
    struct kern_location location;
};

struct kern_memory {
    /* Zero-filled. On failure *out is empty and message (KERN_MESSAGE_BYTES) says why. */
    int (*alloc)(struct kern_location location, size_t nbytes, struct kern_buffer *out, char *message);
    /* Leaves *buffer empty. All work that uses it must have ended. */
    void (*free)(struct kern_buffer *buffer);
    /* Between any two locations that the device can access. dst and src must not overlap. */
    void (*copy)(struct kern_stream *, void *dst, const void *src, size_t nbytes);
    void (*zero)(struct kern_stream *, void *dst, size_t nbytes);
};

#ifdef __cplusplus
}
#endif
#endif
