/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory for ranks of one host that have no common parent process. */
#ifndef TRAIN_ONE_HOST_H
#define TRAIN_ONE_HOST_H

#include "comm/comm.h"

/* Collective. *out: zeroed memory of nbytes (at least one byte), shared by all ranks; free with munmap. If it fails on
 * one rank, it fails on all. */
int one_host_map(struct comm *c, size_t nbytes, unsigned char **out, struct fsdpck_error *err);

#endif
