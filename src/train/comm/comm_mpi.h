/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that a launcher started, on any hosts, connected by MPI. Without MPI in the build, joining fails with a
 * message. */
#ifndef TRAIN_COMM_MPI_H
#define TRAIN_COMM_MPI_H

#include "comm/comm_local.h"

bool comm_mpi_is_built(void);
/* In the process of the rank, once. Starts MPI; rank and nranks are what the launcher said. job_status: that of this
 * rank; borrowed. *out is its COMM_MAIN; its ops->free waits for the other ranks. After a failure it is NULL, or good
 * for comm_mpi_abandon() only. !sizes.copies: all are on one host, and map each other's rows. */
int comm_mpi_join(struct job_status *job_status, uint32_t rank, uint32_t nranks, struct comm_sizes sizes,
                  struct comm **out, struct fsdpck_error *err);
/* This rank has recorded an error in its job status: returns when the others know it, or after a timeout. The process
 * ends then, without ops->free. */
void comm_mpi_abandon(struct comm *comm);
/* The same for a rank that has not joined and will not. */
void comm_mpi_tell(struct job_status *job_status, uint32_t rank, uint32_t nranks);

#endif
