/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA device: its tables, and helpers shared by streams, memory and links. Declares no CUDA type. */
#ifndef CUDA_DEVICE_H
#define CUDA_DEVICE_H

#include <kernels/link.h>
#include <kernels/memory.h>
#include <kernels/stream.h>

extern const struct kern_memory cuda_memory;
extern const struct kern_device cuda_device;
extern const struct kern_links cuda_links;

/* Members of cuda_device. */
bool cuda_record(struct kern_stream *stream);
struct kern_recording *cuda_recorded(struct kern_stream *stream);
void cuda_replay(struct kern_recording *recording, struct kern_stream *stream);
void cuda_recording_free(struct kern_recording *recording);

/* Selects the device of the calling thread. The runtime keeps one device per thread; a new thread starts on device 0,
 * where a call would create a second context. Returns a cudaError_t. */
int cuda_use(int index);

/* Writes what failed and the runtime's reason to message (KERN_MESSAGE_BYTES). code: a cudaError_t. Returns
 * KERN_ERR_MEMORY if the memory is exhausted, else KERN_ERR_LIBRARY. */
int cuda_error_message(char *message, const char *what, int code);
/* The same for memory on a device. If the memory is exhausted, the message states the bytes wanted and the bytes
 * available. */
int cuda_memory_message(char *message, const char *what, size_t nbytes, int index, int code);

#endif
