/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks pass through a ring of buffers. Three counters tell how many chunks have been read, updated and written
 * since the start; the buffer of a chunk is its number modulo the number of buffers. */
#include "rank/offload.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { NO_TREE = -1 };

struct offload {
    struct offload_sizes sizes;
    struct offload_chunk *chunks; /* (nchunks) */
    struct offload_file *file;
    char whose[24];
    char *buffers;
    float *window; /* one tree of a chunk */
    int window_tree;
    uint64_t window_chunk;
    bool window_dirty;
    unsigned slot[2];    /* by the parity of an update: the copy of the state that it writes */
    unsigned kept;       /* the copy that was kept last */
    bool keep;           /* the next update must write the other copy */
    uint64_t kept_after; /* chunks that had been given back when it was kept */
    uint64_t ntaken;     /* chunks */

    pthread_t reader, writer;
    unsigned nthreads;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    uint64_t begun;                   /* updates */
    uint64_t nread, ngiven, nwritten; /* chunks */
    bool ending;
    struct fsdpck_error failed;
    struct offload_times times;
};

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* Without values in the state, both copies share the values' room: only checkpoints use it. */
static uint64_t page_of(const struct offload *o, unsigned slot, int tree, uint64_t chunk)
{
    const uint64_t region = o->sizes.values ? slot * OFFLOAD_TREES + (unsigned)tree
                            : tree == 0     ? 0
                                            : slot * (OFFLOAD_TREES - 1) + (unsigned)tree;
    return region * o->sizes.nchunks + chunk;
}

static uint64_t chunk_nbytes(const struct offload *o, uint64_t chunk)
{
    return (uint64_t)o->chunks[chunk].nelem * sizeof(float);
}

/* The trees of chunk number n since the start, in its buffer. */
static struct offload_view view_of(const struct offload *o, uint64_t n)
{
    const uint64_t nbuffer = n % o->sizes.nbuffers;
    char *at = o->buffers + nbuffer * o->sizes.ntrees * o->sizes.tree_nbytes;
    struct offload_view view = { .chunk = o->chunks[n % o->sizes.nchunks] };
    for (int tree = o->sizes.values ? 0 : 1; tree < OFFLOAD_TREES; tree++, at += o->sizes.tree_nbytes)
        view.trees[tree] = (float *)at;
    return view;
}

/* --- the two threads --- */

static bool may_read(const struct offload *o)
{
    const uint64_t announced = o->begun ? (o->begun + 1) * o->sizes.nchunks : 0; /* one update ahead */
    return o->nread < announced && o->nread < o->nwritten + o->sizes.nbuffers;
}

static bool may_write(const struct offload *o)
{
    return o->nwritten < o->ngiven;
}

/* Moves chunk number n between the file and its buffer. */
static int move(struct offload *o, uint64_t n, bool write, struct fsdpck_error *err)
{
    const uint64_t update = n / o->sizes.nchunks, chunk = n % o->sizes.nchunks;
    const struct offload_view view = view_of(o, n);
    const unsigned slot = o->slot[(write ? update : update + 1) % 2];
    int rc = 0;
    for (int tree = 0; tree < OFFLOAD_TREES && !rc; tree++) {
        const uint64_t page = page_of(o, slot, tree, chunk);
        if (!view.trees[tree])
            continue;
        rc = write ? offload_file_write(o->file, page, view.trees[tree], chunk_nbytes(o, chunk), err)
                   : offload_file_read(o->file, page, view.trees[tree], chunk_nbytes(o, chunk), err);
    }
    return rc;
}

static void *serve(struct offload *o, bool (*may)(const struct offload *), uint64_t *count, bool write)
{
    pthread_mutex_lock(&o->lock);
    while (!o->ending && !o->failed.code) {
        if (!may(o)) {
            pthread_cond_wait(&o->changed, &o->lock);
            continue;
        }
        struct fsdpck_error err = { 0 };
        const uint64_t n = *count;
        pthread_mutex_unlock(&o->lock);
        const uint64_t started = now_ns();
        int rc = move(o, n, write, &err);
        const uint64_t busy_ns = now_ns() - started;
        pthread_mutex_lock(&o->lock);
        o->times.busy_ns += busy_ns;
        o->times.nbytes += o->sizes.ntrees * chunk_nbytes(o, n % o->sizes.nchunks);
        if (rc && !o->failed.code)
            o->failed = err;
        ++*count;
        pthread_cond_broadcast(&o->changed);
    }
    pthread_mutex_unlock(&o->lock);
    return NULL;
}

static void *read_chunks(void *ctx)
{
    struct offload *o = ctx;
    return serve(o, may_read, &o->nread, false);
}

static void *write_chunks(void *ctx)
{
    struct offload *o = ctx;
    return serve(o, may_write, &o->nwritten, true);
}

static int start_threads(struct offload *o, struct fsdpck_error *err)
{
    int rc = pthread_create(&o->reader, NULL, read_chunks, o);
    o->nthreads += !rc;
    if (!rc)
        rc = pthread_create(&o->writer, NULL, write_chunks, o);
    o->nthreads += !rc;
    return rc ? fsdpck_error_sys(err, rc, NULL, "pthread_create") : 0;
}

int offload_new(const struct layout *l, const struct offload_sizes *sizes, uint32_t rank, const char *folder,
                const struct fsdpck_io *io, void *memory, struct offload **out, struct fsdpck_error *err)
{
    struct offload *o = calloc(1, sizeof *o);
    *out = NULL;
    if (!o)
        return fsdpck_error_nomem(err, sizeof *o);
    o->sizes = *sizes;
    o->window = memory;
    o->buffers = (char *)memory + sizes->tree_nbytes;
    o->window_tree = NO_TREE;
    o->chunks = calloc(sizes->nchunks + 1, sizeof *o->chunks);
    snprintf(o->whose, sizeof o->whose, "rank %u", rank);
    pthread_mutex_init(&o->lock, NULL);
    pthread_cond_init(&o->changed, NULL);
    int rc = o->chunks ? 0 : fsdpck_error_nomem(err, sizes->nchunks * sizeof *o->chunks);
    if (!rc) {
        offload_cut(l, sizes, o->chunks);
        rc = offload_file_new(io, folder, o->whose, "the optimizer state", sizes->file_nbytes / sizes->tree_nbytes,
                              sizes->tree_nbytes, &o->file, err);
    }
    if (!rc)
        rc = start_threads(o, err);
    if (rc)
        offload_free(o);
    else
        *out = o;
    return rc;
}

void offload_free(struct offload *o)
{
    if (!o)
        return;
    pthread_mutex_lock(&o->lock);
    o->ending = true;
    pthread_cond_broadcast(&o->changed);
    pthread_mutex_unlock(&o->lock);
    if (o->nthreads > 0)
        pthread_join(o->reader, NULL);
    if (o->nthreads > 1)
        pthread_join(o->writer, NULL);
    pthread_cond_destroy(&o->changed);
    pthread_mutex_destroy(&o->lock);
    offload_file_free(o->file);
    free(o->chunks);
    free(o);
}

bool offload_is_direct(const struct offload *o)
{
    return offload_file_is_direct(o->file);
}

/* --- the window --- */

/* The chunk with this element of optimizer memory. */
static uint64_t find_chunk(const struct offload *o, int64_t at)
{
    uint64_t low = 0, high = o->sizes.nchunks;
    while (high - low > 1) {
        const uint64_t middle = low + (high - low) / 2;
        *(o->chunks[middle].at <= at ? &low : &high) = middle;
    }
    return low;
}

float *offload_window(const struct offload *o)
{
    return o->window;
}

bool offload_is_open(const struct offload *o, int tree, int64_t at)
{
    return o->window_tree == tree && o->window_chunk == find_chunk(o, at);
}

int offload_close(struct offload *o, struct fsdpck_error *err)
{
    const int tree = o->window_tree;
    o->window_tree = NO_TREE;
    return tree == NO_TREE || !o->window_dirty ? 0
                                               : offload_file_write(o->file, page_of(o, o->kept, tree, o->window_chunk),
                                                                    o->window, chunk_nbytes(o, o->window_chunk), err);
}

static int move_window(struct offload *o, int tree, uint64_t chunk, bool dirty, struct fsdpck_error *err)
{
    if (o->window_tree == tree && o->window_chunk == chunk)
        return 0;
    int rc = offload_close(o, err);
    if (!rc)
        rc = offload_file_read(o->file, page_of(o, o->kept, tree, chunk), o->window, chunk_nbytes(o, chunk), err);
    if (rc)
        return rc;
    o->window_tree = tree;
    o->window_chunk = chunk;
    o->window_dirty = dirty;
    return 0;
}

int offload_open(struct offload *o, int tree, int64_t at, float **data, int64_t *nelem, struct fsdpck_error *err)
{
    const uint64_t chunk = find_chunk(o, at);
    const struct offload_chunk *c = &o->chunks[chunk];
    *data = o->window + (at - c->at);
    *nelem = c->at + c->nelem - at;
    return move_window(o, tree, chunk, true, err);
}

void offload_clear(struct offload *o)
{
    o->window_tree = NO_TREE;
    offload_file_clear(o->file);
}

/* --- updates --- */

void offload_begin(struct offload *o)
{
    pthread_mutex_lock(&o->lock);
    const unsigned last = o->slot[(o->begun + 1) % 2];
    o->slot[o->begun % 2] = o->keep ? !last : last;
    o->keep = false;
    o->begun++;
    pthread_cond_broadcast(&o->changed);
    pthread_mutex_unlock(&o->lock);
}

/* Waits until count is at least n. */
static int wait_for(struct offload *o, const uint64_t *count, uint64_t n, uint64_t *waited_ns, struct fsdpck_error *err)
{
    pthread_mutex_lock(&o->lock);
    const uint64_t started = *count < n ? now_ns() : 0;
    while (*count < n && !o->failed.code)
        pthread_cond_wait(&o->changed, &o->lock);
    *waited_ns += started ? now_ns() - started : 0;
    int rc = o->failed.code;
    if (rc)
        *err = o->failed;
    pthread_mutex_unlock(&o->lock);
    return rc;
}

int offload_take(struct offload *o, struct offload_view *out, struct fsdpck_error *err)
{
    int rc = wait_for(o, &o->nread, o->ntaken + 1, &o->times.waited_ns, err);
    *out = view_of(o, o->ntaken);
    o->ntaken += !rc;
    return rc;
}

void offload_give(struct offload *o)
{
    pthread_mutex_lock(&o->lock);
    o->ngiven++;
    pthread_cond_broadcast(&o->changed);
    pthread_mutex_unlock(&o->lock);
}

struct offload_times offload_times(struct offload *o)
{
    pthread_mutex_lock(&o->lock);
    const struct offload_times times = o->times;
    pthread_mutex_unlock(&o->lock);
    return times;
}

/* --- checkpoints --- */

void offload_keep(struct offload *o)
{
    o->kept = o->slot[(o->begun + 1) % 2];
    o->kept_after = o->ngiven;
    o->keep = true;
    o->window_tree = NO_TREE; /* of what was kept before */
}

int offload_read_kept(struct offload *o, int tree, int64_t at, int64_t nelem, float *dst, struct fsdpck_error *err)
{
    uint64_t ignored_ns = 0;
    int rc = wait_for(o, &o->nwritten, o->kept_after, &ignored_ns, err);
    while (nelem > 0 && !rc) {
        const uint64_t chunk = find_chunk(o, at);
        const struct offload_chunk *c = &o->chunks[chunk];
        const int64_t room = c->at + c->nelem - at, n = nelem < room ? nelem : room;
        rc = move_window(o, tree, chunk, false, err);
        if (!rc)
            memcpy(dst, o->window + (at - c->at), (size_t)n * sizeof *dst);
        at += n;
        dst += n;
        nelem -= n;
    }
    return rc;
}
