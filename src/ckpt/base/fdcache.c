/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps descriptors open until another file needs their slot: thousands of shard files with a limit of 256
 * descriptors. */
#include "base/fdcache.h"

#include <pthread.h>
#include <stdlib.h>

#define MAX_OPEN 96u /* a cache for reading and one for writing together stay below the smallest usual limit, 256 */

struct slot { /* one descriptor: its file, and whether it is direct */
    uint32_t file;
    bool direct;
    int fd;
    unsigned nusers;
    uint64_t last_use;
};

struct fsdpck_fdcache {
    const struct fsdpck_io *io;
    fsdpck_fd_open_fn open;
    void *ctx;
    pthread_mutex_t lock;
    struct slot slots[MAX_OPEN];
    unsigned nslots;
    uint64_t clock;
    bool no_direct; /* the file system refused it once: do not try again */
};

struct fsdpck_fdcache *fsdpck_fdcache_new(const struct fsdpck_io *io, fsdpck_fd_open_fn open, void *ctx,
                                          struct fsdpck_error *err)
{
    struct fsdpck_fdcache *c = calloc(1, sizeof *c);
    if (!c) {
        fsdpck_error_nomem(err, sizeof *c);
        return NULL;
    }
    c->io = io;
    c->open = open;
    c->ctx = ctx;
    pthread_mutex_init(&c->lock, NULL);
    return c;
}

static struct slot *find(struct fsdpck_fdcache *c, uint32_t file, bool direct)
{
    for (unsigned i = 0; i < c->nslots; i++)
        if (c->slots[i].fd >= 0 && c->slots[i].file == file && c->slots[i].direct == direct)
            return &c->slots[i];
    return NULL;
}

/* Returns a slot for a new descriptor: an unused one, or the one idle for longest. NULL: all are busy. */
static struct slot *claim(struct fsdpck_fdcache *c)
{
    struct slot *idle = NULL;
    for (unsigned i = 0; i < c->nslots; i++) {
        struct slot *s = &c->slots[i];
        if (s->fd < 0)
            return s;
        if (s->nusers == 0 && (!idle || s->last_use < idle->last_use))
            idle = s;
    }
    if (c->nslots < MAX_OPEN) {
        c->slots[c->nslots].fd = -1;
        return &c->slots[c->nslots++];
    }
    if (idle) {
        c->io->close(c->io->ctx, idle->fd);
        idle->fd = -1;
    }
    return idle;
}

static int open_slot(struct fsdpck_fdcache *c, uint32_t file, bool direct, struct slot **slot, struct fsdpck_error *err)
{
    struct slot *s = claim(c);
    if (!s)
        return fsdpck_error_set(err, FSDPCK_ERR_LIMIT, NULL, "more than %u files are in use at once", MAX_OPEN);
    int rc = c->open(c->ctx, file, direct, &s->fd, err);
    if (rc || s->fd < 0) {
        s->fd = -1;
        c->no_direct |= !rc;
        return rc;
    }
    s->file = file;
    s->direct = direct;
    s->nusers = 0;
    *slot = s;
    return 0;
}

int fsdpck_fdcache_acquire(struct fsdpck_fdcache *c, uint32_t file, bool direct, int *fd, struct fsdpck_error *err)
{
    int rc = 0;
    *fd = -1;
    pthread_mutex_lock(&c->lock);
    struct slot *s = direct && c->no_direct ? NULL : find(c, file, direct);
    if (!s && !(direct && c->no_direct))
        rc = open_slot(c, file, direct, &s, err);
    if (s) {
        s->nusers++;
        s->last_use = ++c->clock;
        *fd = s->fd;
    }
    pthread_mutex_unlock(&c->lock);
    return rc;
}

void fsdpck_fdcache_release(struct fsdpck_fdcache *c, uint32_t file, bool direct)
{
    pthread_mutex_lock(&c->lock);
    struct slot *s = find(c, file, direct);
    if (s)
        s->nusers--;
    pthread_mutex_unlock(&c->lock);
}

void fsdpck_fdcache_close_idle(struct fsdpck_fdcache *c)
{
    pthread_mutex_lock(&c->lock);
    for (unsigned i = 0; i < c->nslots; i++) {
        struct slot *s = &c->slots[i];
        if (s->fd >= 0 && s->nusers == 0) {
            c->io->close(c->io->ctx, s->fd);
            s->fd = -1;
        }
    }
    pthread_mutex_unlock(&c->lock);
}

void fsdpck_fdcache_free(struct fsdpck_fdcache *c)
{
    if (!c)
        return;
    for (unsigned i = 0; i < c->nslots; i++)
        if (c->slots[i].fd >= 0)
            c->io->close(c->io->ctx, c->slots[i].fd);
    pthread_mutex_destroy(&c->lock);
    free(c);
}
