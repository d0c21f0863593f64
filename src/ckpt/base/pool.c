/* SPDX-License-Identifier: Apache-2.0 */
/* A few threads that take numbered pieces of work in turn. Does not know the work. */
#include "base/pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <fsdpck/source.h>

#include "base/stop.h"

#define POLL_NS 20000000

struct pool {
    fsdpck_pool_fn fn;
    void *ctx;
    const volatile int *stop;
    size_t npieces;
    atomic_size_t next;
    atomic_bool ended;     /* no more pieces are started */
    pthread_mutex_t mutex; /* guards the fields below: the failure of the lowest piece so far */
    int rc;
    size_t failed_piece;
    struct fsdpck_error error;
};

struct worker {
    struct pool *pool;
    unsigned number;
    pthread_t thread;
};

static void record(struct pool *p, size_t piece, int rc, const struct fsdpck_error *error)
{
    pthread_mutex_lock(&p->mutex);
    if (p->rc == 0 || piece < p->failed_piece) {
        p->rc = rc;
        p->failed_piece = piece;
        p->error = *error;
    }
    pthread_mutex_unlock(&p->mutex);
    atomic_store(&p->ended, true);
}

static void work(struct pool *p, unsigned worker)
{
    while (!atomic_load(&p->ended)) {
        struct fsdpck_error error = { 0 };
        size_t piece = atomic_fetch_add(&p->next, 1);
        if (piece >= p->npieces)
            return;
        if (fsdpck_stop_asked(p->stop)) {
            int rc = fsdpck_error_set(&error, FSDPCK_ERR_STOPPED, NULL, "stopped");
            record(p, SIZE_MAX, rc, &error); /* the error of a piece, if any, is more informative */
            return;
        }
        int rc = p->fn(p->ctx, piece, worker, &error);
        if (rc)
            record(p, piece, rc, &error);
    }
}

static void *thread_main(void *arg)
{
    struct worker *w = arg;
    work(w->pool, w->number);
    return NULL;
}

/* Starts workers 1 … nthreads-1; if the system provides fewer threads, these do all the work. Blocks signals in them,
 * so that the program's own threads get them. Returns the number started. */
static unsigned start(struct pool *p, struct worker *workers, unsigned nthreads)
{
    sigset_t all, before;
    unsigned n = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (; n + 1 < nthreads; n++) {
        workers[n] = (struct worker){ .pool = p, .number = n + 1 };
        if (pthread_create(&workers[n].thread, NULL, thread_main, &workers[n]) != 0)
            break;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return n;
}

static int run_threads(struct pool *p, unsigned nthreads, struct fsdpck_error *err)
{
    struct worker *workers = calloc(nthreads, sizeof *workers);
    if (!workers)
        return fsdpck_error_nomem(err, nthreads * sizeof *workers);
    unsigned started = start(p, workers, nthreads);
    work(p, 0);
    for (unsigned i = 0; i < started; i++)
        pthread_join(workers[i].thread, NULL);
    free(workers);
    return 0;
}

int fsdpck_pool_run(unsigned nthreads, size_t npieces, fsdpck_pool_fn fn, void *ctx, const volatile int *stop,
                    struct fsdpck_error *err)
{
    struct pool p = { .fn = fn, .ctx = ctx, .stop = stop, .npieces = npieces, .mutex = PTHREAD_MUTEX_INITIALIZER };
    int rc = 0;
    if (nthreads > npieces)
        nthreads = (unsigned)npieces;
    if (nthreads <= 1)
        work(&p, 0);
    else
        rc = run_threads(&p, nthreads, err);
    if (!rc && p.rc != 0) {
        rc = p.rc;
        if (err && err->code == 0)
            *err = p.error;
    }
    pthread_mutex_destroy(&p.mutex);
    return rc;
}

void fsdpck_pool_wait_a_little(pthread_cond_t *changed, pthread_mutex_t *lock)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += POLL_NS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(changed, lock, &until);
}

unsigned fsdpck_processors(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return (unsigned)CPU_COUNT(&set);
    long n = sysconf(_SC_NPROCESSORS_ONLN); /* more processors than fit in the set */
    return n > 0 ? (unsigned)n : 1;
}
