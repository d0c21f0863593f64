/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that a launcher started, on any hosts, connected by MPI. In a build without MPI, joining fails with a
 * message. */
#ifndef TRAIN_COMM_MPI_H
#define TRAIN_COMM_MPI_H

#include "comm/comm_local.h"

bool comm_mpi_is_built(void);
/* Starts MPI; call once in the process of the rank. rank and nranks are the launcher's. job_status: of this rank;
 * borrowed. *out is its COMM_MAIN; its ops->free waits for the other ranks. After a failure *out is NULL, or valid for
 * comm_mpi_abandon() only. !sizes.copies: all ranks are on one host, and map each other's rows. */
int comm_mpi_join(struct job_status *job_status, uint32_t rank, uint32_t nranks, struct comm_sizes sizes,
                  struct comm **out, struct fsdpck_error *err);
/* For a rank that has recorded an error in its job status: returns when the other ranks know it, or after a timeout.
 * The process must then end without ops->free. */
void comm_mpi_abandon(struct comm *comm);
/* As comm_mpi_abandon(), for a rank that has not joined and will not join. */
void comm_mpi_tell(struct job_status *job_status, uint32_t rank, uint32_t nranks);

#endif
