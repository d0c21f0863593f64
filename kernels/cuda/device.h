/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA row: what its files of the runtime (streams, memory, links) give to the module. No CUDA type stands here. */
#ifndef CUDA_DEVICE_H
#define CUDA_DEVICE_H

#include <kernels/link.h>
#include <kernels/memory.h>
#include <kernels/stream.h>

extern const struct kern_memory cuda_memory;
extern const struct kern_device cuda_device;
extern const struct kern_links cuda_links;

/* Of cuda_device. */
bool cuda_record(struct kern_stream *stream);
struct kern_recording *cuda_recorded(struct kern_stream *stream);
void cuda_replay(struct kern_recording *recording, struct kern_stream *stream);
void cuda_recording_free(struct kern_recording *recording);

/* The calling thread's device from now on: the runtime has one for each thread, in a new one the first, where a call
 * would make itself a second home. A cudaError_t. */
int cuda_use(int index);

/* message (KERN_MESSAGE_BYTES): what was tried, and what the runtime says. code: a cudaError_t. Returns KERN_ERR_MEMORY
 * where that is the reason, else KERN_ERR_LIBRARY. */
int cuda_say(char *message, const char *what, int code);
/* The same of memory on a device: where that is the reason, how much was wanted and how much there is. */
int cuda_say_full(char *message, const char *what, size_t nbytes, int index, int code);

#endif
