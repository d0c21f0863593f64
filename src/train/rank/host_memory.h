/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of this host that processes may still take: what the kernel says is available, and what the limits of
 * control groups leave of it. */
#ifndef TRAIN_HOST_MEMORY_H
#define TRAIN_HOST_MEMORY_H

#include <stdint.h>

/* Bytes for each of nlocal ranks. */
uint64_t host_memory(uint32_t nlocal);
/* Bytes that the limits of control groups leave; UINT64_MAX: there is no limit. list: a file like /proc/self/cgroup;
 * root: where the groups are mounted. */
uint64_t host_memory_of_groups(const char *list, const char *root);

#endif
