/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters that rest in host memory while the rank computes on a device (fsdp.offload_params with "cpu"). Kernels
 * cannot use them there: a gather copies groups to the device, and a rank's own rows pass through a window of device
 * memory when they change. All copies run on the compute stream. */
#ifndef TRAIN_HOST_ROWS_H
#define TRAIN_HOST_ROWS_H

#include "rank/rank.h"

/* Rows of ncol fp32 elements that the window has room for; at least 1 for those of trained parameters. */
int64_t host_rows_room(const struct rank *r, int64_t ncol);
/* Enqueues a copy between host rows and the window. */
void host_rows_copy(const struct rank *r, void *dst, const void *src, size_t nbytes);
/* Rounds (nrow, ncol) fp32 elements in the rank's memory into host rows. */
void host_rows_round(const struct rank *r, const struct param *p, char *rows, const float *from, int64_t nrow);
/* Draws (nrow, ncol) elements of host rows uniformly, as the kernel of this name does. */
void host_rows_draw(const struct rank *r, float *rows, int64_t nrow, int64_t ncol, struct kern_philox rng,
                    uint64_t index0, float bound);
/* norms: (nrow) host rows: the norms of `nrow` host rows of a weight, from row `first` of the whole on. */
void host_rows_measure(const struct rank *r, const struct param *of, const char *rows, int64_t first, int64_t nrow,
                       float *norms);
/* Zeroes host rows, after all work on the compute stream. */
int host_rows_zero(const struct rank *r, void *rows, size_t nbytes, struct fsdpck_error *err);

#endif
