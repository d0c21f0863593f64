/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a host that outlives its ranks. A process of the host, the keeper, holds it; ranks ask for it by the
 * keeper's name. The memory has no name, so nothing of it is left once the keeper and the ranks have ended. */
#ifndef TRAIN_KEEPER_H
#define TRAIN_KEEPER_H

#include <fsdpck/error.h>

struct kept_memory {
    void *memory; /* nbytes, mapped; zeros at first */
    size_t nbytes;
    uint64_t id; /* of the keeper; random */
};

/* For a rank. Fails if no keeper of this user has the name, or if it keeps another number of bytes. */
int keeper_map(const char *name, size_t nbytes, struct kept_memory *out, struct fsdpck_error *err);
void keeper_unmap(struct kept_memory *kept); /* zeroes it; does nothing to a zeroed one */

#endif
