/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory parameters take that rest in host memory while their rank computes on a device (fsdp.offload_params
 * with "cpu"), and that memory itself. host_rows.h moves rows in and out. */
#ifndef TRAIN_HOST_REST_H
#define TRAIN_HOST_REST_H

#include <kernels/memory.h>

#include "rank/job.h"

/* Bytes at the start of the window for norms of rows, where those of DoRA are computed. */
enum { HOST_REST_NORMS_NBYTES = 4096 };

/* Bytes of the window of device memory that rows pass through: room for at least one row of each trained parameter in
 * fp32. 0: parameters rest where the rank computes. */
uint64_t host_rest_window_nbytes(const struct job *job);
/* Bytes of pinned memory for the parameters that a rank holds. 0 too if devices are not linked: then the rows that the
 * ranks of a host share are the only ones. */
uint64_t host_rest_pinned_nbytes(const struct job *job, bool linked);
/* Refuses parameters and state that take more than `room` bytes, which a rank has of host memory. */
int host_rest_check(const struct job *job, bool linked, uint64_t room, struct fsdpck_error *err);
/* Takes so many bytes of pinned memory of a device. 0 bytes: *out stays as it is. The caller frees it. */
int host_rest_pin(const struct kern_device *device, int index, uint64_t nbytes, struct kern_buffer *out,
                  struct fsdpck_error *err);

#endif
