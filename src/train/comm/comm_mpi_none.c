/* SPDX-License-Identifier: Apache-2.0 */
/* A build without MPI. */
#include "comm/comm_mpi.h"

bool comm_mpi_is_built(void)
{
    return false;
}

int comm_mpi_join(struct job_status *job_status, uint32_t rank, uint32_t nranks, struct comm_sizes sizes,
                  struct comm **out, struct fsdpck_error *err)
{
    (void)job_status;
    (void)rank;
    (void)nranks;
    (void)sizes;
    *out = NULL;
    return fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, NULL,
                            "this fsdptrain was built without MPI: --ranks N starts the ranks of one host");
}

void comm_mpi_abandon(struct comm *comm)
{
    (void)comm;
}

void comm_mpi_tell(struct job_status *job_status, uint32_t rank, uint32_t nranks)
{
    (void)job_status;
    (void)rank;
    (void)nranks;
}
