/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of one host that communicate over shared memory. It is created before the processes fork, and each rank joins
 * it. */
#ifndef TRAIN_COMM_LOCAL_H
#define TRAIN_COMM_LOCAL_H

#include "comm/comm.h"

struct comm_world; /* shared by all processes, or threads */

struct comm_sizes {
    size_t value_nbytes; /* layout's */
    int64_t grad_nelem;
    enum fsdpck_dtype reduce; /* of the exchange of gradients */
    bool copies;              /* gather by copying although memory is shared */
};

/* Memory is backed when it is touched. job_status: that of all ranks; borrowed. */
int comm_world_new(uint32_t nranks, struct comm_sizes sizes, struct job_status *job_status, struct comm_world **out,
                   struct fsdpck_error *err);
void comm_world_free(struct comm_world *w); /* NULL does nothing */
/* The caller is rank `rank` from now on. *out is its COMM_MAIN, freed with its ops->free. */
int comm_world_join(struct comm_world *w, uint32_t rank, struct comm **out, struct fsdpck_error *err);

#endif
