/* SPDX-License-Identifier: Apache-2.0 */
/* The MPI implementation: lanes and memory. All operations consist of messages between two ranks, so that a wait knows
 * which rank it waits for, and of memory that the ranks of a host share. No call blocks inside MPI, so that a lost or
 * stalled rank is named after a timeout. Each lane has its own communicator and its own thread
 * (MPI_THREAD_MULTIPLE). */
#include "comm/comm_mpi.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/comm_mpi_impl.h"
#include "comm/mpi_alarm.h"
#include "comm/mpi_start.h"
#include "comm/one_host.h"

enum { PAGE_NBYTES = 4096, HOST_NAME_NBYTES = 64 };

bool comm_mpi_is_built(void)
{
    return true;
}

static void free_lane(struct mpi *c)
{
    if (!c)
        return;
    free(c->requests);
    free(c->statuses);
    free(c->wanted);
    free(c->spans);
    free(c->staging);
    free(c->sums);
    comm_mpi_chain_free(c->chain);
    value_window_free(&c->window);
    free(c);
}

static void unmap(struct host_memory *host)
{
    value_file_free(host->file);
    one_host_unmap(host->memory, host->nbytes);
    one_host_unmap(host->buffer, host->buffer_nbytes);
    hosts_free(&host->hosts);
    *host = (struct host_memory){ 0 };
}

static void mpi_free(struct comm *base)
{
    struct mpi *c = (struct mpi *)base;
    mpi_alarm_end(c->alarm);
    unmap(c->host);
    free(c->host);
    for (int lane = COMM_MAIN + 1; lane < COMM_NLANES; lane++) {
        MPI_Comm_free(&((struct mpi *)base->lanes[lane])->comm);
        free_lane((struct mpi *)base->lanes[lane]);
    }
    MPI_Comm_free(&c->comm);
    mpi_end(base->job_status, base->rank, base->nranks);
    free_lane(c);
}

/* All ranks take part, those too that are alone on their hosts. */
static int mpi_share_buffer(struct comm *base, size_t nbytes, char **out, struct fsdpck_error *err)
{
    struct mpi *c = (struct mpi *)base;
    unsigned char *buffer = NULL;
    int rc = one_host_map(base, &c->host->hosts, nbytes, &buffer, err);
    *out = NULL;
    c->host->together = !rc;
    if (!rc && !c->gate)
        one_host_unmap(buffer, nbytes);
    if (rc || !c->gate)
        return rc;
    c->host->buffer = buffer;
    c->host->buffer_nbytes = nbytes;
    *out = (char *)buffer;
    return 0;
}

static const struct comm_ops mpi_ops = { .name = "mpi",
                                         .barrier = comm_mpi_barrier,
                                         .exchange = comm_mpi_exchange,
                                         .gather = comm_mpi_gather,
                                         .keep = comm_keep,
                                         .publish = comm_mpi_publish,
                                         .share_buffer = mpi_share_buffer,
                                         .sum_u64 = comm_mpi_sum,
                                         .transfer = comm_mpi_transfer,
                                         .trade = comm_mpi_trade,
                                         .free = mpi_free };

/* The parameters are in a file. */
static const struct comm_ops mpi_file_ops = { .name = "mpi",
                                              .barrier = comm_mpi_barrier,
                                              .exchange = comm_mpi_exchange,
                                              .gather = comm_mpi_gather,
                                              .keep = comm_keep,
                                              .publish = comm_mpi_publish_file,
                                              .settle = comm_mpi_settle_file,
                                              .share_buffer = mpi_share_buffer,
                                              .sum_u64 = comm_mpi_sum,
                                              .transfer = comm_mpi_transfer,
                                              .free = mpi_free };

static struct mpi *new_lane(struct job_status *job_status, uint32_t rank, uint32_t nranks, enum comm_lane lane)
{
    struct mpi *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->base = (struct comm){ .ops = &mpi_ops, .job_status = job_status, .lane = lane, .rank = rank, .nranks = nranks };
    c->requests = calloc(2 * (size_t)nranks, sizeof(MPI_Request));
    c->statuses = calloc(2 * (size_t)nranks, sizeof(MPI_Status));
    c->wanted = calloc(nranks, sizeof *c->wanted);
    c->sums = calloc((size_t)nranks * COMM_MAX_SUM, sizeof *c->sums);
    if (c->requests && c->statuses && c->wanted && c->sums && MPI_Comm_dup(MPI_COMM_WORLD, &c->comm) == MPI_SUCCESS) {
        MPI_Comm_set_errhandler(c->comm, MPI_ERRORS_RETURN);
        return c;
    }
    free_lane(c);
    return NULL;
}

static size_t aligned(size_t nbytes)
{
    return (nbytes + PAGE_NBYTES - 1) / PAGE_NBYTES * PAGE_NBYTES;
}

/* Offsets of the parts of a host's memory. */
struct parts {
    size_t values, kept, contributions, hashes, end; /* gates come first */
};

static struct parts cut(uint32_t nlocal, uint32_t nranks, struct comm_sizes sizes)
{
    struct parts at = { .values = aligned(COMM_NLANES * gate_nbytes(nlocal)) };
    at.kept = at.values + (sizes.folder ? 0 : aligned(sizes.value_nbytes + 1));
    at.contributions = at.kept + (sizes.copies && sizes.kept_within ? aligned(sizes.value_nbytes) : 0);
    at.hashes = at.contributions + aligned((nlocal * (size_t)sizes.grad_nelem + 1) * sizeof(float));
    at.end = at.hashes + (sizes.folder ? aligned((size_t)sizes.npieces * nranks * sizeof(uint64_t) + 1) : 0);
    return at;
}

static void set_lane(struct mpi *c, struct comm_sizes sizes, const struct parts *at)
{
    struct host_memory *host = c->host;
    const uint32_t first = host->hosts.first[host->hosts.mine], nlocal = hosts_size(&host->hosts, host->hosts.mine);
    c->base.views = sizes.whole ||
                    (!sizes.folder && hosts_hold_all(&host->hosts, sizes.copies ? sizes.most_within : c->base.nranks));
    /* with views, no part has to be kept for later gathers */
    c->base.kept_within = sizes.copies && !c->base.views ? sizes.kept_within : 0;
    c->base.ops = host->file ? &mpi_file_ops : &mpi_ops;
    c->base.values = host->file ? value_file_map(host->file) : host->memory + at->values;
    c->base.kept = c->base.kept_within ? host->memory + at->kept : NULL;
    c->base.contribution = host->contributions + (c->base.rank - first) * host->contribution_nelem;
    c->base.near_contributions = host->contributions;
    c->base.near_first = first;
    c->base.nnear = hosts_size(&host->hosts, host->hosts.mine);
    c->base.near_nelem = (int64_t)host->contribution_nelem;
    c->base.reduce = sizes.reduce;
    if (nlocal > 1)
        c->gate = (struct gate *)(host->memory + (size_t)c->base.lane * gate_nbytes(nlocal));
    if (nlocal > 1 && c->base.rank == first)
        gate_init(c->gate, nlocal);
}

int comm_mpi_share_memory(struct comm *base, struct comm_sizes sizes, struct fsdpck_error *err)
{
    struct host_memory *host = ((struct mpi *)base)->host;
    uint64_t napart = sizes.apart;
    int rc = base->ops->sum_u64(base, &napart, 1, err);
    if (!rc && napart % base->nranks)
        rc = fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                              "%llu of %u ranks have --gather copy: give it to all of them or to none",
                              (unsigned long long)napart, base->nranks);
    if (!rc)
        rc = hosts_find(base, sizes.apart, &host->hosts, err);
    if (!rc && !sizes.copies && host->hosts.n > 1)
        rc = fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, NULL,
                              "the ranks of this host cannot share memory, because they have different host names or "
                              "process namespaces: --gather copy does without");
    if (rc)
        return rc;
    const struct parts at = cut(hosts_size(&host->hosts, host->hosts.mine), base->nranks, sizes);
    host->nbytes = at.end;
    host->contribution_nelem = (size_t)sizes.grad_nelem;
    rc = one_host_map(base, &host->hosts, host->nbytes, &host->memory, err);
    if (rc)
        return rc; /* no cleanup: after a failure the process ends */
    if (sizes.folder)
        rc = comm_mpi_open_file(base, &sizes, (uint64_t *)(host->memory + at.hashes), err);
    if (rc)
        return rc;
    host->contributions = (float *)(host->memory + at.contributions);
    for (int lane = 0; lane < COMM_NLANES; lane++)
        set_lane((struct mpi *)base->lanes[lane], sizes, &at);
    return base->ops->barrier(base, "start", err); /* gates are ready */
}

void comm_mpi_unshare_memory(struct comm *base)
{
    for (int lane = 0; lane < COMM_NLANES; lane++)
        ((struct mpi *)base->lanes[lane])->gate = NULL;
    unmap(((struct mpi *)base)->host);
}

/* For messages about a lost rank. */
static int exchange_host_names(struct mpi *c, struct fsdpck_error *err)
{
    enum { NWORDS = HOST_NAME_NBYTES / sizeof(uint64_t) };
    union {
        uint64_t words[NWORDS];
        char name[HOST_NAME_NBYTES];
    } host = { { 0 } };
    if (gethostname(host.name, sizeof host.name))
        host.name[0] = '\0';
    int rc = comm_mpi_words(c, host.words, NWORDS, c->sums, "exchange of host names", err);
    for (uint32_t r = 0; r < c->base.nranks && !rc; r++) {
        if (r != c->base.rank)
            memcpy(host.words, c->sums + (size_t)r * NWORDS, sizeof host.words);
        else
            gethostname(host.name, sizeof host.name);
        host.name[HOST_NAME_NBYTES - 1] = '\0';
        job_status_set_host(c->base.job_status, r, host.name);
    }
    return rc;
}

int comm_mpi_join(struct job_status *job_status, uint32_t rank, uint32_t nranks, struct comm **out,
                  struct fsdpck_error *err)
{
    struct comm *lanes[COMM_NLANES];
    *out = NULL;
    struct mpi_alarm *alarm = NULL;
    struct host_memory *host = calloc(1, sizeof *host);
    job_status_operation(job_status, rank, "start of MPI, which waits for all ranks");
    int rc = host ? mpi_start(rank, nranks, err) : fsdpck_error_nomem(err, sizeof *host);
    if (!rc)
        rc = mpi_alarm_start(job_status, rank, nranks, &alarm, err);
    for (int lane = 0; lane < COMM_NLANES && !rc; lane++) {
        struct mpi *c = new_lane(job_status, rank, nranks, (enum comm_lane)lane);
        lanes[lane] = c ? &c->base : NULL;
        if (c) {
            c->alarm = alarm;
            c->host = host;
        }
        rc = c ? 0 : fsdpck_error_set(err, FSDPCK_ERR_IO, NULL, "MPI gives no communicator");
    }
    if (rc)
        return rc; /* no cleanup: the process ends */
    memcpy(lanes[COMM_MAIN]->lanes, lanes, sizeof lanes);
    *out = lanes[COMM_MAIN];
    return exchange_host_names((struct mpi *)*out, err);
}

void comm_mpi_abandon(struct comm *comm)
{
    mpi_alarm_wait(((struct mpi *)comm)->alarm);
}

void comm_mpi_leave(struct comm *comm)
{
    mpi_alarm_end(((struct mpi *)comm)->alarm);
    mpi_end_after_failure();
}

void comm_mpi_report_failure(struct job_status *job_status, uint32_t rank, uint32_t nranks)
{
    struct fsdpck_error ignored = { 0 };
    struct mpi_alarm *alarm = NULL;
    if (mpi_start(rank, nranks, &ignored) || mpi_alarm_start(job_status, rank, nranks, &alarm, &ignored))
        return;
    mpi_alarm_wait(alarm);
    mpi_alarm_end(alarm);
    mpi_end_after_failure();
}
