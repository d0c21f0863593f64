/* SPDX-License-Identifier: Apache-2.0 */
/* Starts and stops the thread of a worker. */
#include "comm/worker.h"

static void *run(void *arg)
{
    struct worker *w = arg;
    pthread_mutex_lock(&w->lock);
    while (!w->ending) {
        if (!w->step(w->ctx))
            pthread_cond_wait(&w->changed, &w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

static void destroy(struct worker *w)
{
    w->open = false;
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
}

int worker_start(struct worker *w, bool (*step)(void *ctx), void *ctx, struct fsdpck_error *err)
{
    *w = (struct worker){ .step = step, .ctx = ctx, .open = true };
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    int failed = step ? pthread_create(&w->thread, NULL, run, w) : 0;
    if (!failed)
        return 0;
    destroy(w);
    return fsdpck_error_sys(err, failed, NULL, "pthread_create");
}

void worker_stop(struct worker *w)
{
    if (!w->open)
        return;
    pthread_mutex_lock(&w->lock);
    w->ending = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    if (w->step)
        pthread_join(w->thread, NULL);
    destroy(w);
}
