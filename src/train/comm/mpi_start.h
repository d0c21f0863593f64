/* SPDX-License-Identifier: Apache-2.0 */
/* Start and end of MPI in the process of a rank. MPI_Finalize waits for all ranks, even for lost ones, so its end is
 * bounded. */
#ifndef TRAIN_MPI_START_H
#define TRAIN_MPI_START_H

#include "comm/job_status.h"

/* Starts MPI and checks that it counts the ranks as the launcher does. */
int mpi_start(uint32_t rank, uint32_t nranks, struct fsdpck_error *err);
/* After all work: if MPI does not end within the patience, records an error in job_status and ends the process. */
void mpi_end(struct job_status *job_status, uint32_t rank, uint32_t nranks);
/* After a failure that all ranks know: launchers report a rank that ends without MPI_Finalize as a failure of their
 * own, and Slurm kills the other tasks before they return their exit codes. Ends the process if MPI takes too long. */
void mpi_end_after_failure(void);

#endif
