/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks whose devices are linked: parameters and gradients go from device to device on streams and never pass through
 * host memory. Also serves a single rank. Small messages use the communicator of the host. */
#ifndef TRAIN_COMM_LINKED_H
#define TRAIN_COMM_LINKED_H

#include <kernels/link.h>

#include "comm/comm_staged.h"

/* The device's memory that it wants: the contributions to this rank's rows, side by side, and its own as it is sent
 * where that is not fp32. */
uint64_t comm_linked_nbytes(uint32_t nranks, int64_t own_nelem, int64_t grad_nelem, enum fsdpck_dtype reduce);
/* As comm_staged_new, and a COMM_REDUCE that launches, as COMM_GATHER does. links: NULL where there is one rank.
 * memory: comm_linked_nbytes, zero-filled, borrowed. views: nothing is gathered. */
int comm_linked_new(struct comm *host, const struct comm_on_device *on, const struct kern_links *links, void *memory,
                    bool views, struct comm **out, struct fsdpck_error *err);

#endif
