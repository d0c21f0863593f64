/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory by mmap: zero-filled, returned to the system when freed; on request on huge pages or near a NUMA node. */
#include "cpu/stream.h"

#include <errno.h>
#include <kernels/memory.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PREFERRED = 1, MAX_NODES = 1024 }; /* MPOL_PREFERRED, without libnuma's header */

/* Asks for memory near a node. If the kernel refuses, the memory is merely further away; a node that does not exist is
 * an error. */
static int prefer_node(void *data, size_t nbytes, int node, char *message)
{
    unsigned long mask[MAX_NODES / (8 * sizeof(unsigned long))] = { 0 };
    if (node < 0 || node >= MAX_NODES) {
        snprintf(message, KERN_MESSAGE_BYTES, "NUMA node %d is out of range", node);
        return KERN_ERR_ARG;
    }
    mask[(size_t)node / (8 * sizeof(*mask))] = 1ul << ((size_t)node % (8 * sizeof(*mask)));
    if (syscall(SYS_mbind, data, nbytes, PREFERRED, mask, (unsigned long)MAX_NODES, 0u) == 0 || errno == EPERM ||
        errno == ENOSYS)
        return KERN_OK;
    snprintf(message, KERN_MESSAGE_BYTES, "NUMA node %d: %s", node, strerror(errno));
    return KERN_ERR_SYSTEM;
}

static int alloc(struct kern_location location, size_t nbytes, struct kern_buffer *out, char *message)
{
    *out = (struct kern_buffer){ .location = location };
    if (nbytes == 0)
        return KERN_OK;
    void *data = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
        snprintf(message, KERN_MESSAGE_BYTES, "no memory for a buffer of %zu bytes: %s", nbytes, strerror(errno));
        return KERN_ERR_MEMORY;
    }
    if (location.huge_pages)
        madvise(data, nbytes, MADV_HUGEPAGE); /* a hint; systems without huge pages refuse it */
    int rc = location.numa_node ? prefer_node(data, nbytes, location.numa_node - 1, message) : KERN_OK;
    if (rc != KERN_OK) {
        munmap(data, nbytes);
        return rc;
    }
    out->data = data;
    out->nbytes = nbytes;
    return KERN_OK;
}

static void release(struct kern_buffer *buffer)
{
    if (buffer->data)
        munmap(buffer->data, buffer->nbytes);
    *buffer = (struct kern_buffer){ 0 };
}

static void copy(struct kern_stream *stream, void *dst, const void *src, size_t nbytes)
{
    if (!stream->status && nbytes)
        memcpy(dst, src, nbytes);
}

static void zero(struct kern_stream *stream, void *dst, size_t nbytes)
{
    if (!stream->status && nbytes)
        memset(dst, 0, nbytes);
}

const struct kern_memory cpu_memory = { .alloc = alloc, .free = release, .copy = copy, .zero = zero };
