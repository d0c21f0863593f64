/* SPDX-License-Identifier: Apache-2.0 */
/* Memory by place, and copies on a stream. Nothing here knows what the bytes mean. */
#ifndef KERNELS_MEMORY_H
#define KERNELS_MEMORY_H

#include <kernels/stream.h>
#include <kernels/types.h>

#ifdef __cplusplus
extern "C" {
#endif

enum kern_place_kind {
    KERN_PLACE_HOST,
    KERN_PLACE_PINNED, /* host memory that a device copies from at full speed; on the CPU the same as KERN_PLACE_HOST */
    KERN_PLACE_DEVICE, /* the device's own; on the CPU the same as KERN_PLACE_HOST */
};

struct kern_place {
    enum kern_place_kind kind;
    int index;       /* which device, for KERN_PLACE_DEVICE and _PINNED */
    int numa_node;   /* host memory: preferred node + 1; 0 is wherever it is touched first */
    bool huge_pages; /* host memory: ask for them (madvise) */
};

/* Owns its memory. Zero bytes are a valid buffer with data NULL. */
struct kern_buffer {
    void *data; /* aligned to 4096 */
    size_t nbytes;
    struct kern_place place;
};

struct kern_memory {
    /* Zero-filled. On failure *out is empty and message (KERN_MESSAGE_BYTES) says why. */
    int (*alloc)(struct kern_place place, size_t nbytes, struct kern_buffer *out, char *message);
    /* Leaves *buffer empty. Work that uses it must be done. */
    void (*free)(struct kern_buffer *buffer);
    /* Between any two places that this device reaches; may not overlap. */
    void (*copy)(struct kern_stream *, void *dst, const void *src, size_t nbytes);
    void (*zero)(struct kern_stream *, void *dst, size_t nbytes);
};

#ifdef __cplusplus
}
#endif
#endif
