/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that a launcher started, on any hosts, connected by MPI. In a build without MPI, joining fails with a
 * message. */
#ifndef TRAIN_COMM_MPI_H
#define TRAIN_COMM_MPI_H

#include "comm/comm_local.h"

bool comm_mpi_is_built(void);
/* Starts MPI; call once in the process of the rank. rank and nranks are the launcher's. job_status: of this rank;
 * borrowed. *out is its COMM_MAIN; its ops->free waits for the other ranks. After a failure *out is NULL, or valid for
 * comm_mpi_abandon() only. Until comm_mpi_share_memory(), the ranks may call ops->barrier and ops->sum_u64. */
int comm_mpi_join(struct job_status *job_status, uint32_t rank, uint32_t nranks, struct comm **out,
                  struct fsdpck_error *err);
/* Allocates what the ranks of each host share. All ranks call it. !sizes.copies: all ranks are on one host, and map
 * each other's rows. */
int comm_mpi_share_memory(struct comm *comm, struct comm_sizes sizes, struct fsdpck_error *err);
/* Collective, when all that used the memory has ended: gives it back. comm_mpi_share_memory() may follow. */
void comm_mpi_unshare_memory(struct comm *comm);
/* For a rank that has recorded an error in its job status: returns when the other ranks know it, or after a timeout.
 * The process must then end without ops->free. */
void comm_mpi_abandon(struct comm *comm);
/* After comm_mpi_abandon() and the end of the rank's threads, if all ranks can answer: ends MPI, so that launchers do
 * not report the failure in their own words. */
void comm_mpi_leave(struct comm *comm);
/* As both, for a rank that has not joined and will not join. */
void comm_mpi_report_failure(struct job_status *job_status, uint32_t rank, uint32_t nranks);

#endif
