/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory for ranks of one host that have no common parent process. */
#ifndef TRAIN_ONE_HOST_H
#define TRAIN_ONE_HOST_H

#include "comm/comm.h"

/* Collective. *out: nbytes of zeroes (at least one byte), the same memory for every rank; munmap it. Fails on all ranks
 * alike where one of them cannot. */
int one_host_map(struct comm *c, size_t nbytes, unsigned char **out, struct fsdpck_error *err);

#endif
