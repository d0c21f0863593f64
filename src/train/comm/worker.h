/* SPDX-License-Identifier: Apache-2.0 */
/* A mutex and, mostly, a thread that works while there is work and otherwise sleeps until it is signalled. Shared by
 * ring and reducer. Must not know what the work is. */
#ifndef TRAIN_WORKER_H
#define TRAIN_WORKER_H

#include <pthread.h>

#include <fsdpck/error.h>

struct worker {
    pthread_mutex_t lock;
    pthread_cond_t
        changed; /* to be broadcast, under the lock, where there may be something to do, and where something is done */
    /* its own */
    pthread_t thread;
    bool (*step)(void *ctx);
    void *ctx;
    bool open, ending; /* open: lock and thread are there */
};

/* step: one piece of work, under the lock, which it may let go of meanwhile; false: there is none now. NULL: no thread,
 * but the lock is there. Nothing to be stopped is left behind by a failure. */
int worker_start(struct worker *w, bool (*step)(void *ctx), void *ctx, struct fsdpck_error *err);
/* Waits for the piece of work at hand, but for none after it. Does nothing where it was never started and is all zeros.
 */
void worker_stop(struct worker *w);

#endif
