/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that a launcher started, on any hosts, through MPI. Where MPI is not built in, joining fails with a sentence. */
#ifndef TRAIN_COMM_MPI_H
#define TRAIN_COMM_MPI_H

#include "comm/comm_local.h"

bool comm_mpi_is_built(void);
/* In the process of the rank, once. Starts MPI; rank and nranks are what the launcher said. board: this rank's; borrowed. *out is its COMM_MAIN; its ops->free
 * waits for the other ranks. After a failure it is NULL, or good for comm_mpi_abandon() only. !sizes.copies: all are on one host, and map each other's rows. */
int comm_mpi_join(struct board *board, uint32_t rank, uint32_t nranks, struct comm_sizes sizes, struct comm **out, struct fsdpck_error *err);
/* This rank has left an error on its board: returns when the others know it, or after a time. The process ends then, without ops->free. */
void comm_mpi_abandon(struct comm *comm);
/* The same for a rank that has not joined and will not. */
void comm_mpi_tell(struct board *board, uint32_t rank, uint32_t nranks);

#endif
