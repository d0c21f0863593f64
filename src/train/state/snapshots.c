/* SPDX-License-Identifier: Apache-2.0 */
/* A copy has a head for each rank. A rank clears its head before it writes and fills it afterwards, so a rank that dies
 * in between leaves a copy that is not whole. The hash tells rows that something else has overwritten. */
#include "state/snapshots.h"

#include <kernels/pool.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include "state/checkpoint.h"
#include "state/snapshots_impl.h"

enum { TREES = CHECKPOINT_TREES, NFACTS = 5, PIECE_NBYTES = 256 << 10 };

struct head *snapshots_head(const struct snapshots *s, uint32_t index, uint32_t rank)
{
    return &s->heads[index * COMM_MAX_SUM + rank];
}

float *snapshots_tree(const struct snapshots *s, uint32_t index, int tree)
{
    return s->data + ((uint64_t)index * TREES + (uint64_t)tree) * s->tree_nelem;
}

uint64_t snapshots_nbytes(const struct job *job)
{
    const uint64_t nbytes = SNAPSHOTS_NCOPIES * TREES * (uint64_t)job->layout.own_nelem * sizeof(float);
    return job->opt->several_hosts ? 2 * nbytes : nbytes;
}

static int list_rows(struct snapshots *s, const struct layout *l, struct fsdpck_error *err)
{
    s->params = calloc(l->nparams + 1, sizeof *s->params);
    if (!s->params)
        return fsdpck_error_nomem(err, l->nparams * sizeof *s->params);
    for (size_t i = 0; i < l->nparams; i++) {
        const struct param *p = &l->params[i];
        if (!p->trainable)
            continue;
        s->params[s->nparams++] = (struct rows){ p->nrow, p->ncol, s->tree_nelem };
        s->tree_nelem += (uint64_t)(p->nrow * p->ncol);
    }
    return 0;
}

static size_t heads_nbytes(void)
{
    return SNAPSHOTS_NCOPIES * COMM_MAX_SUM * sizeof(struct head);
}

static int map(struct snapshots *s, const char *keeper, struct fsdpck_error *err)
{
    s->nbytes = heads_nbytes() + SNAPSHOTS_NCOPIES * TREES * s->tree_nelem * sizeof(float);
    if (keeper)
        return keeper_map(keeper, s->nbytes, &s->kept, err);
    void *memory = mmap(NULL, s->nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return fsdpck_error_nomem(err, s->nbytes);
    s->own = memory;
    return 0;
}

int snapshots_new(const struct layout *l, const char *keeper, struct snapshots **out, struct fsdpck_error *err)
{
    struct snapshots *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return fsdpck_error_nomem(err, sizeof *s);
    s->chosen = -1;
    int rc = list_rows(s, l, err);
    if (!rc)
        rc = map(s, keeper, err);
    if (rc) {
        snapshots_free(s);
        return rc;
    }
    s->heads = keeper ? s->kept.memory : s->own;
    s->data = (float *)((char *)s->heads + heads_nbytes());
    *out = s;
    return 0;
}

void snapshots_free(struct snapshots *s)
{
    if (!s)
        return;
    if (s->own)
        munmap(s->own, s->nbytes);
    keeper_unmap(&s->kept);
    free(s->params);
    free(s);
}

int64_t snapshots_rows(const struct rows *p, uint32_t rank, uint64_t nranks, int64_t *first)
{
    return chunk_rows(p->nrow, (p->nrow + (int64_t)nranks - 1) / (int64_t)nranks, rank, first);
}

/* Hashes the rows of one rank in the order in which they are written. */
struct hasher {
    XXH3_state_t *state;
};

static bool hash_begin(struct hasher *h, uint32_t rank, const uint64_t facts[NFACTS])
{
    h->state = XXH3_createState();
    if (!h->state)
        return false;
    XXH3_64bits_reset_withSeed(h->state, rank);
    XXH3_64bits_update(h->state, facts, NFACTS * sizeof *facts);
    return true;
}

static uint64_t hash_end(struct hasher *h)
{
    const uint64_t digest = XXH3_64bits_digest(h->state);
    XXH3_freeState(h->state);
    return digest;
}

/* Copies in pieces that are hashed while they are in the processor's caches. */
static int copy_rows(const struct rank *r, struct hasher *h, float *to, const float *from, size_t nbytes,
                     struct fsdpck_error *err)
{
    int rc = 0;
    for (size_t at = 0; at < nbytes && !rc; at += PIECE_NBYTES) {
        const size_t n = nbytes - at < PIECE_NBYTES ? nbytes - at : PIECE_NBYTES;
        rc = rank_download(r, (char *)to + at, (const char *)from + at, n, err);
        XXH3_64bits_update(h->state, (char *)to + at, n);
    }
    return rc;
}

static int copy_all(struct snapshots *s, const struct rank *r, uint32_t index, struct hasher *h,
                    struct fsdpck_error *err)
{
    const struct layout *l = &r->job->layout;
    int rc = 0;
    for (int tree = 0; tree < TREES && !rc; tree++) {
        const struct rows *rows = s->params;
        for (size_t i = 0; i < l->nparams && !rc; i++) {
            const struct param *p = &l->params[i];
            int64_t first, nrow = param_rows(p, r->comm->rank, &first);
            if (!p->trainable)
                continue;
            if (nrow > 0)
                rc = copy_rows(r, h, snapshots_tree(s, index, tree) + rows->at + (uint64_t)(first * p->ncol),
                               checkpoint_rows(r, p, tree), (size_t)(nrow * p->ncol) * sizeof(float), err);
            rows++;
            comm_heartbeat(r->comm);
        }
    }
    return rc;
}

static void touch(const struct snapshots *s, const struct rank *r, uint32_t whose)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (uint32_t t = 0; t < SNAPSHOTS_NCOPIES * TREES; t++) {
        for (size_t i = 0; i < s->nparams; i++) {
            int64_t first, nrow = snapshots_rows(&s->params[i], whose, r->comm->nranks, &first);
            const float *begin = s->data + t * s->tree_nelem + s->params[i].at + (uint64_t)(first * s->params[i].ncol);
            const uintptr_t from = (uintptr_t)begin & ~(page - 1);
            if (nrow > 0) /* only a hint: an older kernel refuses it */
                madvise((void *)from, (uintptr_t)(begin + nrow * s->params[i].ncol) - from, MADV_POPULATE_WRITE);
            comm_heartbeat(r->comm);
        }
    }
}

void snapshots_touch(const struct snapshots *s, const struct rank *r)
{
    for (uint32_t q = 0; q < r->comm->nranks; q++) {
        if (q == r->comm->rank || (s->spread && s->neighbour[q] == r->comm->rank))
            touch(s, r, q);
    }
}

int snapshots_take(struct snapshots *s, const struct rank *r, uint32_t index, struct fsdpck_error *err)
{
    struct head *head = snapshots_head(s, index, r->comm->rank);
    const uint64_t facts[NFACTS] = { s->run, r->step, r->comm->nranks, r->updates, r->last_update };
    struct hasher h;
    atomic_store(&head->step, 0);
    if (!hash_begin(&h, r->comm->rank, facts))
        return fsdpck_error_nomem(err, 1024);
    int rc = copy_all(s, r, index, &h, err);
    head->nranks = r->comm->nranks;
    head->updates = r->updates;
    head->last_update = r->last_update;
    head->hash = hash_end(&h);
    return rc;
}

void snapshots_complete(struct snapshots *s, const struct rank *r, uint32_t index)
{
    atomic_store(&snapshots_head(s, index, r->comm->rank)->step, r->step);
}

/* The step that all ranks of a copy have completed; 0: none. */
static uint64_t step_of(const struct snapshots *s, uint32_t index)
{
    const struct head *first = snapshots_head(s, index, 0);
    const uint64_t step = atomic_load(&first->step), n = first->nranks;
    if (n < 1 || n > COMM_MAX_SUM)
        return 0;
    for (uint32_t rank = 1; rank < n; rank++) {
        const struct head *other = snapshots_head(s, index, rank);
        if (atomic_load(&other->step) != step || other->nranks != n || other->updates != first->updates ||
            other->last_update != first->last_update)
            return 0;
    }
    return step;
}

bool snapshots_has_hash(const struct snapshots *s, uint32_t index, uint32_t rank)
{
    const struct head *head = snapshots_head(s, index, rank);
    const uint64_t facts[NFACTS] = { s->run, atomic_load(&head->step), head->nranks, head->updates, head->last_update };
    struct hasher h;
    if (!hash_begin(&h, rank, facts))
        return false;
    for (int tree = 0; tree < TREES; tree++) {
        for (size_t i = 0; i < s->nparams; i++) {
            const struct rows *p = &s->params[i];
            int64_t first, nrow = snapshots_rows(p, rank, head->nranks, &first);
            if (nrow > 0)
                XXH3_64bits_update(h.state, snapshots_tree(s, index, tree) + p->at + (uint64_t)(first * p->ncol),
                                   (size_t)(nrow * p->ncol) * sizeof(float));
        }
    }
    return hash_end(&h) == head->hash;
}

struct check {
    const struct snapshots *snapshots;
    uint32_t index;
    atomic_bool damaged;
};

static void check_rank(void *ctx, int64_t rank, unsigned worker)
{
    struct check *check = ctx;
    (void)worker;
    if (!snapshots_has_hash(check->snapshots, check->index, (uint32_t)rank))
        atomic_store(&check->damaged, true);
}

/* Uses all processors, because the run waits. */
static bool is_whole(const struct snapshots *s, uint32_t index)
{
    struct check check = { .snapshots = s, .index = index };
    if (step_of(s, index) == 0)
        return false;
    struct kern_pool *pool = kern_pool_new(fsdpck_processors()); /* NULL: this thread does it */
    kern_pool_run(pool, (int64_t)snapshots_head(s, index, 0)->nranks, check_rank, &check);
    kern_pool_free(pool);
    return !atomic_load(&check.damaged);
}

void snapshots_forget(struct snapshots *s, uint32_t index)
{
    for (uint32_t rank = 0; rank < COMM_MAX_SUM; rank++)
        atomic_store(&snapshots_head(s, index, rank)->step, 0);
}

uint64_t snapshots_choose(struct snapshots *s)
{
    const uint32_t newer = step_of(s, 1) > step_of(s, 0);
    s->chosen = -1;
    for (uint32_t i = 0; i < SNAPSHOTS_NCOPIES; i++) {
        const uint32_t index = i == 0 ? newer : !newer;
        if (s->chosen < 0 && is_whole(s, index))
            s->chosen = (int)index;
        else
            snapshots_forget(s, index);
    }
    if (s->chosen < 0)
        return 0;
    const struct head *head = snapshots_head(s, (uint32_t)s->chosen, 0);
    s->step = atomic_load(&head->step);
    s->updates = head->updates;
    s->last_update = head->last_update;
    return s->step;
}

int snapshots_restore(const struct snapshots *s, struct rank *r, struct fsdpck_error *err)
{
    const struct layout *l = &r->job->layout;
    for (int tree = 0; tree < TREES; tree++) {
        const struct rows *rows = s->params;
        for (size_t i = 0; i < l->nparams; i++) {
            const struct param *p = &l->params[i];
            int64_t first, nrow = param_rows(p, r->comm->rank, &first);
            if (!p->trainable)
                continue;
            if (nrow > 0)
                r->compute->device->memory->copy(r->compute->stream, checkpoint_rows(r, p, tree),
                                                 snapshots_tree(s, (uint32_t)s->chosen, tree) + rows->at +
                                                     (uint64_t)(first * p->ncol),
                                                 (size_t)(nrow * p->ncol) * sizeof(float));
            rows++;
            comm_heartbeat(r->comm);
        }
    }
    r->step = s->step;
    r->updates = s->updates;
    r->last_update = s->last_update;
    return compute_sync(r->compute, err);
}
