/* SPDX-License-Identifier: Apache-2.0 */
/* Decides, for each file, which lane may write next. The pool starts lanes in order, so a lane waits only for lanes
 * that already run: no deadlock. Does not know the bytes. */
#include "engine/turns.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/pool.h"
#include "base/stop.h"

#define NO_TURN UINT32_MAX

struct file_turn {
    uint32_t count, next; /* number of lanes; the lane whose turn it is */
    uint64_t end;         /* end of the bytes written */
    bool closed;          /* no more turns */
};

struct fsdpck_turns {
    const struct fsdpck_transfer *transfer;
    const struct fsdpck_lanes *lanes;
    const volatile int *stop;
    uint32_t *number; /* (lanes->count) number of the lane in its file, or NO_TURN */
    struct file_turn *files;
    pthread_mutex_t lock; /* guards the files and the failure */
    pthread_cond_t changed;
    int code;
    struct fsdpck_error why;
};

static struct file_turn *file_of(const struct fsdpck_turns *t, size_t lane, size_t nth)
{
    return &t->files[t->transfer->chunks[t->lanes->order[t->lanes->list[lane].first + nth]].file];
}

static void number_lanes(struct fsdpck_turns *t)
{
    for (size_t i = 0; i < t->lanes->count; i++) {
        const struct fsdpck_lane *lane = &t->lanes->list[i];
        struct file_turn *f = file_of(t, i, 0);
        bool has = lane->single && !f->closed;
        t->number[i] = has ? f->count++ : NO_TURN;
        for (size_t k = 0; k < lane->count && !has; k++)
            file_of(t, i, k)->closed = true;
    }
}

struct fsdpck_turns *fsdpck_turns_new(const struct fsdpck_transfer *transfer, const struct fsdpck_lanes *lanes,
                                      const volatile int *stop, struct fsdpck_error *err)
{
    struct fsdpck_turns *t = calloc(1, sizeof *t);
    if (t) {
        *t = (struct fsdpck_turns){ .transfer = transfer,
                                    .lanes = lanes,
                                    .stop = stop,
                                    .lock = PTHREAD_MUTEX_INITIALIZER,
                                    .changed = PTHREAD_COND_INITIALIZER };
        t->number = calloc(lanes->count + 1, sizeof *t->number);
        t->files = calloc(transfer->nfiles + 1, sizeof *t->files);
    }
    if (!t || !t->number || !t->files) {
        fsdpck_turns_free(t);
        fsdpck_error_nomem(err, lanes->count * sizeof *t->number);
        return NULL;
    }
    number_lanes(t);
    return t;
}

void fsdpck_turns_free(struct fsdpck_turns *t)
{
    if (!t)
        return;
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->changed);
    free(t->number);
    free(t->files);
    free(t);
}

bool fsdpck_turns_has(const struct fsdpck_turns *t, size_t lane)
{
    return t->number[lane] != NO_TURN;
}

int fsdpck_turns_wait(struct fsdpck_turns *t, size_t lane, uint64_t *at, struct fsdpck_error *err)
{
    const struct file_turn *f = file_of(t, lane, 0);
    int rc = 0;
    pthread_mutex_lock(&t->lock);
    while (f->next != t->number[lane] && t->code == 0 && !fsdpck_stop_asked(t->stop))
        fsdpck_pool_wait_a_little(&t->changed, &t->lock);
    *at = f->end;
    if (f->next != t->number[lane]) {
        rc = t->code ? t->code : FSDPCK_ERR_STOPPED;
        if (t->code == 0)
            fsdpck_error_set(err, FSDPCK_ERR_STOPPED, NULL, "stopped");
        else if (err && err->code == 0)
            *err = t->why;
    }
    pthread_mutex_unlock(&t->lock);
    return rc;
}

void fsdpck_turns_end(struct fsdpck_turns *t, size_t lane, uint64_t at)
{
    struct file_turn *f = file_of(t, lane, 0);
    pthread_mutex_lock(&t->lock);
    f->next++;
    f->end = at;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

void fsdpck_turns_fail(struct fsdpck_turns *t, int code, const struct fsdpck_error *why)
{
    pthread_mutex_lock(&t->lock);
    if (t->code == 0) {
        t->code = code;
        t->why = *why;
    }
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}
