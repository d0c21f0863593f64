/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory between processes of one host. Waits use futexes with a timeout, so that a lost or stalled rank is
 * named instead of blocking the others. */
#include "comm/comm_local.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "comm/gate.h"
#include "comm/trade.h"
#include "comm/value_file.h"

enum { PAGE_NBYTES = 4096 };

struct shared_rank {
    _Alignas(64) uint64_t sum[COMM_NLANES][COMM_MAX_SUM];
};

struct comm_world {
    uint32_t nranks;
    size_t nbytes; /* of this mapping */
    struct comm_sizes sizes;
    struct job_status *job_status;
    struct value_file *file;                 /* holds the only copy at rest; NULL: copies do */
    unsigned char *copies[COMM_NPLACEMENTS]; /* by placement: copies of the parameters, copy_nbytes each */
    float *grads;                            /* all are separate mappings, at the same address in all processes */
    char *messages;                          /* (nranks, sizes.trade_nbytes) the one that each rank sends; NULL: none */
    size_t copy_nbytes, grads_nbytes;
    struct gate *gates[COMM_NLANES]; /* behind `ranks` */
    struct shared_rank ranks[];
};

struct local {
    struct comm base;
    struct comm_world *world;
    struct value_window window; /* COMM_GATHER, with a file */
};

static void *map_shared(size_t nbytes)
{
    void *p =
        mmap(NULL, nbytes ? nbytes : 1, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

/* A single rank uses private memory: it may be in huge pages, which shared memory mostly may not, and reads from it are
 * a third faster. */
static void *map_for(uint32_t nranks, size_t nbytes)
{
    if (nranks > 1)
        return map_shared(nbytes);
    void *p =
        mmap(NULL, nbytes ? nbytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    madvise(p, nbytes, MADV_HUGEPAGE); /* only a hint */
    return p;
}

/* Ranks that share a copy under a placement; 0: there is none in memory. */
static uint32_t sharing(const struct comm_world *w, enum comm_placement placement)
{
    return placement == COMM_KEPT ? w->sizes.kept_within : w->sizes.folder ? 0 : w->sizes.ranks_of_copy;
}

static size_t copies_nbytes(const struct comm_world *w, enum comm_placement placement)
{
    const uint32_t n = sharing(w, placement);
    return n ? w->nranks / n * w->copy_nbytes : 0;
}

static size_t messages_nbytes(const struct comm_world *w)
{
    return w->nranks * w->sizes.trade_nbytes;
}

/* Memory that ranks map is one copy, and nothing is kept aside. */
static struct comm_sizes settle_sizes(uint32_t nranks, struct comm_sizes sizes)
{
    if (!sizes.copies) {
        sizes.ranks_of_copy = nranks;
        sizes.kept_within = 0;
    }
    return sizes;
}

int comm_world_new(uint32_t nranks, struct comm_sizes sizes, struct job_status *job_status, struct comm_world **out,
                   struct fsdpck_error *err)
{
    const size_t gates_at = sizeof(struct comm_world) + nranks * sizeof(struct shared_rank);
    size_t nbytes = gates_at + COMM_NLANES * gate_nbytes(nranks);
    struct comm_world *w = map_shared(nbytes);
    *out = NULL;
    if (!w)
        return fsdpck_error_nomem(err, nbytes);
    w->nranks = nranks;
    w->nbytes = nbytes;
    w->sizes = settle_sizes(nranks, sizes);
    w->job_status = job_status;
    for (size_t lane = 0; lane < COMM_NLANES; lane++) {
        w->gates[lane] = (struct gate *)((char *)w + gates_at + lane * gate_nbytes(nranks));
        gate_init(w->gates[lane], nranks);
    }
    w->copy_nbytes = (sizes.value_nbytes + PAGE_NBYTES - 1) / PAGE_NBYTES * PAGE_NBYTES;
    w->grads_nbytes = (size_t)sizes.grad_nelem * nranks * sizeof(float);
    for (int i = 0; i < COMM_NPLACEMENTS; i++)
        w->copies[i] = map_for(nranks, copies_nbytes(w, (enum comm_placement)i));
    w->grads = map_for(nranks, w->grads_nbytes);
    w->messages = sizes.trade_nbytes ? map_shared(messages_nbytes(w)) : NULL;
    if (!w->copies[COMM_AT_REST] || !w->copies[COMM_KEPT] || !w->grads || (sizes.trade_nbytes && !w->messages)) {
        nbytes = copies_nbytes(w, COMM_AT_REST) + copies_nbytes(w, COMM_KEPT) + w->grads_nbytes + messages_nbytes(w);
        comm_world_free(w);
        return fsdpck_error_nomem(err, nbytes);
    }
    int rc = sizes.folder ? value_file_new(&(struct value_file_request){ .io = sizes.io,
                                                                         .folder = sizes.folder,
                                                                         .nbytes = sizes.value_nbytes,
                                                                         .npieces = sizes.npieces,
                                                                         .nranks = nranks },
                                           &w->file, err)
                          : 0;
    if (rc)
        comm_world_free(w);
    else
        *out = w;
    return rc;
}

void comm_world_free(struct comm_world *w)
{
    if (!w)
        return;
    for (int i = 0; i < COMM_NPLACEMENTS; i++) {
        const size_t nbytes = copies_nbytes(w, (enum comm_placement)i);
        if (w->copies[i])
            munmap(w->copies[i], nbytes ? nbytes : 1);
    }
    if (w->grads)
        munmap(w->grads, w->grads_nbytes ? w->grads_nbytes : 1);
    if (w->messages)
        munmap(w->messages, messages_nbytes(w));
    value_file_free(w->file);
    munmap(w, w->nbytes);
}

static int wait_gate(struct local *c, struct gate *gate, uint32_t ticket, const char *operation,
                     struct fsdpck_error *err)
{
    uint64_t started = comm_now_ns();
    while (!gate_is_open(gate, ticket)) {
        if (job_status_failed(c->base.job_status))
            return comm_other_failed(&c->base, operation, err);
        if ((double)(comm_now_ns() - started) > 1e9 * job_status_patience(c->base.job_status))
            return comm_timed_out(&c->base, gate_late(gate, c->base.rank), operation, err);
        comm_heartbeat(&c->base);
        gate_sleep(gate, ticket, 100000000);
    }
    return 0;
}

static int local_barrier(struct comm *base, const char *operation, struct fsdpck_error *err)
{
    struct local *c = (struct local *)base;
    struct gate *gate = c->world->gates[base->lane];
    uint64_t started = comm_now_ns();
    if (base->lane == COMM_MAIN)
        job_status_operation(base->job_status, base->rank, operation);
    if (job_status_failed(base->job_status))
        return comm_other_failed(base, operation, err);
    int rc = wait_gate(c, gate, gate_enter(gate, base->rank), operation, err);
    base->wait_ns += comm_now_ns() - started;
    return rc;
}

static void fold_slice(const struct local *c, const struct comm_slice *s, uint32_t ncontributions, bool first)
{
    int64_t begin, nelem = comm_slice_part(s, c->base.rank, &begin);
    for (uint32_t q = 0; q < ncontributions && nelem > 0; q++)
        comm_fold(&c->base, s->into,
                  (const char *)(c->world->grads + q * c->world->sizes.grad_nelem) + comm_slice_at(&c->base, s, begin),
                  nelem, first && q == 0);
}

static int local_exchange(struct comm *base, const struct comm_slice *slices, size_t nslices, uint32_t ncontributions,
                          bool first, struct fsdpck_error *err)
{
    struct local *c = (struct local *)base;
    uint64_t started = comm_now_ns();
    if (base->rank < ncontributions)
        comm_round(base, slices, nslices);
    base->wait_ns += comm_now_ns() - started;
    int rc = local_barrier(base, COMM_EXCHANGE_OPERATION, err);
    started = comm_now_ns();
    for (size_t i = 0; i < nslices && !rc; i++)
        fold_slice(c, &slices[i], ncontributions, first);
    base->wait_ns += comm_now_ns() - started;
    return rc ? rc : local_barrier(base, COMM_EXCHANGE_OPERATION, err);
}

/* Of ranks that share a copy, the chunks are side by side. */
static void copy_piece(const struct local *c, const struct comm_piece *p, char *into)
{
    const struct comm_world *w = c->world;
    const uint32_t first = c->base.rank / p->within * p->within, n = w->sizes.ranks_of_copy;
    for (uint32_t chunk = 0; chunk < w->nranks; chunk++) {
        size_t begin, nbytes = comm_piece_chunk(p, chunk, &begin);
        const unsigned char *copy = w->copies[COMM_AT_REST] + (first + chunk % p->within) / n * w->copy_nbytes;
        memcpy(into + begin, copy + p->at + begin, nbytes);
    }
}

/* At rest, a barrier (update) and a sum (norm) separate readers from writers. What is kept was written behind an
 * earlier gather, which another rank may not have reached. */
static int local_gather(struct comm *base, enum comm_placement from, const struct comm_piece *pieces, size_t npieces,
                        char *into, struct fsdpck_error *err)
{
    const struct local *c = (const struct local *)base;
    int rc = from == COMM_KEPT ? local_barrier(base, COMM_GATHER_OPERATION, err) : 0;
    uint64_t started = comm_now_ns();
    for (size_t i = 0; i < npieces && !rc; i++) {
        const struct comm_piece *p = &pieces[i];
        if (from == COMM_KEPT)
            memcpy(into + p->into, base->kept + p->at, p->nbytes);
        else if (p->within == c->world->sizes.ranks_of_copy)
            memcpy(into + p->into, base->values + p->at, p->nbytes);
        else
            copy_piece(c, p, into + p->into);
    }
    comm_heartbeat(base);
    base->wait_ns += comm_now_ns() - started;
    return !rc && job_status_failed(base->job_status) ? comm_other_failed(base, COMM_GATHER_OPERATION, err) : rc;
}

/* Writes the chunks that this rank owns to the copies of the other ranks that hold them. */
static int local_publish(struct comm *base, const struct comm_piece *pieces, size_t npieces, struct fsdpck_error *err)
{
    const struct comm_world *w = ((struct local *)base)->world;
    (void)err;
    for (size_t i = 0; i < npieces; i++) {
        size_t begin, nbytes = comm_piece_chunk(&pieces[i], base->rank, &begin);
        const size_t at = pieces[i].at + begin;
        for (uint32_t r = base->rank % pieces[i].within; r < w->nranks; r += pieces[i].within) {
            unsigned char *to = w->copies[COMM_AT_REST] + r / w->sizes.ranks_of_copy * w->copy_nbytes + at;
            if (to != base->values + at)
                memcpy(to, base->values + at, nbytes);
        }
    }
    return 0;
}

static int file_gather(struct comm *base, enum comm_placement from, const struct comm_piece *pieces, size_t npieces,
                       char *into, struct fsdpck_error *err)
{
    struct local *c = (struct local *)base;
    if (from == COMM_KEPT)
        return local_gather(base, from, pieces, npieces, into, err);
    const uint64_t started = comm_now_ns();
    int rc = value_file_gather(c->world->file, &c->window, base->rank, NULL, pieces, npieces, into, err);
    comm_heartbeat(base);
    base->wait_ns += comm_now_ns() - started;
    return !rc && job_status_failed(base->job_status) ? comm_other_failed(base, COMM_GATHER_OPERATION, err) : rc;
}

static int file_publish(struct comm *base, const struct comm_piece *pieces, size_t npieces, struct fsdpck_error *err)
{
    return value_file_publish(((struct local *)base)->world->file, base->rank, pieces, npieces, err);
}

static int file_settle(struct comm *base, const struct comm_piece *pieces, size_t npieces, struct fsdpck_error *err)
{
    return value_file_release(((struct local *)base)->world->file, base->rank, pieces, npieces, err);
}

static int local_sum(struct comm *base, uint64_t *values, size_t n, struct fsdpck_error *err)
{
    struct comm_world *w = ((struct local *)base)->world;
    memcpy(w->ranks[base->rank].sum[base->lane], values, n * sizeof *values);
    int rc = local_barrier(base, "sum over ranks", err);
    memset(values, 0, n * sizeof *values);
    for (uint32_t r = 0; r < w->nranks && !rc; r++) {
        for (size_t i = 0; i < n; i++)
            values[i] += w->ranks[r].sum[base->lane][i];
    }
    return rc ? rc : local_barrier(base, "sum over ranks", err);
}

/* A rank reads the message where its sender has put it. The second barrier separates readers from the next message. */
static int local_trade(struct comm *base, const struct comm_trade *t, struct fsdpck_error *err)
{
    const struct comm_world *w = ((struct local *)base)->world;
    char *to = w->messages + base->rank * w->sizes.trade_nbytes;
    const char *from = w->messages + t->from * w->sizes.trade_nbytes;
    for (size_t i = 0; i < t->nout; i++) {
        memcpy(to, t->out[i].data, t->out[i].nbytes);
        to += t->out[i].nbytes;
    }
    int rc = local_barrier(base, COMM_TOKENS_OPERATION, err);
    for (size_t i = 0; i < t->nin && !rc; i++) {
        memcpy(t->in[i].data, from, t->in[i].nbytes);
        from += t->in[i].nbytes;
    }
    return rc ? rc : local_barrier(base, COMM_TOKENS_OPERATION, err);
}

static void local_free(struct comm *base)
{
    value_window_free(&((struct local *)base->lanes[COMM_GATHER])->window);
    for (int lane = COMM_MAIN + 1; lane < COMM_NLANES; lane++)
        free(base->lanes[lane]);
    free(base);
}

static const struct comm_ops local_ops = { .name = "local",
                                           .barrier = local_barrier,
                                           .exchange = local_exchange,
                                           .gather = local_gather,
                                           .keep = comm_keep,
                                           .publish = local_publish,
                                           .sum_u64 = local_sum,
                                           .trade = local_trade,
                                           .free = local_free };

/* The parameters are in a file. */
static const struct comm_ops file_ops = { .name = "local",
                                          .barrier = local_barrier,
                                          .exchange = local_exchange,
                                          .gather = file_gather,
                                          .keep = comm_keep,
                                          .publish = file_publish,
                                          .settle = file_settle,
                                          .sum_u64 = local_sum,
                                          .free = local_free };

/* The copy under a placement that the rank's group holds; NULL if there is none. */
static unsigned char *copy_of(const struct comm_world *w, enum comm_placement placement, uint32_t rank)
{
    const uint32_t n = sharing(w, placement);
    if (placement == COMM_AT_REST && w->file)
        return value_file_map(w->file);
    return n ? w->copies[placement] + rank / n * w->copy_nbytes : NULL;
}

static struct comm *join_lane(struct comm_world *w, uint32_t rank, enum comm_lane lane)
{
    struct local *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->world = w;
    c->base = (struct comm){ .ops = w->file ? &file_ops : &local_ops,
                             .job_status = w->job_status,
                             .lane = lane,
                             .rank = rank,
                             .nranks = w->nranks,
                             .kept_within = w->sizes.kept_within,
                             .values = copy_of(w, COMM_AT_REST, rank),
                             .kept = copy_of(w, COMM_KEPT, rank),
                             .contribution = w->grads + (int64_t)rank * w->sizes.grad_nelem,
                             .near_contributions = w->grads,
                             .nnear = w->nranks,
                             .near_nelem = w->sizes.grad_nelem,
                             .reduce = w->sizes.reduce,
                             .views = !w->sizes.copies || w->sizes.whole };
    return &c->base;
}

int comm_world_join(struct comm_world *w, uint32_t rank, struct comm **out, struct fsdpck_error *err)
{
    struct comm *lanes[COMM_NLANES] = { NULL };
    bool complete = true;
    *out = NULL;
    for (int lane = 0; lane < COMM_NLANES; lane++)
        complete &= (lanes[lane] = join_lane(w, rank, (enum comm_lane)lane)) != NULL;
    if (!complete) {
        for (int lane = 0; lane < COMM_NLANES; lane++)
            free(lanes[lane]);
        return fsdpck_error_nomem(err, COMM_NLANES * sizeof(struct local));
    }
    memcpy(lanes[COMM_MAIN]->lanes, lanes, sizeof lanes);
    *out = lanes[COMM_MAIN];
    return 0;
}
