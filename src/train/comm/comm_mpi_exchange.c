/* SPDX-License-Identifier: Apache-2.0 */
/* Reduce-scatter of gradients between ranks of several hosts. The contributions of a rank's own host are in memory that
 * the host shares. Those of other hosts come in one of two ways, whichever moves fewer bytes between hosts: as sums
 * that travel from host to host (comm_mpi_chain.c), or each for itself. The additions are the same ones, in the same
 * order. */
#include <stdlib.h>

#include "comm/chain_rule.h"
#include "comm/comm_mpi_impl.h"

size_t comm_mpi_owned(const struct exchange *x, uint32_t owner)
{
    size_t sum = 0;
    for (size_t i = 0; i < x->nslices; i++) {
        int64_t begin, nelem = comm_slice_part(&x->slices[i], owner, &begin);
        sum += nelem > 0 ? (size_t)nelem : 0;
    }
    return sum;
}

const char *comm_mpi_contribution(const struct mpi *c, uint32_t rank)
{
    const struct hosts *h = &c->host->hosts;
    return (const char *)(c->host->contributions + (rank - h->first[h->mine]) * c->host->contribution_nelem);
}

/* Per element: a sum enters each host after the first, and then the host of the owner; in later waves it starts there
 * too. A contribution enters the host of the owner. */
bool comm_mpi_chains(const struct mpi *c, const struct exchange *x, uint32_t owner)
{
    const struct hosts *h = &c->host->hosts;
    const uint32_t host = h->of[owner], last = h->of[x->ncontributions - 1];
    uint64_t hops = last + (host != last), contributions = 0;
    if (!x->first)
        hops += host != 0;
    for (uint32_t q = 0; q < x->ncontributions; q++)
        contributions += h->of[q] != host;
    return chain_pays(hops, contributions, comm_element_nbytes(&c->base));
}

/* --- each contribution for itself */

static size_t list_slices(struct mpi *c, const struct exchange *x, uint32_t owner)
{
    size_t n = 0;
    for (size_t i = 0; i < x->nslices; i++) {
        int64_t begin, nelem = comm_slice_part(&x->slices[i], owner, &begin);
        if (nelem > 0)
            n = comm_mpi_add_span(c, n, comm_slice_at(&c->base, &x->slices[i], begin),
                                  (size_t)nelem * comm_element_nbytes(&c->base));
    }
    return n;
}

/* from: rank q's parts of this rank's slices: concatenated, or at their places in its contribution. */
static void fold_slices(const struct comm *base, const struct exchange *x, const char *from, bool concatenated,
                        bool assign)
{
    for (size_t i = 0; i < x->nslices; i++) {
        int64_t begin, nelem = comm_slice_part(&x->slices[i], base->rank, &begin);
        if (nelem <= 0)
            continue;
        comm_fold(base, x->slices[i].into, concatenated ? from : from + comm_slice_at(base, &x->slices[i], begin),
                  nelem, assign);
        from += concatenated ? (size_t)nelem * comm_element_nbytes(base) : 0;
    }
}

static int make_staging(struct mpi *c, size_t nbytes, struct fsdpck_error *err)
{
    if (nbytes <= c->staging_nbytes)
        return 0;
    free(c->staging);
    c->staging = malloc(2 * nbytes);
    c->staging_nbytes = c->staging ? nbytes : 0;
    return c->staging ? 0 : fsdpck_error_nomem(err, 2 * nbytes);
}

static bool is_near(const struct mpi *c, uint32_t rank)
{
    return c->host->hosts.of[rank] == c->host->hosts.mine;
}

/* Sends this rank's contribution to owners on other hosts. */
static int send_contributions(struct mpi *c, const struct exchange *x, struct fsdpck_error *err)
{
    int rc = 0;
    for (uint32_t r = 0; r < c->base.nranks && c->base.rank < x->ncontributions && !rc; r++) {
        if (!is_near(c, r) && !comm_mpi_chains(c, x, r))
            rc = comm_mpi_start_message(c, true, r, c->base.contribution, list_slices(c, x, r), COMM_EXCHANGE_OPERATION,
                                        err);
    }
    return rc;
}

static int start_receiving(struct mpi *c, const struct exchange *x, uint32_t q, size_t nbytes, struct fsdpck_error *err)
{
    if (q >= x->ncontributions || is_near(c, q))
        return 0;
    return comm_mpi_start_message(c, false, q, c->staging + (q % 2) * nbytes, comm_mpi_add_span(c, 0, 0, nbytes),
                                  COMM_EXCHANGE_OPERATION, err);
}

/* Receives rank q's parts while folding those of rank q-1. */
static int fold_contributions(struct mpi *c, const struct exchange *x, size_t nbytes, struct fsdpck_error *err)
{
    MPI_Request *receives = c->requests + c->base.nranks;
    int rc = make_staging(c, nbytes, err);
    if (!rc)
        rc = start_receiving(c, x, 0, nbytes, err);
    for (uint32_t q = 0; q < x->ncontributions && !rc; q++) {
        const bool near = is_near(c, q);
        rc = start_receiving(c, x, q + 1, nbytes, err);
        if (!rc && !near && nbytes)
            rc = comm_mpi_wait(c, &receives[q], q, c->wanted[q], COMM_EXCHANGE_OPERATION, err);
        if (!rc)
            fold_slices(&c->base, x, near ? comm_mpi_contribution(c, q) : c->staging + (q % 2) * nbytes, !near,
                        x->first && q == 0);
        c->wanted[q] = 0;
    }
    return rc;
}

/* --- both */

static int add_up(struct mpi *c, const struct exchange *x, struct fsdpck_error *err)
{
    size_t total = 0;
    for (size_t i = 0; i < x->nslices; i++)
        total += (size_t)x->slices[i].nelem * sizeof(float);
    comm_mpi_clear_requests(c);
    int rc = comm_mpi_reserve_spans(c, x->nslices, total, err);
    if (!rc)
        rc = send_contributions(c, x, err);
    if (!rc)
        rc = comm_mpi_chain(c, x, err);
    if (!rc && !comm_mpi_chains(c, x, c->base.rank))
        rc = fold_contributions(c, x, comm_mpi_owned(x, c->base.rank) * comm_element_nbytes(&c->base), err);
    return rc ? rc : comm_mpi_wait_all(c, COMM_EXCHANGE_OPERATION, err);
}

int comm_mpi_exchange(struct comm *base, const struct comm_slice *slices, size_t nslices, uint32_t ncontributions,
                      bool first, struct fsdpck_error *err)
{
    struct mpi *c = (struct mpi *)base;
    const struct exchange x = { slices, nslices, ncontributions, first };
    const uint64_t started = comm_now_ns(), waited = base->wait_ns;
    if (base->rank < ncontributions)
        comm_round(base, slices, nslices);
    int rc = comm_mpi_meet_host(c, COMM_EXCHANGE_OPERATION, err);
    if (!rc)
        rc = add_up(c, &x, err);
    if (!rc)
        rc = comm_mpi_meet_host(c, COMM_EXCHANGE_OPERATION, err); /* contributions have been read */
    base->wait_ns = waited + comm_now_ns() - started;
    return rc;
}
