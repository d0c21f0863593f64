/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks whose devices are linked: parameters and gradients go from device to device on streams and never pass through
 * host memory. Also serves a single rank. Small messages use the communicator of the host. */
#ifndef TRAIN_COMM_LINKED_H
#define TRAIN_COMM_LINKED_H

#include <kernels/link.h>

#include "comm/comm_staged.h"

/* Bytes of device memory that comm_linked_new() needs: one buffer per rank for the contributions to this rank's rows,
 * and this rank's rounded contribution if some gradients are rounded. */
uint64_t comm_linked_nbytes(uint32_t nranks, int64_t own_nelem, int64_t grad_nelem, size_t element_nbytes, bool rounds);
/* As comm_staged_new(), but COMM_REDUCE only enqueues work, as COMM_GATHER does. links: NULL for a single rank. memory:
 * comm_linked_nbytes() bytes, zeroed, borrowed. */
int comm_linked_new(struct comm *host, const struct comm_on_device *on, const struct kern_links *links, void *memory,
                    struct comm **out, struct fsdpck_error *err);

#endif
