/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of gradients that travel from host to host. A host adds the contributions of its own ranks, in order, to the sum
 * of the hosts before it. The ranks of a host are consecutive, so the additions are those of the left fold over all
 * ranks. The sum stays in fp32 on the way. Each host sends one sum instead of a contribution per rank.
 *
 * The elements of each owner are cut into pieces. On each host one rank handles a piece, so that ranks and hosts work
 * on different pieces at the same time. All ranks take the pieces in the same order, so the first unfinished one can
 * always proceed. */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "arrays/grow.h"
#include "comm/chain_rule.h"
#include "comm/comm_mpi_impl.h"

enum { AHEAD = 2 };

struct piece {
    uint32_t number, owner;
    size_t at, nelem; /* in the owner's parts of the slices, concatenated */
};

/* The message of a piece to or from another rank. */
struct message {
    char *data;
    MPI_Request request;
    uint32_t peer;
};

/* A piece that this rank owns: its sum comes from the last host. In later waves the earlier sum starts from the owner,
 * who feeds it to the first host. */
struct own_piece {
    struct piece piece;
    struct message sum, feed;
};

struct chain {
    size_t *owned;        /* (nranks) elements that travel, by owner */
    struct piece *pieces; /* (npieces) those that this rank handles */
    size_t npieces, capacity;
    struct message received[CHAIN_SLOTS], sent[CHAIN_SLOTS]; /* of the piece in a slot; both have the slot's data */
    char *slots;
    struct own_piece *own; /* (nown) the pieces that this rank owns */
    size_t nown, own_capacity;
    char *own_data; /* (own_data_npieces, 2, CHAIN_MESSAGE_NBYTES) */
    size_t own_data_npieces;
};

/* What an exchange has in common for all pieces. */
struct route {
    struct mpi *c;
    const struct exchange *x;
    const struct hosts *hosts;
    uint32_t last; /* the last host with a contribution */
};

/* The rank of a host that handles a piece: its owner where a sum ends or, in later waves, starts. */
static uint32_t handler(const struct route *r, uint32_t host, const struct piece *p)
{
    if (r->hosts->of[p->owner] == host && (host == r->last || (host == 0 && !r->x->first)))
        return p->owner;
    return r->hosts->first[host] + p->number % hosts_size(r->hosts, host);
}

static size_t message_nbytes(const struct piece *p)
{
    return p->nelem * sizeof(float) + sizeof(uint64_t);
}

/* A hash of the elements and of the number of the piece. */
static uint64_t checksum_of(const struct piece *p, const char *data)
{
    return XXH3_64bits_withSeed(data, p->nelem * sizeof(float), p->number);
}

/* --- the elements of a piece, slice by slice */

struct range {
    size_t next, offset; /* the next slice, and where its part begins among the owner's */
    const struct comm_slice *slice;
    int64_t begin, into; /* of the first element, in the slice and in the owner's part of it */
    int64_t nelem;
    size_t at; /* in the piece */
};

static bool next_range(const struct exchange *x, const struct piece *p, struct range *r)
{
    while (r->next < x->nslices && r->offset < p->at + p->nelem) {
        const struct comm_slice *slice = &x->slices[r->next++];
        int64_t begin, nelem = comm_slice_part(slice, p->owner, &begin);
        if (nelem <= 0)
            continue;
        const size_t start = r->offset, end = start + (size_t)nelem;
        const size_t from = start > p->at ? start : p->at, to = end < p->at + p->nelem ? end : p->at + p->nelem;
        r->offset = end;
        if (from >= to)
            continue;
        r->slice = slice;
        r->into = (int64_t)(from - start);
        r->begin = begin + r->into;
        r->nelem = (int64_t)(to - from);
        r->at = from - p->at;
        return true;
    }
    return false;
}

/* Adds the contributions of this host to a sum; or makes it the first of them. */
static void fold(const struct route *r, const struct piece *p, float *sum, bool starts)
{
    const struct comm *base = &r->c->base;
    const uint32_t first = r->hosts->first[r->hosts->mine], end = r->hosts->first[r->hosts->mine + 1];
    for (struct range range = { 0 }; next_range(r->x, p, &range);) {
        for (uint32_t q = first; q < end && q < r->x->ncontributions; q++)
            comm_fold(base, sum + range.at,
                      comm_mpi_contribution(r->c, q) + comm_slice_at(base, range.slice, range.begin), range.nelem,
                      starts && q == first);
    }
}

/* Between a sum and its place with the owner, which is this rank. */
static void copy_own(const struct route *r, const struct piece *p, float *sum, bool out)
{
    for (struct range range = { 0 }; next_range(r->x, p, &range);) {
        float *into = range.slice->into + range.into;
        if (out)
            memcpy(into, sum + range.at, (size_t)range.nelem * sizeof *into);
        else
            memcpy(sum + range.at, into, (size_t)range.nelem * sizeof *into);
    }
}

/* --- messages */

static int start(const struct route *r, bool sends, enum comm_mpi_tag tag, const struct piece *p, struct message *m,
                 struct fsdpck_error *err)
{
    if (sends) {
        const uint64_t checksum = checksum_of(p, m->data);
        memcpy(m->data + p->nelem * sizeof(float), &checksum, sizeof checksum);
    }
    return comm_mpi_start_block(r->c, sends, m->peer, tag, m->data, message_nbytes(p), &m->request,
                                COMM_EXCHANGE_OPERATION, err);
}

static int receive(const struct route *r, const struct piece *p, struct message *m, struct fsdpck_error *err)
{
    uint64_t checksum;
    int rc = comm_mpi_wait(r->c, &m->request, m->peer, message_nbytes(p), COMM_EXCHANGE_OPERATION, err);
    memcpy(&checksum, m->data + p->nelem * sizeof(float), sizeof checksum);
    if (!rc && checksum != checksum_of(p, m->data))
        rc = fsdpck_error_set(err, FSDPCK_ERR_FORMAT, NULL,
                              "rank %u of %u, %s: a sum from rank %u has arrived damaged: its hash is %016llx, wanted "
                              "%016llx",
                              r->c->base.rank, r->c->base.nranks, COMM_EXCHANGE_OPERATION, m->peer,
                              (unsigned long long)checksum_of(p, m->data), (unsigned long long)checksum);
    return rc;
}

static int finish(const struct route *r, struct message *m, struct fsdpck_error *err)
{
    return m->request == MPI_REQUEST_NULL ? 0
                                          : comm_mpi_wait(r->c, &m->request, m->peer, 0, COMM_EXCHANGE_OPERATION, err);
}

/* --- a piece on this host */

static bool handles(const struct route *r, const struct piece *p)
{
    return r->hosts->mine <= r->last && handler(r, r->hosts->mine, p) == r->c->base.rank;
}

/* Whether a sum comes to this host by a message, and from which rank. */
static bool arrives(const struct route *r, const struct piece *p, uint32_t *from)
{
    const uint32_t host = r->hosts->mine;
    *from = host ? handler(r, host - 1, p) : p->owner;
    return host ? true : !r->x->first && p->owner != r->c->base.rank;
}

/* A slot is free when the sum that it held before has been sent. */
static int expect(const struct route *r, const struct piece *p, size_t turn, struct fsdpck_error *err)
{
    struct chain *chain = r->c->chain;
    struct message *in = &chain->received[turn % CHAIN_SLOTS];
    int rc = finish(r, &chain->sent[turn % CHAIN_SLOTS], err);
    if (!rc && arrives(r, p, &in->peer))
        rc = start(r, false, r->hosts->mine ? COMM_MPI_CHAIN : COMM_MPI_FEED, p, in, err);
    return rc;
}

static int handle(const struct route *r, const struct piece *p, size_t turn, struct fsdpck_error *err)
{
    struct chain *chain = r->c->chain;
    struct message *in = &chain->received[turn % CHAIN_SLOTS], *out = &chain->sent[turn % CHAIN_SLOTS];
    const uint32_t host = r->hosts->mine;
    const bool here = !arrives(r, p, &in->peer);
    float *sum = (float *)in->data;
    int rc = here ? 0 : receive(r, p, in, err);
    if (rc)
        return rc;
    if (here && !r->x->first)
        copy_own(r, p, sum, false);
    fold(r, p, sum, here && r->x->first);
    if (host == r->last && p->owner == r->c->base.rank) {
        copy_own(r, p, sum, true);
        return 0;
    }
    out->peer = host == r->last ? p->owner : handler(r, host + 1, p);
    return start(r, true, host == r->last ? COMM_MPI_SUM : COMM_MPI_CHAIN, p, out, err);
}

/* Receives are started before their turn. */
static int handle_all(const struct route *r, struct fsdpck_error *err)
{
    struct chain *chain = r->c->chain;
    size_t ahead = 0;
    int rc = 0;
    for (size_t turn = 0; turn < chain->npieces && !rc; turn++) {
        for (; ahead < chain->npieces && ahead <= turn + AHEAD && !rc; ahead++)
            rc = expect(r, &chain->pieces[ahead], ahead, err);
        if (!rc)
            rc = handle(r, &chain->pieces[turn], turn, err);
    }
    for (size_t slot = 0; slot < CHAIN_SLOTS && !rc; slot++)
        rc = finish(r, &chain->sent[slot], err);
    return rc;
}

/* --- the pieces that this rank owns */

/* Starts to send the sums of earlier waves to the first host, and to receive the results from the last one. */
static int start_own(const struct route *r, struct fsdpck_error *err)
{
    const struct chain *chain = r->c->chain;
    const uint32_t rank = r->c->base.rank;
    int rc = 0;
    for (size_t i = 0; i < chain->nown && !rc; i++) {
        struct own_piece *own = &chain->own[i];
        const struct piece *p = &own->piece;
        char *data = chain->own_data + 2 * i * CHAIN_MESSAGE_NBYTES;
        own->sum = (struct message){ data, MPI_REQUEST_NULL, handler(r, r->last, p) };
        own->feed = (struct message){ data + CHAIN_MESSAGE_NBYTES, MPI_REQUEST_NULL, handler(r, 0, p) };
        if (own->sum.peer != rank)
            rc = start(r, false, COMM_MPI_SUM, p, &own->sum, err);
        if (rc || r->x->first || own->feed.peer == rank)
            continue;
        copy_own(r, p, (float *)own->feed.data, false);
        rc = start(r, true, COMM_MPI_FEED, p, &own->feed, err);
    }
    return rc;
}

static int finish_own(const struct route *r, struct fsdpck_error *err)
{
    const struct chain *chain = r->c->chain;
    int rc = 0;
    for (size_t i = 0; i < chain->nown && !rc; i++) {
        struct own_piece *own = &chain->own[i];
        rc = finish(r, &own->feed, err);
        if (rc || own->sum.peer == r->c->base.rank)
            continue;
        rc = receive(r, &own->piece, &own->sum, err);
        if (!rc)
            copy_own(r, &own->piece, (float *)own->sum.data, true);
    }
    return rc;
}

/* --- an exchange */

static int add_piece(const struct route *r, const struct piece *p, struct fsdpck_error *err)
{
    struct chain *chain = r->c->chain;
    if (handles(r, p)) {
        if (!grow((void **)&chain->pieces, &chain->capacity, chain->npieces + 1, sizeof *p))
            return fsdpck_error_nomem(err, (chain->npieces + 1) * sizeof *p);
        chain->pieces[chain->npieces++] = *p;
    }
    if (p->owner == r->c->base.rank) {
        if (!grow((void **)&chain->own, &chain->own_capacity, chain->nown + 1, sizeof *chain->own))
            return fsdpck_error_nomem(err, (chain->nown + 1) * sizeof *chain->own);
        chain->own[chain->nown++].piece = *p;
    }
    return 0;
}

/* Lists the pieces of this rank in the order of all ranks: the first of each owner, then the second, …, so that owners
 * take part in turn. */
static int list_pieces(const struct route *r, struct fsdpck_error *err)
{
    struct chain *chain = r->c->chain;
    size_t longest = 0;
    struct piece p = { 0 };
    int rc = 0;
    for (uint32_t owner = 0; owner < r->c->base.nranks; owner++) {
        chain->owned[owner] = comm_mpi_chains(r->c, r->x, owner) ? comm_mpi_owned(r->x, owner) : 0;
        longest = chain->owned[owner] > longest ? chain->owned[owner] : longest;
    }
    chain->npieces = chain->nown = 0;
    for (p.at = 0; p.at < longest; p.at += CHAIN_PIECE) {
        for (p.owner = 0; p.owner < r->c->base.nranks && !rc; p.owner++) {
            if (p.at >= chain->owned[p.owner])
                continue;
            p.nelem = chain->owned[p.owner] - p.at < CHAIN_PIECE ? chain->owned[p.owner] - p.at : CHAIN_PIECE;
            rc = add_piece(r, &p, err);
            p.number++;
        }
    }
    return rc;
}

static int make_chain(struct mpi *c, struct fsdpck_error *err)
{
    struct chain *chain = c->chain ? c->chain : calloc(1, sizeof *chain);
    if (!chain || c->chain)
        return chain ? 0 : fsdpck_error_nomem(err, sizeof *chain);
    c->chain = chain;
    chain->owned = calloc(c->base.nranks, sizeof *chain->owned);
    chain->slots = malloc(CHAIN_SLOTS * CHAIN_MESSAGE_NBYTES);
    if (!chain->owned || !chain->slots)
        return fsdpck_error_nomem(err, CHAIN_SLOTS * CHAIN_MESSAGE_NBYTES);
    for (size_t slot = 0; slot < CHAIN_SLOTS; slot++)
        chain->received[slot] = chain->sent[slot] =
            (struct message){ .data = chain->slots + slot * CHAIN_MESSAGE_NBYTES, .request = MPI_REQUEST_NULL };
    return 0;
}

static int make_own_data(struct chain *chain, struct fsdpck_error *err)
{
    if (chain->nown <= chain->own_data_npieces)
        return 0;
    free(chain->own_data);
    chain->own_data = malloc(2 * chain->nown * CHAIN_MESSAGE_NBYTES);
    chain->own_data_npieces = chain->own_data ? chain->nown : 0;
    return chain->own_data ? 0 : fsdpck_error_nomem(err, 2 * chain->nown * CHAIN_MESSAGE_NBYTES);
}

int comm_mpi_chain(struct mpi *c, const struct exchange *x, struct fsdpck_error *err)
{
    const struct hosts *hosts = &c->host->hosts;
    const struct route r = { c, x, hosts, hosts->of[x->ncontributions - 1] };
    int rc = make_chain(c, err);
    if (!rc)
        rc = list_pieces(&r, err);
    if (!rc)
        rc = make_own_data(c->chain, err);
    if (!rc)
        rc = start_own(&r, err);
    if (!rc)
        rc = handle_all(&r, err);
    return rc ? rc : finish_own(&r, err);
}

void comm_mpi_chain_free(struct chain *chain)
{
    if (!chain)
        return;
    free(chain->owned);
    free(chain->pieces);
    free(chain->slots);
    free(chain->own);
    free(chain->own_data);
    free(chain);
}
