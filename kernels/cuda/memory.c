/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory, and pinned host memory: memory of the CPU backend, locked and registered with the driver, so that the
 * device copies from it at full speed. */
#include <kernels/memory.h>

#include "cuda/device.h"
#include "cuda/stream.h"

#include <cuda_runtime_api.h>

static const struct kern_memory *host_memory(void)
{
    char message[KERN_MESSAGE_BYTES];
    return kern_device_find("cpu", message)->memory;
}

static int alloc_device(struct kern_location location, size_t nbytes, struct kern_buffer *out, char *message)
{
    void *data = NULL;
    cudaError_t code = (cudaError_t)cuda_use(location.index);
    if (code == cudaSuccess)
        code = cudaMalloc(&data, nbytes);
    if (code == cudaSuccess)
        code = cudaMemset(data, 0, nbytes);
    if (code == cudaSuccess)
        code = cudaDeviceSynchronize();
    if (code == cudaSuccess) {
        out->data = data;
        out->nbytes = nbytes;
        return KERN_OK;
    }
    cudaFree(data);
    return cuda_memory_message(message, "a buffer", nbytes, location.index, code);
}

static int alloc_pinned(struct kern_location location, size_t nbytes, struct kern_buffer *out, char *message)
{
    int rc = host_memory()->alloc(location, nbytes, out, message);
    if (rc != KERN_OK)
        return rc;
    cudaError_t code = (cudaError_t)cuda_use(location.index);
    if (code == cudaSuccess)
        code = cudaHostRegister(out->data, nbytes, cudaHostRegisterPortable);
    if (code == cudaSuccess)
        return KERN_OK;
    host_memory()->free(out);
    return cuda_error_message(message, "locking host memory", code);
}

static int alloc(struct kern_location location, size_t nbytes, struct kern_buffer *out, char *message)
{
    *out = (struct kern_buffer){ .location = location };
    if (nbytes == 0)
        return KERN_OK;
    if (location.kind == KERN_MEMORY_DEVICE)
        return alloc_device(location, nbytes, out, message);
    return location.kind == KERN_MEMORY_PINNED ? alloc_pinned(location, nbytes, out, message)
                                               : host_memory()->alloc(location, nbytes, out, message);
}

static void release(struct kern_buffer *buffer)
{
    if (buffer->data && buffer->location.kind != KERN_MEMORY_HOST)
        cuda_use(buffer->location.index);
    if (buffer->data && buffer->location.kind == KERN_MEMORY_DEVICE) {
        cudaFree(buffer->data);
        *buffer = (struct kern_buffer){ 0 };
        return;
    }
    if (buffer->data && buffer->location.kind == KERN_MEMORY_PINNED)
        cudaHostUnregister(buffer->data);
    host_memory()->free(buffer);
}

static void check(struct kern_stream *s, const char *what, cudaError_t code)
{
    if (code != cudaSuccess)
        cuda_fail(s, KERN_ERR_LIBRARY, "%s: %s", what, cudaGetErrorString(code));
}

static void copy(struct kern_stream *s, void *dst, const void *src, size_t nbytes)
{
    cuda_use(s->index);
    if (!s->status && nbytes)
        check(s, "a copy", cudaMemcpyAsync(dst, src, nbytes, cudaMemcpyDefault, s->handle));
}

static void zero(struct kern_stream *s, void *dst, size_t nbytes)
{
    cuda_use(s->index);
    if (!s->status && nbytes)
        check(s, "zeroes", cudaMemsetAsync(dst, 0, nbytes, s->handle));
}

const struct kern_memory cuda_memory = { .alloc = alloc, .free = release, .copy = copy, .zero = zero };
