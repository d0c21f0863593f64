/* SPDX-License-Identifier: Apache-2.0 */
/* A build without MPI. */
#include "comm/comm_mpi.h"

bool comm_mpi_is_built(void)
{
    return false;
}

static int refuse(struct fsdpck_error *err)
{
    return fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, NULL,
                            "this fsdptrain was built without MPI: --ranks N starts the ranks of one host");
}

int comm_mpi_join(struct job_status *job_status, uint32_t rank, uint32_t nranks, struct comm **out,
                  struct fsdpck_error *err)
{
    (void)job_status;
    (void)rank;
    (void)nranks;
    *out = NULL;
    return refuse(err);
}

int comm_mpi_share_memory(struct comm *comm, struct comm_sizes sizes, struct fsdpck_error *err)
{
    (void)comm;
    (void)sizes;
    return refuse(err);
}

void comm_mpi_unshare_memory(struct comm *comm)
{
    (void)comm;
}

void comm_mpi_abandon(struct comm *comm)
{
    (void)comm;
}

void comm_mpi_leave(struct comm *comm)
{
    (void)comm;
}

void comm_mpi_report_failure(struct job_status *job_status, uint32_t rank, uint32_t nranks)
{
    (void)job_status;
    (void)rank;
    (void)nranks;
}
