/* SPDX-License-Identifier: Apache-2.0 */
/* The chunks of fsdp.offload on a device with memory of its own: copies between their pinned buffers and buffers on the
 * device. While a chunk is updated, the next one is copied to the device and the last one back. */
#ifndef TRAIN_OFFLOAD_DEVICE_H
#define TRAIN_OFFLOAD_DEVICE_H

#include <kernels/memory.h>

#include "rank/offload.h"

struct offload_device;

/* compute: the stream that updates run on; borrowed as are o, sizes and device_memory (sizes->device_nbytes). */
int offload_device_new(const struct kern_device *device, int index, const struct offload_sizes *sizes,
                       struct offload *o, struct kern_stream *compute, void *device_memory, struct offload_device **out,
                       struct fsdpck_error *err);
/* NULL does nothing. Waits for the copies; call it before offload_free(). */
void offload_device_free(struct offload_device *d);

/* As offload_open() and offload_close(), with elements in device memory. */
int offload_device_open(struct offload_device *d, int tree, int64_t at, float **data, int64_t *nelem,
                        struct fsdpck_error *err);
int offload_device_close(struct offload_device *d, struct fsdpck_error *err);

/* As offload_take(), offload_give(), with trees in device memory: work on the compute stream may use them from the one
 * call to the other. */
int offload_device_take(struct offload_device *d, struct offload_view *out, struct fsdpck_error *err);
void offload_device_give(struct offload_device *d);
/* After the last chunk of an update: waits until all of them are back. */
int offload_device_end(struct offload_device *d, struct fsdpck_error *err);

#endif
