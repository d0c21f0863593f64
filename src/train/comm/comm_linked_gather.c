/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters between linked devices: gathers within a group, the parts that are kept for the backward pass, and new
 * values for the other ranks that hold a chunk. */
#include "comm/comm_linked_impl.h"
#include "comm/stream_timer.h"

/* Where the device has a chunk of a piece that this rank holds. */
static unsigned char *chunk_address(const struct linked *c, enum comm_placement placement, const struct comm_piece *p,
                                    uint32_t chunk)
{
    const uint32_t within = comm_within(&c->base, placement, p);
    const size_t at = chunk / within * (within > 1 ? p->stride : p->chunk);
    return placement == COMM_KEPT ? c->on.kept + (p->own - c->on.kept_from) * (c->base.nranks / within) + at
                                  : c->on.values + p->rest_at + at;
}

static void copy_chunk(const struct linked *c, char *to, const unsigned char *from, size_t nbytes)
{
    c->on.device->memory->copy(c->stream, to, from, nbytes);
}

/* Gathers from some of the ranks, by messages: a link has no gather of less than all. */
static void gather_within(const struct linked *c, enum comm_placement from, const struct comm_piece *p, char *into)
{
    const uint32_t within = comm_within(&c->base, from, p), me = c->base.rank % within, first = c->base.rank - me;
    for (uint32_t chunk = 0; chunk < c->base.nranks && chunk * p->chunk < p->nbytes; chunk++) {
        const uint32_t peer = chunk % within;
        char *to = into + p->into + chunk * p->chunk;
        if (peer != me) {
            c->links->receive(c->link, c->stream, to, p->chunk, first + peer);
            continue;
        }
        copy_chunk(c, to, chunk_address(c, from, p, chunk), p->chunk);
        for (uint32_t r = 0; r < within; r++) {
            if (r != me)
                c->links->send(c->link, c->stream, to, p->chunk, first + r);
        }
    }
}

/* Links read device memory only: chunks that rest in host memory are gathered from their places in the output. */
static const void *own_chunk(const struct linked *c, enum comm_placement from, const struct comm_piece *p, char *into)
{
    const unsigned char *at = chunk_address(c, from, p, c->base.rank);
    char *place = into + p->into + c->base.rank * p->chunk;
    if (from == COMM_KEPT || !c->on.on_host)
        return at;
    copy_chunk(c, place, at, p->chunk);
    return place;
}

int comm_linked_gather(struct comm *base, enum comm_placement from, const struct comm_piece *pieces, size_t npieces,
                       char *into, struct fsdpck_error *err)
{
    struct linked *c = (struct linked *)base;
    stream_timer_begin(base->timer, 0, c->stream);
    if (c->link)
        c->links->begin(c->link);
    for (size_t i = 0; i < npieces; i++) {
        const struct comm_piece *p = &pieces[i];
        if (comm_within(base, from, p) == 1)
            copy_chunk(c, into + p->into, chunk_address(c, from, p, 0), p->nbytes);
        else if (comm_within(base, from, p) == base->nranks)
            c->links->all_gather(c->link, c->stream, into + p->into, own_chunk(c, from, p, into), p->chunk);
        else
            gather_within(c, from, p, into);
    }
    if (c->link)
        c->links->end(c->link, c->stream);
    stream_timer_end(base->timer, c->stream);
    return comm_linked_look(c, COMM_GATHER_OPERATION, err);
}

void comm_linked_keep(struct comm *base, const struct comm_piece *pieces, size_t npieces, const char *gathered)
{
    struct linked *c = (struct linked *)base;
    const uint32_t within = base->kept_within;
    for (size_t i = 0; i < npieces; i++) {
        const struct comm_piece *p = &pieces[i];
        for (uint32_t chunk = base->rank % within; chunk < base->nranks && chunk * p->chunk < p->nbytes;
             chunk += within)
            copy_chunk(c, (char *)chunk_address(c, COMM_KEPT, p, chunk),
                       (const unsigned char *)gathered + p->into + chunk * p->chunk, p->chunk);
    }
}

static void exchange_owned(const struct linked *c, const struct comm_piece *p)
{
    const uint32_t within = p->within, me = c->base.rank;
    for (uint32_t r = me % within; r < c->base.nranks; r += within) {
        if (r != me && me * p->chunk < p->nbytes)
            c->links->send(c->link, c->stream, chunk_address(c, COMM_AT_REST, p, me), p->chunk, r);
        if (r != me && r * p->chunk < p->nbytes)
            c->links->receive(c->link, c->stream, chunk_address(c, COMM_AT_REST, p, r), p->chunk, r);
    }
}

/* The same for chunks in host memory, a part at a time, through device memory. */
static void exchange_by_passage(const struct linked *c, const struct comm_piece *p)
{
    const uint32_t within = p->within, me = c->base.rank, nholders = c->base.nranks / within;
    const size_t room = c->on.passage_nbytes / nholders;
    for (size_t at = 0; at < p->chunk; at += room) {
        const size_t nbytes = p->chunk - at < room ? p->chunk - at : room;
        char *mine = c->on.passage + me / within * room;
        copy_chunk(c, mine, chunk_address(c, COMM_AT_REST, p, me) + at, nbytes);
        c->links->begin(c->link);
        for (uint32_t r = me % within; r < c->base.nranks; r += within) {
            if (r == me)
                continue;
            c->links->send(c->link, c->stream, mine, nbytes, r);
            c->links->receive(c->link, c->stream, c->on.passage + r / within * room, nbytes, r);
        }
        c->links->end(c->link, c->stream);
        for (uint32_t r = me % within; r < c->base.nranks; r += within)
            if (r != me)
                copy_chunk(c, (char *)chunk_address(c, COMM_AT_REST, p, r) + at,
                           (const unsigned char *)c->on.passage + r / within * room, nbytes);
    }
}

/* Each owner sends its chunk to the ranks that hold it too. */
int comm_linked_publish(struct comm *base, const struct comm_piece *pieces, size_t npieces, struct fsdpck_error *err)
{
    struct linked *c = (struct linked *)base;
    if (pieces[0].within == base->nranks)
        return 0;
    stream_timer_begin(base->timer, 0, c->folds);
    comm_linked_follow(c, c->made, c->folds, c->stream);
    for (size_t i = 0; i < npieces && c->on.on_host; i++)
        exchange_by_passage(c, &pieces[i]);
    if (!c->on.on_host) {
        c->links->begin(c->link);
        for (size_t i = 0; i < npieces; i++)
            exchange_owned(c, &pieces[i]);
        c->links->end(c->link, c->stream);
    }
    comm_linked_follow(c, c->moved, c->stream, c->folds);
    stream_timer_end(base->timer, c->folds);
    return comm_linked_look(c, COMM_UPDATE_OPERATION, err);
}
