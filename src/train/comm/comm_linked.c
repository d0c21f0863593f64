/* All-gathers of padded shards straight into their places, and gradients sent to the owners of their rows, who add them up in the order of ranks. A thread looks
 * after the links: it ends what is under way where another rank has failed, so that nobody waits for a device that waits for a rank that is gone. */
#include "comm/comm_linked.h"

#include <kernels/ops.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

enum { LOOK_MS = 50, FOLD_COLS = 4096 };

struct linked {
    struct comm base;
    struct comm *host; /* the same lane of it */
    struct comm_on_device on;
    const struct kern_links *links;
    struct kern_link *link;      /* a lane's own */
    struct kern_stream *stream;  /* COMM_GATHER's own; COMM_MAIN's is the compute stream */
    float *received;             /* COMM_MAIN: (nranks, own_nelem) as `own` lies, by the rank that sent it */
    pthread_t thread;            /* COMM_MAIN's: looks after both lanes */
    bool watching;
    _Atomic bool ending;
};

static int linked_barrier(struct comm *base, const char *operation, struct fsdpck_error *err)
{
    struct linked *c = (struct linked *)base;
    uint64_t before = c->host->wait_ns;
    int rc = c->host->ops->barrier(c->host, operation, err);
    base->wait_ns += c->host->wait_ns - before;
    return rc;
}

static int linked_sum(struct comm *base, uint64_t *values, size_t n, struct fsdpck_error *err)
{
    struct linked *c = (struct linked *)base;
    uint64_t before = c->host->wait_ns;
    int rc = c->host->ops->sum_u64(c->host, values, n, err);
    base->wait_ns += c->host->wait_ns - before;
    return rc;
}

/* What was put on the stream has not run yet; what is known of failures is. */
static int look(const struct linked *c, const char *operation, struct fsdpck_error *err)
{
    char message[KERN_MESSAGE_BYTES];
    comm_beat((struct comm *)&c->base);
    if (board_failed(c->base.board))
        return comm_other_failed(&c->base, operation, err);
    if (c->on.device->stream_status(c->stream, message) == KERN_OK && (!c->link || c->links->status(c->link, message) == KERN_OK))
        return 0;
    return fsdpck_error_set(err, FSDPCK_ERR_IO, NULL, "rank %u of %u, %s: %s", c->base.rank, c->base.nranks, operation, message);
}

static int linked_gather(struct comm *base, const struct comm_piece *pieces, size_t npieces, char *into, struct fsdpck_error *err)
{
    struct linked *c = (struct linked *)base;
    uint64_t started = comm_now_ns();
    if (c->link)
        c->links->begin(c->link);
    for (size_t i = 0; i < npieces; i++) {
        if (c->link)
            c->links->all_gather(c->link, c->stream, into + pieces[i].into, c->on.values + pieces[i].own, pieces[i].chunk);
        else
            c->on.device->memory->copy(c->stream, into + pieces[i].into, c->on.values + pieces[i].own, pieces[i].chunk);
    }
    if (c->link)
        c->links->end(c->link, c->stream);
    base->wait_ns += comm_now_ns() - started;
    return look(c, "gather of parameters", err);
}

/* into = from, or into += from, in the order of the calls. */
static void fold(struct linked *c, float *into, const float *from, int64_t nelem, bool assign)
{
    const int64_t whole = nelem / FOLD_COLS, parts[2][3] = { { 0, whole, FOLD_COLS }, { whole * FOLD_COLS, 1, nelem % FOLD_COLS } };
    if (assign) {
        c->on.device->memory->copy(c->stream, into, from, (size_t)nelem * sizeof *into);
        return;
    }
    for (int i = 0; i < 2; i++) {
        const struct kern_mat to = { into + parts[i][0], parts[i][2], KERN_F32 };
        const struct kern_cmat add = { from + parts[i][0], parts[i][2], KERN_F32 };
        if (parts[i][1] > 0 && parts[i][2] > 0)
            c->on.device->ops->add(c->stream, to, kern_const(to), add, parts[i][1], parts[i][2]);
    }
}

/* Slices whose rows of this rank follow each other, both where they come from and where they go, are folded as one; what lies between them is zero. */
static void fold_own(struct linked *c, const struct comm_slice *slices, size_t nslices, bool assign)
{
    for (size_t i = 0, next; i < nslices; i = next) {
        int64_t begin, end = comm_slice_part(&slices[i], c->base.rank, &begin), from = slices[i].at + begin;
        for (next = i + 1; next < nslices; next++) {
            int64_t its, nelem = comm_slice_part(&slices[next], c->base.rank, &its);
            if (nelem > 0 && end > 0 && slices[next].at + its - from != slices[next].into - slices[i].into)
                break;
            if (nelem > 0 && end <= 0)
                break;
            end = nelem > 0 ? slices[next].into - slices[i].into + nelem : end;
        }
        if (end > 0)
            fold(c, slices[i].into, c->on.contribution + from, end, assign);
    }
}

/* Where what rank q sends for a slice is received. */
static float *received_at(const struct linked *c, const struct comm_slice *s, uint32_t q)
{
    return c->received + (int64_t)q * c->on.own_nelem + (s->into - c->on.own);
}

static void swap_slices(struct linked *c, const struct comm_slice *slices, size_t nslices, uint32_t ncontributions)
{
    c->links->begin(c->link);
    for (size_t i = 0; i < nslices; i++) {
        int64_t begin, nelem;
        for (uint32_t owner = 0; owner < c->base.nranks && c->base.rank < ncontributions; owner++) {
            nelem = comm_slice_part(&slices[i], owner, &begin);
            if (nelem > 0 && owner != c->base.rank)
                c->links->send(c->link, c->stream, c->on.contribution + slices[i].at + begin, (size_t)nelem * sizeof(float), owner);
        }
        nelem = comm_slice_part(&slices[i], c->base.rank, &begin);
        for (uint32_t q = 0; q < ncontributions && nelem > 0; q++) {
            if (q != c->base.rank)
                c->links->receive(c->link, c->stream, received_at(c, &slices[i], q), (size_t)nelem * sizeof(float), q);
        }
    }
    c->links->end(c->link, c->stream);
}

/* From the first slice's rows to the last one's end: `received` is zero between them, and stays so. */
static void fold_received(struct linked *c, const struct comm_slice *slices, size_t nslices, uint32_t q, bool assign)
{
    int64_t begin, first = -1, end = 0;
    for (size_t i = 0; i < nslices; i++) {
        int64_t nelem = comm_slice_part(&slices[i], c->base.rank, &begin), at = slices[i].into - c->on.own;
        first = nelem > 0 && first < 0 ? at : first;
        end = nelem > 0 ? at + nelem : end;
    }
    if (first >= 0)
        fold(c, slices[0].into + (first - (slices[0].into - c->on.own)), c->received + (int64_t)q * c->on.own_nelem + first, end - first, assign);
}

static int linked_exchange(struct comm *base, const struct comm_slice *slices, size_t nslices, uint32_t ncontributions, bool first, struct fsdpck_error *err)
{
    struct linked *c = (struct linked *)base;
    uint64_t started = comm_now_ns();
    if (c->link)
        swap_slices(c, slices, nslices, ncontributions);
    for (uint32_t q = 0; q < ncontributions; q++) {
        if (q == base->rank)
            fold_own(c, slices, nslices, first && q == 0);
        else
            fold_received(c, slices, nslices, q, first && q == 0);
    }
    base->wait_ns += comm_now_ns() - started;
    return look(c, "exchange of gradients", err);
}

static bool is_over(void *ctx)
{
    const struct linked *c = ctx;
    comm_beat((struct comm *)&c->base);
    return board_failed(c->base.board);
}

/* The first failure of a link is told to all; then, or when another rank has failed, nothing here is waited for any more. */
static void *watch(void *arg)
{
    struct linked *lanes[2] = { arg, (struct linked *)((struct linked *)arg)->base.lanes[COMM_GATHER] };
    const struct timespec nap = { 0, LOOK_MS * 1000000 };
    while (!atomic_load(&lanes[0]->ending) && !board_failed(lanes[0]->base.board)) {
        nanosleep(&nap, NULL);
        for (int i = 0; i < 2; i++) {
            char message[KERN_MESSAGE_BYTES];
            struct fsdpck_error err = { 0 };
            if (lanes[i]->links->status(lanes[i]->link, message) == KERN_OK)
                continue;
            fsdpck_error_set(&err, FSDPCK_ERR_IO, NULL, "rank %u of %u, link between devices: %s", lanes[i]->base.rank, lanes[i]->base.nranks, message);
            board_fail(lanes[i]->base.board, &err);
        }
    }
    for (int i = 0; i < 2 && !atomic_load(&lanes[0]->ending); i++)
        lanes[i]->links->abort(lanes[i]->link);
    return NULL;
}

static void free_lane(struct linked *c)
{
    if (!c)
        return;
    if (c->link)
        c->links->close(c->link);
    if (c->base.lane == COMM_GATHER)
        c->on.device->stream_free(c->stream);
    free(c);
}

static void linked_free(struct comm *base)
{
    struct linked *c = (struct linked *)base;
    atomic_store(&c->ending, true);
    if (c->watching)
        pthread_join(c->thread, NULL);
    free_lane((struct linked *)base->lanes[COMM_GATHER]);
    free_lane(c);
}

static const struct comm_ops linked_ops = { "linked", linked_barrier, linked_exchange, linked_gather, NULL, linked_sum, linked_free };

static int link_failed(const struct linked *c, const char *message, struct fsdpck_error *err)
{
    if (board_failed(c->base.board))
        return comm_other_failed(&c->base, "linking of devices", err);
    return fsdpck_error_set(err, FSDPCK_ERR_IO, NULL, "rank %u of %u: its device cannot be linked to the others by %s: %s", c->base.rank, c->base.nranks, c->links->name,
                            message);
}

/* Rank 0's id goes to the others as words that are summed. */
static int open_link(struct linked *c, struct fsdpck_error *err)
{
    union {
        unsigned char bytes[KERN_LINK_ID_BYTES];
        uint64_t words[KERN_LINK_ID_BYTES / 8];
    } id = { { 0 } };
    char message[KERN_MESSAGE_BYTES] = "";
    if (c->base.rank == 0 && c->links->make_id(id.bytes, message) != KERN_OK)
        return link_failed(c, message, err);
    int rc = c->host->ops->sum_u64(c->host, id.words, KERN_LINK_ID_BYTES / 8, err);
    if (rc)
        return rc;
    int opened = c->links->open(id.bytes, c->base.rank, c->base.nranks, c->on.index, is_over, c, &c->link, message);
    return opened == KERN_OK ? 0 : link_failed(c, message, err);
}

static int new_lane(struct comm *host, const struct comm_on_device *on, const struct kern_links *links, struct linked **out, struct fsdpck_error *err)
{
    char message[KERN_MESSAGE_BYTES];
    struct linked *c = calloc(1, sizeof *c);
    *out = c;
    if (!c)
        return fsdpck_error_nomem(err, sizeof *c);
    c->host = host;
    c->on = *on;
    c->links = links;
    c->stream = on->compute;
    c->base = (struct comm){ .ops = &linked_ops, .board = host->board, .lane = host->lane, .rank = host->rank, .nranks = host->nranks, .values = on->values,
                             .contribution = on->contribution };
    if (host->lane == COMM_GATHER && on->device->stream_new(on->index, NULL, &c->stream, message) != KERN_OK)
        return fsdpck_error_set(err, FSDPCK_ERR_NOMEM, NULL, "rank %u's stream of gathers: %s", host->rank, message);
    return links ? open_link(c, err) : 0;
}

uint64_t comm_linked_nbytes(uint32_t nranks, int64_t own_nelem)
{
    return nranks > 1 ? nranks * (uint64_t)own_nelem * sizeof(float) : 0;
}

int comm_linked_new(struct comm *host, const struct comm_on_device *on, const struct kern_links *links, float *memory, bool views, struct comm **out,
                    struct fsdpck_error *err)
{
    struct linked *main = NULL, *gather = NULL;
    *out = NULL;
    int rc = new_lane(host, on, links, &main, err);
    if (!rc)
        rc = new_lane(host->lanes[COMM_GATHER], on, links, &gather, err);
    if (rc) {
        free_lane(main);
        free_lane(gather);
        return rc;
    }
    main->received = memory;
    main->base.views = gather->base.views = views;
    gather->base.stream = gather->stream;
    main->base.lanes[COMM_MAIN] = &main->base;
    main->base.lanes[COMM_GATHER] = &gather->base;
    main->base.lanes[COMM_REDUCE] = host->lanes[COMM_REDUCE];
    main->base.lanes[COMM_SAVE] = host->lanes[COMM_SAVE];
    main->watching = links && pthread_create(&main->thread, NULL, watch, main) == 0;
    *out = &main->base;
    return 0;
}
