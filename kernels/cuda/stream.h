/* SPDX-License-Identifier: Apache-2.0 */
/* What the CUDA row's operations need of a stream: a place to put work, scratch that is planned before step 0, and two
 * ways for a failure to come back. streams.c fills it from the CUDA runtime; the shim, which runs the same kernels on
 * the CPU, fills it without. Nothing here names a CUDA type, so that C files see it without CUDA's headers. */
#ifndef CUDA_STREAM_H
#define CUDA_STREAM_H

#include <kernels/stream.h>

#ifdef __cplusplus
extern "C" {
#endif

struct cuda_matmuls;

/* What a kernel can find wrong with numbers that only the device sees. It lies in device memory, zeroed: kind 0. The
 * first one stays, and kernels that go by indices do nothing while one is there; cuda_fault_report puts it into words.
 */
enum cuda_fault_kind { CUDA_FAULT_NONE, CUDA_FAULT_INDEX, CUDA_FAULT_TARGET };

struct cuda_fault {
    int32_t kind; /* enum cuda_fault_kind */
    int32_t value;
    int64_t row, limit;
};

struct kern_stream {
    void *handle; /* cudaStream_t */
    int index;    /* which device */
    int status;   /* known on the host so far */
    char message[KERN_MESSAGE_BYTES];
    struct cuda_fault *fault; /* on the device */
    void *scratch; /* on the device, aligned to 256: products' workspace, lists, what blocks leave for a second launch.
                    * Calls on a stream share it in turn; NULL where it goes ahead */
    size_t scratch_nbytes; /* CUDA_SCRATCH_BYTES of them */
    void *panel;           /* on the device, aligned to 256: operands that are made for a product */
    size_t panel_nbytes;
    struct cuda_matmuls *matmuls; /* the library's handle and what it chose, by shape. NULL where it goes ahead */
    bool warpgroups;              /* the device has wgmma (compute capability 9.x alone) */
};

/* What cuBLASLt asks for on Hopper; and a panel, which stays in the cache until it is multiplied. */
enum { CUDA_SCRATCH_BYTES = 32 << 20, CUDA_PANEL_BYTES = 16 << 20 };

/* Whether a stream has scratch, for products and lists. Where it has none it fails. */
bool cuda_has_scratch(struct kern_stream *stream);
/* Keeps the first failure. Returns status. */
int cuda_fail(struct kern_stream *stream, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* cuda_fail with KERN_ERR_ARG and these words if ok is false; false where the stream has failed. */
bool cuda_check(struct kern_stream *stream, bool ok, const char *words);
/* The stream fails with what a kernel found; called with a copy on the host, after what was on the stream has run. */
void cuda_fault_report(struct kern_stream *stream, const struct cuda_fault *fault);

#ifdef __cplusplus
}
#endif
#endif
