/* SPDX-License-Identifier: Apache-2.0 */
/* See device.h. Streams run synchronously; events and allocation are the CPU's. */
#include "cuda/shim/device.h"

#include "cpu/stream.h"

#include <kernels/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct kern_stream *cuda_shim_stream_new(void);
void cuda_shim_stream_free(struct kern_stream *stream);
int cuda_shim_stream_status(struct kern_stream *stream, char *message, bool take);

static int stream_new(int index, struct kern_pool *pool, struct kern_stream **out, char *message)
{
    (void)pool;
    if (index != 0) {
        snprintf(message, KERN_MESSAGE_BYTES, "the shim is one device, number 0; there is no %d", index);
        return KERN_ERR_DEVICE;
    }
    struct kern_stream *stream = cuda_shim_stream_new();
    if (!stream) {
        snprintf(message, KERN_MESSAGE_BYTES, "no memory for a stream");
        return KERN_ERR_MEMORY;
    }
    *out = stream;
    return KERN_OK;
}

static int stream_status(struct kern_stream *stream, char *message)
{
    return cuda_shim_stream_status(stream, message, false);
}

static int stream_sync(struct kern_stream *stream, char *message)
{
    return cuda_shim_stream_status(stream, message, true);
}

static void copy(struct kern_stream *stream, void *dst, const void *src, size_t nbytes)
{
    (void)stream;
    if (nbytes)
        memcpy(dst, src, nbytes);
}

static void zero(struct kern_stream *stream, void *dst, size_t nbytes)
{
    (void)stream;
    if (nbytes)
        memset(dst, 0, nbytes);
}

const struct kern_device *cuda_shim_device(void)
{
    static struct kern_device device;
    static struct kern_memory memory;
    extern const struct kern_ops cuda_ops;
    extern const struct kern_expert_ops cuda_expert_ops;
    extern const struct kern_image_ops cuda_image_ops;
    memory = cpu_memory;
    memory.copy = copy;
    memory.zero = zero;
    device = cpu_device; /* its events are clock readings and ignore the stream */
    device.name = "cuda-shim";
    device.ops = &cuda_ops;
    device.experts = &cuda_expert_ops;
    device.images = &cuda_image_ops;
    device.memory = &memory;
    device.stream_new = stream_new;
    device.stream_free = cuda_shim_stream_free;
    device.stream_sync = stream_sync;
    device.stream_status = stream_status;
    return &device;
}
