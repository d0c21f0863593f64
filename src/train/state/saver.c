/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that runs one save at a time. It communicates with the savers of other ranks on COMM_SAVE, so that training
 * and saving never wait for each other's collectives. */
#include "state/saver.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "rank/device.h"
#include "rank/files.h"
#include "rank/memory.h"
#include "state/checkpoint.h"
#include "state/state.h"

enum { BUSY_NICE = 10, TOUCHED_NBYTES = 16 << 20 };

enum phase { IDLE, ASKED, DONE, ENDING };

struct saver {
    struct rank *rank;
    struct comm *comm; /* COMM_SAVE */
    const struct kern_device *device;
    struct kern_stream *copies; /* for snapshots, concurrent with the next step's forward and backward passes */
    struct kern_event *updated; /* recorded on the compute stream: the optimizer has finished its update */
    struct kern_buffer memory;  /* pinned */
    float *trees[CHECKPOINT_TREES];
    struct checkpoint_list *list;
    struct fsdpck_options fs;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    enum phase phase; /* guarded by lock. The fields below belong to the thread while ASKED, otherwise to the rank */
    char *state;
    uint64_t requested_ns;
    struct saver_result result;
};

static void beat(void *ctx, uint64_t done_nbytes, uint64_t total_nbytes)
{
    struct saver *s = ctx;
    (void)done_nbytes;
    (void)total_nbytes;
    comm_heartbeat(s->comm);
}

static void pass_note(void *ctx, const char *line)
{
    const struct job *job = ((struct saver *)ctx)->rank->job;
    if (job->fs.note)
        job->fs.note(job->fs.ctx, line);
}

/* After a save, removes all but the newest keep_last checkpoints. If removal fails, warn; the save itself succeeded. */
static void prune(struct saver *s)
{
    const struct train_config *config = s->rank->job->config;
    struct fsdpck_error err = { 0 };
    char text[2048], line[2200];
    if (s->comm->rank != 0 || !config->checkpoint.keep_last ||
        files_prune(config, config->checkpoint.keep_last, &s->fs, &err) == 0)
        return;
    snprintf(line, sizeof line, "an old checkpoint could not be removed: %s",
             fsdpck_error_format(&err, text, sizeof text));
    pass_note(s, line);
}

/* Waits for this rank's copy of the state. */
static void prepare(struct saver *s, char path[FILES_PATH], struct fsdpck_error *err)
{
    char message[KERN_MESSAGE_BYTES];
    if (s->device->stream_sync(s->copies, message) == KERN_OK)
        files_checkpoint_path(s->rank->job->config, s->result.step, path, err);
    else
        fsdpck_error_set(err, FSDPCK_ERR_IO, NULL, "rank %u of %u, the copy of the state: %s", s->comm->rank,
                         s->comm->nranks, message);
}

/* Ranks begin to write only if all can: each takes part in the barriers of the write. */
static void save(struct saver *s)
{
    struct saver_result *result = &s->result;
    struct fsdpck_error lost = { 0 };
    char path[FILES_PATH];
    prepare(s, path, &result->why);
    int rc = comm_first_error(s->comm, &result->why, &lost);
    if (!rc && !result->why.code) {
        checkpoint_write(s->list, s->comm, s->rank->job, path, s->state, &s->fs, &result->why);
        rc = comm_first_error(s->comm, &result->why, &lost);
    }
    if (rc)
        job_status_fail(s->comm->job_status, &lost); /* the savers of the ranks are out of step */
    result->lost = rc || job_status_failed(s->comm->job_status);
    result->failed = rc || result->why.code;
    if (!result->failed)
        prune(s);
    result->seconds = 1e-9 * (double)(comm_now_ns() - s->requested_ns);
}

static bool is_idle(struct saver *s)
{
    pthread_mutex_lock(&s->lock);
    const bool idle = s->phase == IDLE;
    pthread_mutex_unlock(&s->lock);
    return idle;
}

/* Takes the page faults of the memory, so that no step pays for them; the rank may write to it at the same time. Only a
 * hint: an older kernel refuses it. */
static void touch_memory(struct saver *s)
{
    char *data = s->memory.data;
    for (size_t at = 0, n; at < s->memory.nbytes && is_idle(s); at += n) {
        n = s->memory.nbytes - at < TOUCHED_NBYTES ? s->memory.nbytes - at : TOUCHED_NBYTES;
        madvise(data + at, n, MADV_POPULATE_WRITE);
    }
}

/* The thread runs at a lower priority: if all processors are busy, training goes first. */
static void *run(void *arg)
{
    struct saver *s = arg;
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), BUSY_NICE);
    touch_memory(s);
    pthread_mutex_lock(&s->lock);
    while (s->phase != ENDING) {
        if (s->phase != ASKED) {
            pthread_cond_wait(&s->changed, &s->lock);
            continue;
        }
        pthread_mutex_unlock(&s->lock);
        save(s);
        pthread_mutex_lock(&s->lock);
        s->phase = DONE;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static int allocate(struct saver *s, struct fsdpck_error *err)
{
    const int index = s->rank->where->index;
    const struct kern_location pinned = { .kind = KERN_MEMORY_PINNED, .index = index, .huge_pages = true };
    const uint64_t nbytes = memory_snapshot_nbytes(s->rank->job);
    char message[KERN_MESSAGE_BYTES];
    if (s->device->memory->alloc(pinned, nbytes, &s->memory, message) != KERN_OK ||
        s->device->stream_new(index, NULL, &s->copies, message) != KERN_OK ||
        s->device->event_new(index, false, &s->updated, message) != KERN_OK ||
        s->device->event_new(index, false, &s->rank->copied, message) != KERN_OK)
        return fsdpck_error_set(err, FSDPCK_ERR_NOMEM, NULL, "a copy of the state for checkpoints: %s", message);
    for (int tree = 0; tree < CHECKPOINT_TREES; tree++)
        s->trees[tree] = (float *)s->memory.data + (s->rank->offload ? 0 : tree * s->rank->job->layout.own_nelem);
    s->device->event_record(s->rank->copied, s->copies);
    return checkpoint_list_new(s->rank, s->trees, &s->list, err);
}

int saver_new(struct rank *r, struct saver **out, struct fsdpck_error *err)
{
    struct saver *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return fsdpck_error_nomem(err, sizeof *s);
    s->rank = r;
    s->device = r->where->device;
    s->comm = r->comm->lanes[COMM_SAVE];
    s->fs = (struct fsdpck_options){ .nthreads = 1, .progress = beat, .note = pass_note, .ctx = s };
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    int rc = allocate(s, err), failed = rc ? 0 : pthread_create(&s->thread, NULL, run, s);
    if (failed)
        rc = fsdpck_error_sys(err, failed, NULL, "pthread_create");
    s->started = !rc;
    if (rc)
        saver_free(s);
    else
        *out = s;
    return rc;
}

static void wait_while_requested(struct saver *s)
{
    while (s->phase == ASKED)
        pthread_cond_wait(&s->changed, &s->lock);
}

void saver_free(struct saver *s)
{
    if (!s)
        return;
    if (s->started) {
        pthread_mutex_lock(&s->lock);
        wait_while_requested(s);
        s->phase = ENDING;
        pthread_cond_broadcast(&s->changed);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->thread, NULL);
    }
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    checkpoint_list_free(s->list);
    s->device->stream_free(s->copies);
    s->device->event_free(s->updated);
    s->device->event_free(s->rank->copied);
    s->rank->copied = NULL;
    s->device->memory->free(&s->memory);
    free(s->state);
    free(s);
}

static void copy_state(struct saver *s)
{
    s->device->event_record(s->updated, s->rank->compute->stream);
    s->device->event_wait(s->updated, s->copies);
    checkpoint_copy(s->rank, s->copies, s->trees);
    s->device->event_record(s->rank->copied, s->copies);
}

int saver_copy(struct saver *s, struct fsdpck_error *err)
{
    free(s->state);
    s->state = state_write(s->rank);
    if (!s->state)
        return fsdpck_error_nomem(err, 4096);
    s->requested_ns = comm_now_ns();
    s->result = (struct saver_result){ .step = s->rank->step };
    if (s->rank->offload)
        return checkpoint_keep(s->rank, s->trees[0], err);
    copy_state(s);
    return 0;
}

void saver_write(struct saver *s)
{
    pthread_mutex_lock(&s->lock);
    s->phase = ASKED;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

bool saver_is_busy(const struct saver *s)
{
    struct saver *lock = (struct saver *)s; /* casts away const for the mutex only */
    pthread_mutex_lock(&lock->lock);
    bool busy = s->phase == ASKED;
    pthread_mutex_unlock(&lock->lock);
    return busy;
}

bool saver_take(struct saver *s, bool wait, struct saver_result *out)
{
    pthread_mutex_lock(&s->lock);
    if (wait)
        wait_while_requested(s);
    bool taken = s->phase == DONE;
    if (taken) {
        *out = s->result;
        s->phase = IDLE;
    }
    pthread_mutex_unlock(&s->lock);
    return taken;
}
