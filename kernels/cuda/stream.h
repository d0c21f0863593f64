/* SPDX-License-Identifier: Apache-2.0 */
/* The part of a stream that the CUDA operations see: a handle to enqueue work, scratch allocated in advance, and two
 * paths for errors. streams.c fills it from the CUDA runtime; the shim, which runs the same kernels on the CPU, fills
 * it without. It names no CUDA type, so that C files need no CUDA headers. */
#ifndef CUDA_STREAM_H
#define CUDA_STREAM_H

#include <kernels/stream.h>

#ifdef __cplusplus
extern "C" {
#endif

struct cuda_matmuls;

/* An error that a kernel found in data that only the device sees. It lies in device memory, zeroed at first
 * (CUDA_FAULT_NONE). The first fault is kept. While one is set, kernels that use indices do nothing. cuda_fault_report
 * turns it into a message. */
enum cuda_fault_kind { CUDA_FAULT_NONE, CUDA_FAULT_INDEX, CUDA_FAULT_TARGET };

struct cuda_fault {
    int32_t kind; /* enum cuda_fault_kind */
    int32_t value;
    int64_t row, limit;
};

struct kern_stream {
    void *handle; /* cudaStream_t */
    int index;    /* device number */
    int status;   /* first error known on the host */
    char message[KERN_MESSAGE_BYTES];
    struct cuda_fault *fault; /* on the device */
    void *scratch; /* on the device, aligned to 256: workspace of products, lists, partial results for a second launch.
                      Calls on a stream use it in turn; NULL on a high-priority stream */
    size_t scratch_nbytes; /* CUDA_SCRATCH_BYTES */
    void *panel;           /* on the device, aligned to 256: operands materialised for a product */
    size_t panel_nbytes;
    struct cuda_matmuls *matmuls; /* library handle and cached choices; NULL on a high-priority stream */
    bool warpgroups;              /* the device has wgmma (compute capability 9.x only) */
};

/* The workspace that cuBLASLt recommends on Hopper; and a panel small enough to stay in the cache until it is
 * multiplied. */
enum { CUDA_SCRATCH_BYTES = 32 << 20, CUDA_PANEL_BYTES = 16 << 20 };

/* Returns true if the stream has scratch, for products and lists. Otherwise sets the stream's error. */
bool cuda_has_scratch(struct kern_stream *stream);
/* Records a failure; the first one wins. Returns the stream's status. */
int cuda_fail(struct kern_stream *stream, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Calls cuda_fail with KERN_ERR_ARG and `words` if !ok. Returns false if the stream has failed, now or earlier. */
bool cuda_check(struct kern_stream *stream, bool ok, const char *words);
/* Copies to host memory, after the work before it, and waits. Zeros if the stream has failed. */
void cuda_read_back(struct kern_stream *stream, void *host, const void *from, size_t nbytes);
/* Sets the stream's error from a fault that a kernel found. f: a copy on the host, made after the work on the stream
 * has run. */
void cuda_fault_report(struct kern_stream *stream, const struct cuda_fault *fault);

#ifdef __cplusplus
}
#endif
#endif
