/* SPDX-License-Identifier: Apache-2.0 */
/* Propagates failures between ranks that a launcher started. Each rank has a supervisor and a job_status of its own;
 * so a thread in each rank carries errors between them, and answers ranks that look for a stalled one. If several
 * ranks fail at once, the lowest reports. */
#ifndef TRAIN_MPI_ALARM_H
#define TRAIN_MPI_ALARM_H

#include "comm/job_status.h"

struct mpi_alarm;

/* After MPI_Init_thread, in the process of the rank. job_status: borrowed. */
int mpi_alarm_start(struct job_status *job_status, uint32_t rank, uint32_t nranks, struct mpi_alarm **out,
                    struct fsdpck_error *err);
void mpi_alarm_end(struct mpi_alarm *a); /* before MPI_Finalize; NULL does nothing */
/* This rank has failed: returns when the others know, or after a time. */
void mpi_alarm_wait(struct mpi_alarm *a);
/* Whether the rank's main lane waits for others just now. */
void mpi_alarm_waiting(struct mpi_alarm *a, bool waiting);
/* Which rank is to blame that `pending` was waited for in vain: one that gives no answer, or works while all others
 * wait. */
uint32_t mpi_alarm_find_late(struct mpi_alarm *a, uint32_t pending);

#endif
