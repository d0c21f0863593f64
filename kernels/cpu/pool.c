/* SPDX-License-Identifier: Apache-2.0 */
/* A pool of persistent threads. A run is a new generation number. Threads spin for it briefly (kernels follow each
 * other closely), then yield the processor, then sleep. The pool must not know what the pieces compute. */
#include <kernels/pool.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

struct worker {
    struct kern_pool *pool;
    unsigned number;
    pthread_t thread;
};

/* The pieces of a run that a worker takes first. They are contiguous, and the same in the next run with as many pieces,
 * so that a worker finds its earlier output in its cache. */
struct piece_range {
    _Alignas(64) atomic_llong next; /* may run past the end */
    int64_t end;
};

struct kern_pool {
    unsigned nthreads, nstarted;
    int spins;
    struct worker *workers;

    pthread_mutex_t lock;
    pthread_cond_t start, done;
    atomic_uint generation; /* changes when there is work, and at the end */
    atomic_uint nbusy;      /* helpers that have not finished this generation */
    atomic_bool stop;

    kern_pool_fn fn;
    void *ctx;
    struct piece_range *ranges; /* (nthreads) */
};

/* About 20 µs: longer than the gap between two kernels, and short enough not to disturb another process. Zero if there
 * are more threads than processors, because a spinning thread then keeps another from working. */
enum { SPINS = 2000 };
/* About 100 µs more if no other thread wants the processor: as long as a piece takes, and less than a wake-up may take
 * in a virtual machine. */
enum { YIELDS = 250 };

static void cpu_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

/* Takes its own pieces first, then those that other workers have not taken yet. */
static void take_pieces(struct kern_pool *pool, unsigned number)
{
    for (unsigned i = 0; i < pool->nthreads; i++) {
        struct piece_range *piece_range = &pool->ranges[(number + i) % pool->nthreads];
        int64_t piece;
        while (atomic_load_explicit(&piece_range->next, memory_order_relaxed) < piece_range->end &&
               (piece = atomic_fetch_add_explicit(&piece_range->next, 1, memory_order_relaxed)) < piece_range->end)
            pool->fn(pool->ctx, piece, number);
    }
}

static void assign_ranges(struct kern_pool *pool, int64_t npieces)
{
    for (unsigned i = 0; i < pool->nthreads; i++) {
        atomic_store_explicit(&pool->ranges[i].next, npieces * i / pool->nthreads, memory_order_relaxed);
        pool->ranges[i].end = npieces * (i + 1) / pool->nthreads;
    }
}

/* Waits between two polls; `npolls` counts them. Returns false when it is time to sleep. */
static bool poll_delay(const struct kern_pool *pool, int npolls)
{
    if (npolls >= pool->spins + (pool->spins ? YIELDS : 0))
        return false;
    if (npolls < pool->spins)
        cpu_pause();
    else
        sched_yield();
    return true;
}

static unsigned await_generation(struct kern_pool *pool, unsigned seen)
{
    for (int i = 0; poll_delay(pool, i); i++) {
        if (atomic_load_explicit(&pool->generation, memory_order_acquire) != seen)
            return atomic_load(&pool->generation);
    }
    pthread_mutex_lock(&pool->lock);
    while (atomic_load(&pool->generation) == seen)
        pthread_cond_wait(&pool->start, &pool->lock);
    seen = atomic_load(&pool->generation);
    pthread_mutex_unlock(&pool->lock);
    return seen;
}

static void *work(void *arg)
{
    struct worker *w = arg;
    struct kern_pool *pool = w->pool;
    unsigned seen = 0;
    for (;;) {
        seen = await_generation(pool, seen);
        if (atomic_load(&pool->stop))
            return NULL;
        take_pieces(pool, w->number);
        if (atomic_fetch_sub(&pool->nbusy, 1) == 1) {
            pthread_mutex_lock(&pool->lock);
            pthread_cond_signal(&pool->done);
            pthread_mutex_unlock(&pool->lock);
        }
    }
}

static void next_generation(struct kern_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add_explicit(&pool->generation, 1, memory_order_release);
    pthread_cond_broadcast(&pool->start);
    pthread_mutex_unlock(&pool->lock);
}

static unsigned processors(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof(set), &set) == 0 ? (unsigned)CPU_COUNT(&set) : 1;
}

struct kern_pool *kern_pool_new(unsigned nthreads)
{
    struct kern_pool *pool = calloc(1, sizeof(*pool));
    if (!pool)
        return NULL;
    pool->nthreads = nthreads ? nthreads : 1;
    pool->spins = pool->nthreads <= processors() ? SPINS : 0;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->start, NULL);
    pthread_cond_init(&pool->done, NULL);
    pool->workers = calloc(pool->nthreads, sizeof(*pool->workers));
    pool->ranges = aligned_alloc(64, pool->nthreads * sizeof(*pool->ranges));
    for (unsigned i = 1; pool->workers && pool->ranges && i < pool->nthreads; i++) {
        pool->workers[i] = (struct worker){ .pool = pool, .number = i };
        if (pthread_create(&pool->workers[i].thread, NULL, work, &pool->workers[i]) != 0)
            break;
        pool->nstarted++;
    }
    if (pool->workers && pool->ranges && pool->nstarted == pool->nthreads - 1)
        return pool;
    kern_pool_free(pool);
    return NULL;
}

void kern_pool_free(struct kern_pool *pool)
{
    if (!pool)
        return;
    atomic_store(&pool->stop, true);
    next_generation(pool);
    for (unsigned i = 1; i <= pool->nstarted; i++)
        pthread_join(pool->workers[i].thread, NULL);
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->start);
    pthread_mutex_destroy(&pool->lock);
    free(pool->workers);
    free(pool->ranges);
    free(pool);
}

unsigned kern_pool_nthreads(const struct kern_pool *pool)
{
    return pool ? pool->nthreads : 1;
}

static void await_helpers(struct kern_pool *pool)
{
    for (int i = 0; poll_delay(pool, i); i++) {
        if (atomic_load(&pool->nbusy) == 0)
            return;
    }
    pthread_mutex_lock(&pool->lock);
    while (atomic_load(&pool->nbusy) != 0)
        pthread_cond_wait(&pool->done, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

void kern_pool_run(struct kern_pool *pool, int64_t npieces, kern_pool_fn fn, void *ctx)
{
    if (!pool || pool->nthreads == 1 || npieces < 2) {
        for (int64_t i = 0; i < npieces; i++)
            fn(ctx, i, 0);
        return;
    }
    pool->fn = fn;
    pool->ctx = ctx;
    assign_ranges(pool, npieces);
    atomic_store(&pool->nbusy, pool->nthreads - 1);
    next_generation(pool);
    take_pieces(pool, 0);
    await_helpers(pool);
}
