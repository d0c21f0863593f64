/* Shared memory between processes of one host. Waiting is done on futexes with a time limit, so that a lost or stalled rank is named and not waited for. */
#include "comm/comm_local.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { HOW = 80 };

struct rank_status {
    _Atomic uint64_t step;
    _Atomic(const char *) operation; /* static text: at the same address in every process, which all come from one */
    _Atomic uint32_t arrivals;       /* barriers entered */
    _Alignas(64) uint64_t sum[COMM_MAX_SUM];
};

struct comm_world {
    uint32_t nranks;
    double patience_seconds;
    size_t nbytes; /* of this mapping */
    int64_t grad_nelem;
    unsigned char *values;
    float *grads; /* mappings of their own, at the same address everywhere */
    size_t values_nbytes, grads_nbytes;
    _Atomic uint32_t arrived, generation; /* the barrier */
    _Atomic uint32_t failed, stop;
    _Atomic uint32_t error_taken;
    struct fsdpck_error error;
    uint64_t notes[8];
    struct rank_status ranks[];
};

struct local {
    struct comm base;
    struct comm_world *world;
};

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void *map_shared(size_t nbytes)
{
    void *p = mmap(NULL, nbytes ? nbytes : 1, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

int comm_world_new(uint32_t nranks, size_t value_nbytes, int64_t grad_nelem, double patience_seconds, struct comm_world **out, struct fsdpck_error *err)
{
    size_t nbytes = sizeof(struct comm_world) + nranks * sizeof(struct rank_status);
    struct comm_world *w = map_shared(nbytes);
    *out = NULL;
    if (!w)
        return fsdpck_error_nomem(err, nbytes);
    w->nranks = nranks;
    w->nbytes = nbytes;
    w->patience_seconds = patience_seconds;
    w->grad_nelem = grad_nelem;
    w->values_nbytes = value_nbytes;
    w->grads_nbytes = (size_t)grad_nelem * nranks * sizeof(float);
    w->values = map_shared(w->values_nbytes);
    w->grads = map_shared(w->grads_nbytes);
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

/* The first error wins. */
static void leave_error(struct comm_world *w, const struct fsdpck_error *err)
{
    uint32_t no = 0;
    if (atomic_compare_exchange_strong(&w->error_taken, &no, 1)) {
        w->error = *err;
        atomic_store(&w->error_taken, 2);
    }
    atomic_store(&w->failed, 1);
    futex_wake(&w->generation);
}

static void describe(const struct comm_world *w, uint32_t rank, char *buf, size_t nbytes)
{
    const char *operation = atomic_load(&w->ranks[rank].operation);
    snprintf(buf, nbytes, "in step %llu, %s", (unsigned long long)atomic_load(&w->ranks[rank].step), operation ? operation : "start");
}

void comm_world_lost(struct comm_world *w, uint32_t rank, const char *how)
{
    struct fsdpck_error err = { 0 };
    char where[160];
    describe(w, rank, where, sizeof where);
    fsdpck_error_set(&err, FSDPCK_ERR_IO, NULL, "rank %u of %u %s %s; the other ranks were ended", rank, w->nranks, how, where);
    fsdpck_error_hint(&err, "the last committed checkpoint is whole: run the same command again, with any --ranks, to go on from it");
    leave_error(w, &err);
}

/* Another rank failed, and has said why. */
static int other_failed(const struct comm *c, const char *operation, struct fsdpck_error *err)
{
    return fsdpck_error_set(err, FSDPCK_ERR_STOPPED, NULL, "rank %u ended in %s because another rank failed", c->rank, operation);
}

static int out_of_patience(struct local *c, const char *operation, struct fsdpck_error *err)
{
    struct comm_world *w = c->world;
    uint32_t mine = atomic_load(&w->ranks[c->base.rank].arrivals), late = 0;
    char where[160];
    while (late + 1 < w->nranks && atomic_load(&w->ranks[late].arrivals) >= mine)
        late++;
    describe(w, late, where, sizeof where);
    return fsdpck_error_set(err, FSDPCK_ERR_IO, NULL, "rank %u waited %.0f s in %s for rank %u of %u, which is %s; all ranks were ended", c->base.rank,
                            w->patience_seconds, operation, late, w->nranks, where);
}

static int wait_generation(struct local *c, uint32_t seen, const char *operation, struct fsdpck_error *err)
{
    struct comm_world *w = c->world;
    uint64_t started = now_ns();
    while (atomic_load(&w->generation) == seen) {
        if (atomic_load(&w->failed))
            return other_failed(&c->base, operation, err);
        if ((double)(now_ns() - started) > 1e9 * w->patience_seconds)
            return out_of_patience(c, operation, err);
        futex_wait(&w->generation, seen, 100000000);
    }
    return 0;
}

static int local_barrier(struct comm *base, const char *operation, struct fsdpck_error *err)
{
    struct local *c = (struct local *)base;
    struct comm_world *w = c->world;
    uint64_t started = now_ns();
    uint32_t seen = atomic_load(&w->generation);
    int rc = 0;
    atomic_store(&w->ranks[base->rank].operation, operation);
    atomic_fetch_add(&w->ranks[base->rank].arrivals, 1);
    if (atomic_load(&w->failed))
        return other_failed(base, operation, err);
    if (atomic_fetch_add(&w->arrived, 1) + 1 == w->nranks) {
        atomic_store(&w->arrived, 0);
        atomic_fetch_add(&w->generation, 1);
        futex_wake(&w->generation);
    } else {
        rc = wait_generation(c, seen, operation, err);
    }
    base->wait_ns += now_ns() - started;
    return rc;
}

static void fold(float *restrict into, const float *restrict from, int64_t nelem, bool assign)
{
    if (assign)
        memcpy(into, from, (size_t)nelem * sizeof *into);
    for (int64_t i = 0; i < nelem && !assign; i++)
        into[i] += from[i];
}

static void fold_slice(const struct local *c, const struct comm_slice *s, uint32_t ncontributions, bool first)
{
    int64_t begin = s->chunk * c->base.rank, nelem = s->nelem - begin < s->chunk ? s->nelem - begin : s->chunk;
    for (uint32_t q = 0; q < ncontributions && nelem > 0; q++)
        fold(s->into, c->world->grads + q * c->world->grad_nelem + s->at + begin, nelem, first && q == 0);
}

static int local_exchange(struct comm *base, const struct comm_slice *slices, size_t nslices, uint32_t ncontributions, bool first, struct fsdpck_error *err)
{
    struct local *c = (struct local *)base;
    int rc = local_barrier(base, "exchange of gradients", err);
    uint64_t started = now_ns();
    for (size_t i = 0; i < nslices && !rc; i++)
        fold_slice(c, &slices[i], ncontributions, first);
    base->wait_ns += now_ns() - started;
    return rc ? rc : local_barrier(base, "exchange of gradients", err);
}

/* Every rank's shards lie in the same memory, in order: there is nothing to move. */
static int local_gather(struct comm *base, void *all, size_t nbytes, struct fsdpck_error *err)
{
    (void)all;
    (void)nbytes;
    struct local *c = (struct local *)base;
    return atomic_load(&c->world->failed) ? other_failed(base, "gather of parameters", err) : 0;
}

static int local_sum(struct comm *base, uint64_t *values, size_t n, struct fsdpck_error *err)
{
    struct comm_world *w = ((struct local *)base)->world;
    memcpy(w->ranks[base->rank].sum, values, n * sizeof *values);
    int rc = local_barrier(base, "sum over ranks", err);
    memset(values, 0, n * sizeof *values);
    for (uint32_t r = 0; r < w->nranks && !rc; r++) {
        for (size_t i = 0; i < n; i++)
            values[i] += w->ranks[r].sum[i];
    }
    return rc ? rc : local_barrier(base, "sum over ranks", err);
}

static void local_free(struct comm *base)
{
    free(base);
}

static const struct comm_ops local_ops = { "local", local_barrier, local_exchange, local_gather, local_sum, local_free };

int comm_world_join(struct comm_world *w, uint32_t rank, struct comm **out, struct fsdpck_error *err)
{
    struct local *c = calloc(1, sizeof *c);
    *out = NULL;
    if (!c)
        return fsdpck_error_nomem(err, sizeof *c);
    c->world = w;
    c->base = (struct comm){ .ops = &local_ops, .rank = rank, .nranks = w->nranks, .values = w->values,
                             .contribution = w->grads + (int64_t)rank * w->grad_nelem, .views = true };
    *out = &c->base;
    return 0;
}

void comm_world_at(struct comm *c, uint64_t step, const char *operation)
{
    struct rank_status *s = &((struct local *)c)->world->ranks[c->rank];
    atomic_store(&s->step, step);
    atomic_store(&s->operation, operation);
}

void comm_world_fail(struct comm *c, const struct fsdpck_error *err)
{
    if (!atomic_load(&((struct local *)c)->world->failed))
        leave_error(((struct local *)c)->world, err);
}

bool comm_world_error(const struct comm_world *w, struct fsdpck_error *err)
{
    if (atomic_load(&w->error_taken) != 2)
        return false;
    *err = w->error;
    return true;
}

void comm_world_stop(struct comm_world *w)
{
    atomic_store(&w->stop, 1);
}

bool comm_world_stopping(const struct comm *c)
{
    return atomic_load(&((const struct local *)c)->world->stop) != 0;
}

uint64_t *comm_world_notes(struct comm_world *w)
{
    return w->notes;
}
