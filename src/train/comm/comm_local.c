/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory between processes of one host. Waits use futexes with a timeout, so that a lost or stalled rank is
 * named instead of blocking the others. */
#include "comm/comm_local.h"

#include <linux/futex.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The barrier of a lane. */
struct gate {
    _Alignas(64) _Atomic uint32_t arrived;
    _Atomic uint32_t generation;
};

struct shared_rank {
    _Atomic uint32_t arrivals[COMM_NLANES]; /* number of barriers entered */
    _Alignas(64) uint64_t sum[COMM_NLANES][COMM_MAX_SUM];
};

struct comm_world {
    uint32_t nranks;
    size_t nbytes; /* of this mapping */
    struct comm_sizes sizes;
    struct job_status *job_status;
    unsigned char *values;
    float *grads; /* separate mappings, at the same address in all processes */
    size_t values_nbytes, grads_nbytes;
    struct gate gates[COMM_NLANES];
    struct shared_rank ranks[];
};

struct local {
    struct comm base;
    struct comm_world *world;
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

int comm_world_new(uint32_t nranks, struct comm_sizes sizes, struct job_status *job_status, struct comm_world **out,
                   struct fsdpck_error *err)
{
    size_t nbytes = sizeof(struct comm_world) + nranks * sizeof(struct shared_rank);
    struct comm_world *w = map_shared(nbytes);
    *out = NULL;
    if (!w)
        return fsdpck_error_nomem(err, nbytes);
    w->nranks = nranks;
    w->nbytes = nbytes;
    w->sizes = sizes;
    w->job_status = job_status;
    w->values_nbytes = sizes.value_nbytes;
    w->grads_nbytes = (size_t)sizes.grad_nelem * nranks * sizeof(float);
    w->values = map_for(nranks, w->values_nbytes);
    w->grads = map_for(nranks, w->grads_nbytes);
    if (!w->values || !w->grads) {
        nbytes = w->values_nbytes + w->grads_nbytes;
        comm_world_free(w);
        return fsdpck_error_nomem(err, nbytes);
    }
    *out = w;
    return 0;
}

void comm_world_free(struct comm_world *w)
{
    if (!w)
        return;
    if (w->values)
        munmap(w->values, w->values_nbytes ? w->values_nbytes : 1);
    if (w->grads)
        munmap(w->grads, w->grads_nbytes ? w->grads_nbytes : 1);
    munmap(w, w->nbytes);
}

static void futex_wait(_Atomic uint32_t *at, uint32_t seen, long ns)
{
    struct timespec limit = { .tv_nsec = ns };
    syscall(SYS_futex, at, FUTEX_WAIT, seen, &limit, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *at)
{
    syscall(SYS_futex, at, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static uint32_t late_rank(const struct local *c)
{
    const struct comm_world *w = c->world;
    uint32_t mine = atomic_load(&w->ranks[c->base.rank].arrivals[c->base.lane]), late = 0;
    while (late + 1 < w->nranks && atomic_load(&w->ranks[late].arrivals[c->base.lane]) >= mine)
        late++;
    return late;
}

static int wait_generation(struct local *c, struct gate *gate, uint32_t seen, const char *operation,
                           struct fsdpck_error *err)
{
    uint64_t started = comm_now_ns();
    while (atomic_load(&gate->generation) == seen) {
        if (job_status_failed(c->base.job_status))
            return comm_other_failed(&c->base, operation, err);
        if ((double)(comm_now_ns() - started) > 1e9 * job_status_patience(c->base.job_status))
            return comm_timed_out(&c->base, late_rank(c), operation, err);
        comm_heartbeat(&c->base);
        futex_wait(&gate->generation, seen, 100000000);
    }
    return 0;
}

static int local_barrier(struct comm *base, const char *operation, struct fsdpck_error *err)
{
    struct local *c = (struct local *)base;
    struct gate *gate = &c->world->gates[base->lane];
    uint64_t started = comm_now_ns();
    uint32_t seen = atomic_load(&gate->generation);
    int rc = 0;
    if (base->lane == COMM_MAIN)
        job_status_operation(base->job_status, base->rank, operation);
    atomic_fetch_add(&c->world->ranks[base->rank].arrivals[base->lane], 1);
    if (job_status_failed(base->job_status))
        return comm_other_failed(base, operation, err);
    if (atomic_fetch_add(&gate->arrived, 1) + 1 == c->world->nranks) {
        atomic_store(&gate->arrived, 0);
        atomic_fetch_add(&gate->generation, 1);
        futex_wake(&gate->generation);
    } else {
        rc = wait_generation(c, gate, seen, operation, err);
    }
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
    int rc = local_barrier(base, "exchange of gradients", err);
    started = comm_now_ns();
    for (size_t i = 0; i < nslices && !rc; i++)
        fold_slice(c, &slices[i], ncontributions, first);
    base->wait_ns += comm_now_ns() - started;
    return rc ? rc : local_barrier(base, "exchange of gradients", err);
}

/* The rows of all ranks are in the same memory, in order. A barrier (update) and a sum (norm) separate readers from
 * writers. */
static int local_gather(struct comm *base, const struct comm_piece *pieces, size_t npieces, char *into,
                        struct fsdpck_error *err)
{
    uint64_t started = comm_now_ns();
    for (size_t i = 0; i < npieces; i++)
        memcpy(into + pieces[i].into, base->values + pieces[i].at, pieces[i].nbytes);
    comm_heartbeat(base);
    base->wait_ns += comm_now_ns() - started;
    return job_status_failed(base->job_status) ? comm_other_failed(base, "gather of parameters", err) : 0;
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

static void local_free(struct comm *base)
{
    for (int lane = COMM_MAIN + 1; lane < COMM_NLANES; lane++)
        free(base->lanes[lane]);
    free(base);
}

static const struct comm_ops local_ops = { "local", local_barrier, local_exchange, local_gather,
                                           NULL,    local_sum,     local_free };

static struct comm *join_lane(struct comm_world *w, uint32_t rank, enum comm_lane lane)
{
    struct local *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->world = w;
    c->base = (struct comm){ .ops = &local_ops,
                             .job_status = w->job_status,
                             .lane = lane,
                             .rank = rank,
                             .nranks = w->nranks,
                             .values = w->values,
                             .contribution = w->grads + (int64_t)rank * w->sizes.grad_nelem,
                             .reduce = w->sizes.reduce,
                             .views = !w->sizes.copies };
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
