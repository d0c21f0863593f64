/* SPDX-License-Identifier: Apache-2.0 */
/* Propagates failures between ranks that a launcher started. Each rank has its own supervisor and job_status; so a
 * thread in each rank carries errors between them, and answers ranks that search for a stalled one. If several ranks
 * fail at once, the lowest reports. */
#ifndef TRAIN_MPI_ALARM_H
#define TRAIN_MPI_ALARM_H

#include "comm/job_status.h"

struct mpi_alarm;

/* Call after MPI_Init_thread, in the process of the rank. job_status: borrowed. */
int mpi_alarm_start(struct job_status *job_status, uint32_t rank, uint32_t nranks, struct mpi_alarm **out,
                    struct fsdpck_error *err);
void mpi_alarm_end(struct mpi_alarm *a); /* call before MPI_Finalize; NULL does nothing */
/* After this rank has failed: returns when the other ranks know, or after a timeout. */
void mpi_alarm_wait(struct mpi_alarm *a);
/* Sets whether the rank's main lane is waiting for other ranks. */
void mpi_alarm_waiting(struct mpi_alarm *a, bool waiting);
/* A wait for messages. Zero-initialise, except for the time of its start. */
struct mpi_patience {
    uint64_t started_ns;
    bool asked, unresponsive; /* whether the ranks were asked, and whether the one to blame did not answer */
    uint32_t late;
};

/* Polled during a wait for `pending`. Returns true when the patience is over, with the rank to blame: one that does not
 * answer, or that works while all others wait; else `pending`. Asks all ranks some seconds before, because a lost rank
 * does not answer; so it may block for these seconds. */
bool mpi_alarm_timed_out(struct mpi_alarm *a, struct mpi_patience *p, uint32_t pending, uint32_t *late);

#endif
