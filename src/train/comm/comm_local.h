/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of one host that communicate over shared memory. The memory is created before the processes fork; each rank
 * joins it. */
#ifndef TRAIN_COMM_LOCAL_H
#define TRAIN_COMM_LOCAL_H

#include <fsdpck/io.h>

#include "comm/comm.h"

struct comm_world; /* shared by all processes or threads */

struct comm_sizes {
    size_t value_nbytes; /* as in struct layout */
    int64_t grad_nelem;
    enum fsdpck_dtype reduce; /* dtype for the exchange of gradients */
    size_t trade_nbytes;      /* the most that a rank sends in one comm_ops.trade; 0: there is none */
    bool copies;              /* gather by copying, even though memory is shared */
    bool apart;               /* with `copies`: ranks share no memory, even on one host */
    bool whole;               /* with `copies`: every host (with `apart`: every rank) holds all parameters */
    /* Used only with `copies`: */
    uint32_t ranks_of_copy; /* consecutive ranks of a host that share a copy: divides comm_piece.within of all pieces */
    uint32_t most_within;   /* the largest comm_piece.within */
    uint32_t kept_within;   /* as in struct comm */
    const char *folder;     /* with `copies`: the parameters are in a file there, one for each host; NULL: in memory */
    uint32_t npieces;       /* their number */
    const struct fsdpck_io *io; /* for that file; NULL for the system's */
};

/* Memory is allocated on first touch. job_status: shared by all ranks; borrowed. */
int comm_world_new(uint32_t nranks, struct comm_sizes sizes, struct job_status *job_status, struct comm_world **out,
                   struct fsdpck_error *err);
void comm_world_free(struct comm_world *w); /* NULL does nothing */
/* The caller becomes rank `rank`. *out is its COMM_MAIN; free it with its ops->free. */
int comm_world_join(struct comm_world *w, uint32_t rank, struct comm **out, struct fsdpck_error *err);

#endif
