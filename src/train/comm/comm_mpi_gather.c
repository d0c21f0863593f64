/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters between ranks of several hosts: gathers within a group, and new values for the replicas of a chunk. What a
 * rank of this host holds is read where it lies. A host that lacks a part gets it in one message, from a rank of the
 * group of its first rank. */
#include <string.h>

#include "comm/comm_mpi_impl.h"

static int reserve(struct mpi *c, const struct comm_piece *pieces, size_t npieces, uint32_t nchunks,
                   struct fsdpck_error *err)
{
    size_t total = 0;
    for (size_t i = 0; i < npieces; i++)
        total += pieces[i].nbytes;
    return comm_mpi_reserve_spans(c, npieces * nchunks, total, err);
}

/* The chunks first, first + step, …; at their places in the gathered buffer, or in the memory of a placement. */
static size_t list_chunks(struct mpi *c, const struct comm_piece *pieces, size_t npieces, uint32_t first, uint32_t step,
                          bool gathered)
{
    size_t n = 0, begin;
    for (size_t i = 0; i < npieces; i++) {
        for (uint32_t chunk = first; chunk < c->base.nranks; chunk += step) {
            const size_t nbytes = comm_piece_chunk(&pieces[i], chunk, &begin);
            n = comm_mpi_add_span(c, n, (gathered ? pieces[i].into : pieces[i].at) + begin, nbytes);
        }
    }
    return n;
}

/* A gather, as its parts see it. Chunks with the same remainder mod `within` are a part. */
struct gathering {
    const struct comm_piece *pieces;
    size_t npieces;
    uint32_t within;
    unsigned char *memory; /* of the placement; NULL: what this host holds is in `into`, read from a file */
    char *into;
    bool together; /* the ranks of each host fill one buffer */
};

/* Copies what this host holds. */
static void copy_near(const struct mpi *c, const struct gathering *g)
{
    const struct hosts *h = &c->host->hosts;
    const uint32_t nlocal = hosts_size(h, h->mine), local = c->base.rank - h->first[h->mine];
    for (size_t i = 0; i < g->npieces; i++) {
        const struct comm_piece *p = &g->pieces[i];
        for (uint32_t chunk = 0; chunk < c->base.nranks; chunk++) {
            size_t begin, nbytes = comm_piece_chunk(p, chunk, &begin);
            if ((!g->together || chunk % nlocal == local) && hosts_has(h, h->mine, g->within, chunk % g->within))
                memcpy(g->into + p->into + begin, g->memory + p->at + begin, nbytes);
        }
    }
}

/* Starts the messages of a part that a host lacks. */
static int start_part(struct mpi *c, const struct gathering *g, uint32_t host, uint32_t part, struct fsdpck_error *err)
{
    const struct hosts *h = &c->host->hosts;
    const uint32_t first = h->first[host], nlocal = hosts_size(h, host), sender = first - first % g->within + part;
    int rc = 0;
    for (uint32_t r = first; r < first + nlocal && !rc; r++) {
        if (g->together && (r - first) != part % nlocal)
            continue;
        if (r == c->base.rank)
            rc = comm_mpi_start_message(c, false, sender, g->into,
                                        list_chunks(c, g->pieces, g->npieces, part, g->within, true),
                                        COMM_GATHER_OPERATION, err);
        else if (sender == c->base.rank)
            rc = comm_mpi_start_message(c, true, r, g->memory ? (char *)g->memory : g->into,
                                        list_chunks(c, g->pieces, g->npieces, part, g->within, !g->memory),
                                        COMM_GATHER_OPERATION, err);
    }
    return rc;
}

int comm_mpi_gather(struct comm *base, enum comm_placement from, const struct comm_piece *pieces, size_t npieces,
                    char *into, struct fsdpck_error *err)
{
    struct mpi *c = (struct mpi *)base;
    const struct hosts *h = &c->host->hosts;
    const bool kept = from == COMM_KEPT;
    unsigned char *const at_rest = c->host->file ? NULL : base->values;
    const struct gathering g = { pieces, npieces,          comm_within(base, from, pieces), kept ? base->kept : at_rest,
                                 into,   c->host->together };
    int rc = reserve(c, pieces, npieces, base->nranks / g.within, err);
    if (!rc && (g.together || kept)) /* all have left the buffer; all have kept their parts */
        rc = comm_mpi_meet_host(c, COMM_GATHER_OPERATION, err);
    if (!rc && !g.memory)
        rc = comm_mpi_read_file(base, g.within, pieces, npieces, into, err);
    comm_mpi_clear_requests(c);
    for (uint32_t host = 0; host < h->n && !rc; host++) {
        for (uint32_t part = 0; part < g.within && !rc; part++) {
            if (!hosts_has(h, host, g.within, part))
                rc = start_part(c, &g, host, part, err);
        }
    }
    if (!rc && g.memory)
        copy_near(c, &g);
    if (!rc)
        rc = comm_mpi_wait_all(c, COMM_GATHER_OPERATION, err);
    return !rc && g.together ? comm_mpi_meet_host(c, COMM_GATHER_OPERATION, err) : rc;
}

uint32_t comm_mpi_receives(const struct mpi *c, uint32_t within, uint32_t owner, uint32_t host)
{
    const struct hosts *h = &c->host->hosts;
    return host == h->of[owner] || !hosts_has(h, host, within, owner % within)
               ? c->base.nranks
               : h->first[host] + owner % hosts_size(h, host);
}

/* An owner sends its chunk once to each other host that holds it. */
int comm_mpi_publish(struct comm *base, const struct comm_piece *pieces, size_t npieces, struct fsdpck_error *err)
{
    struct mpi *c = (struct mpi *)base;
    const struct hosts *h = &c->host->hosts;
    const uint32_t within = pieces[0].within, nranks = base->nranks;
    if (within == nranks)
        return 0;
    int rc = reserve(c, pieces, npieces, 1, err);
    comm_mpi_clear_requests(c);
    for (uint32_t owner = 0; owner < nranks && !rc; owner++) {
        for (uint32_t host = 0; host < h->n && !rc; host++) {
            const uint32_t to = comm_mpi_receives(c, within, owner, host);
            if (to < nranks && (to == base->rank || owner == base->rank))
                rc = comm_mpi_start_message(c, owner == base->rank, owner == base->rank ? to : owner, base->values,
                                            list_chunks(c, pieces, npieces, owner, nranks, false),
                                            COMM_UPDATE_OPERATION, err);
        }
    }
    return rc ? rc : comm_mpi_wait_all(c, COMM_UPDATE_OPERATION, err);
}
