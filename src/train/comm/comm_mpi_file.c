/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters in a file (fsdp.offload_params) of ranks that a launcher started: one file for the ranks of each host,
 * which has what they hold. The first of them creates it. */
#include "comm/comm_mpi_impl.h"
#include "comm/one_host.h"

int comm_mpi_open_file(struct comm *base, const struct comm_sizes *sizes, uint64_t *hashes, struct fsdpck_error *err)
{
    struct host_memory *host = ((struct mpi *)base)->host;
    const bool first = base->rank == host->hosts.first[host->hosts.mine];
    struct value_file_request req = { .io = sizes->io,
                                      .folder = sizes->folder,
                                      .nbytes = sizes->value_nbytes,
                                      .npieces = sizes->npieces,
                                      .nranks = base->nranks,
                                      .hashes = hashes };
    struct fsdpck_error why = { 0 };
    char path[ONE_HOST_PATH];
    if (first)
        value_file_new(&req, &host->file, &why);
    int rc = one_host_path(base, &host->hosts, host->file ? value_file_fd(host->file) : -1, path, err);
    req.path = path;
    if (!rc && !first && path[0])
        value_file_new(&req, &host->file, &why);
    if (!rc)
        rc = comm_first_error(base, &why, err);
    if (!rc && why.code)
        *err = why;
    return rc ? rc : why.code;
}

int comm_mpi_read_file(struct comm *base, uint32_t within, const struct comm_piece *pieces, size_t npieces, char *into,
                       struct fsdpck_error *err)
{
    struct mpi *c = (struct mpi *)base;
    const struct hosts *h = &c->host->hosts;
    const uint32_t nlocal = hosts_size(h, h->mine), local = base->rank - h->first[h->mine];
    bool wanted[COMM_MAX_SUM];
    for (uint32_t chunk = 0; chunk < base->nranks; chunk++)
        wanted[chunk] =
            (!c->host->together || chunk % nlocal == local) && hosts_has(h, h->mine, within, chunk % within);
    int rc = value_file_gather(c->host->file, &c->window, base->rank, wanted, pieces, npieces, into, err);
    comm_heartbeat(base);
    /* what other ranks of this host have read is sent too */
    return !rc && c->host->together ? comm_mpi_meet_host(c, COMM_GATHER_OPERATION, err) : rc;
}

typedef int file_fn(struct value_file *f, uint32_t owner, const struct comm_piece *pieces, size_t npieces,
                    struct fsdpck_error *err);

/* For the rank's own chunks, and those of other hosts that it has received. */
static int each_written(struct comm *base, const struct comm_piece *pieces, size_t npieces, file_fn *fn,
                        struct fsdpck_error *err)
{
    const struct mpi *c = (const struct mpi *)base;
    int rc = 0;
    for (uint32_t owner = 0; owner < base->nranks && !rc; owner++)
        if (owner == base->rank || comm_mpi_receives(c, pieces[0].within, owner, c->host->hosts.mine) == base->rank)
            rc = fn(c->host->file, owner, pieces, npieces, err);
    return rc;
}

int comm_mpi_publish_file(struct comm *base, const struct comm_piece *pieces, size_t npieces, struct fsdpck_error *err)
{
    int rc = comm_mpi_publish(base, pieces, npieces, err);
    return rc ? rc : each_written(base, pieces, npieces, value_file_publish, err);
}

int comm_mpi_settle_file(struct comm *base, const struct comm_piece *pieces, size_t npieces, struct fsdpck_error *err)
{
    return each_written(base, pieces, npieces, value_file_release, err);
}
