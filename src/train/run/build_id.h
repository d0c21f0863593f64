/* SPDX-License-Identifier: Apache-2.0 */
/* Tells builds of fsdptrain apart. */
#ifndef TRAIN_BUILD_ID_H
#define TRAIN_BUILD_ID_H

#include <stdint.h>

/* Hash of the linker's build ids of the program and of libfsdpck, as they are in memory. */
uint64_t build_id(void);

#endif
