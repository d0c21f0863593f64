/* SPDX-License-Identifier: Apache-2.0 */
/* A mutex and usually a thread, which works while there is work and sleeps otherwise. Shared by ring and reducer. Must
 * not know what the work is. */
#ifndef TRAIN_WORKER_H
#define TRAIN_WORKER_H

#include <pthread.h>

#include <fsdpck/error.h>

struct worker {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* broadcast it, under the lock, when there may be new work and when work is done */
    /* private */
    pthread_t thread;
    bool (*step)(void *ctx);
    void *ctx;
    bool open, ending; /* open: lock and thread exist */
};

/* step: does one piece of work. It is called under the lock, which it may release meanwhile; it returns false if there
 * is no work now. step NULL: creates the lock, but no thread. After a failure there is nothing to stop. */
int worker_start(struct worker *w, bool (*step)(void *ctx), void *ctx, struct fsdpck_error *err);
/* Waits for the current piece of work, but for no further one. Does nothing if the worker is all zeros. */
void worker_stop(struct worker *w);

#endif
