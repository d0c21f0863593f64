/* SPDX-License-Identifier: Apache-2.0 */
/* An I/O table that counts operations and makes them fail or lie. power_loss.c has its record of changes and the model
 * of power loss. */
#include "faulty_io.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "power_loss.h"

enum { MAX_LIES = 8, NEVER = UINT_MAX };

struct lie {
    char path[PATH_MAX], to[PATH_MAX];
    int sys_errno;
};

struct faulty {
    pthread_mutex_t lock; /* held during an operation, so that the record has the same order as the system */
    struct fsdpck_io io;
    const struct fsdpck_io *real;
    struct power_log *log;
    unsigned nops, kill_at, fail_at;
    int fail_errno;
    bool hit, no_exchange, no_rename_new, no_locks;
    struct lie devices[MAX_LIES], redirects[MAX_LIES], renames[MAX_LIES], read_only[MAX_LIES];
    size_t ndevices, nredirects, nrenames, nread_only;
};

static struct faulty *enter(void *ctx)
{
    struct faulty *f = ctx;
    pthread_mutex_lock(&f->lock);
    return f;
}

static void leave(struct faulty **f)
{
    pthread_mutex_unlock(&(*f)->lock);
}

/* Must be the first declaration of each operation: the lock is released at the end of the scope. */
#define ENTER(f, ctx) __attribute__((cleanup(leave))) struct faulty *f = enter(ctx)

static const struct lie *find_lie(const struct lie *lies, size_t n, const char *path)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(lies[i].path, path) == 0)
            return &lies[i];
    return NULL;
}

/* Counts an operation. Nonzero: the error that it must return. */
static int gate(struct faulty *f, bool transfer)
{
    unsigned n = f->nops++;
    if (n >= f->kill_at) {
        f->hit = true;
        return -EIO;
    }
    if (n != f->fail_at || f->fail_errno == 0 || (f->fail_errno == EINTR && !transfer))
        return 0;
    f->hit = true;
    return -f->fail_errno;
}

static bool is_dead(const struct faulty *f)
{
    return f->nops > f->kill_at;
}

/* A short transfer: half, but at least one byte. */
static uint64_t shorten(struct faulty *f, uint64_t nbytes)
{
    if (f->nops - 1 != f->fail_at || f->fail_errno != 0 || nbytes < 2)
        return nbytes;
    f->hit = true;
    return nbytes / 2;
}

static int may_create(const struct faulty *f, const char *path)
{
    char dir[PATH_MAX];
    snprintf(dir, sizeof dir, "%s", path);
    char *slash = strrchr(dir, '/');
    if (slash != NULL)
        *slash = '\0';
    return slash != NULL && find_lie(f->read_only, f->nread_only, dir) != NULL ? -EACCES : 0;
}

static int f_open(void *ctx, const char *path, int flags, unsigned mode)
{
    ENTER(f, ctx);
    const struct lie *lie = find_lie(f->redirects, f->nredirects, path);
    int rc = gate(f, false);
    if (rc == 0 && (flags & FSDPCK_OPEN_CREATE))
        rc = may_create(f, path);
    if (rc != 0)
        return rc;
    int fd = f->real->open(f->real->ctx, lie != NULL ? lie->to : path, flags, mode);
    if (fd >= 0)
        power_log_open(f->log, fd, path, (flags & FSDPCK_OPEN_CREATE) != 0);
    return fd;
}

static int f_close(void *ctx, int fd)
{
    ENTER(f, ctx);
    power_log_close(f->log, fd);
    return f->real->close(f->real->ctx, fd);
}

static int64_t f_pread(void *ctx, int fd, void *buf, uint64_t nbytes, uint64_t offset)
{
    ENTER(f, ctx);
    int rc = gate(f, true);
    return rc != 0 ? rc : f->real->pread(f->real->ctx, fd, buf, shorten(f, nbytes), offset);
}

static int64_t f_pread_cached(void *ctx, int fd, void *buf, uint64_t nbytes, uint64_t offset)
{
    ENTER(f, ctx);
    int rc = gate(f, true);
    return rc != 0 ? rc : f->real->pread_cached(f->real->ctx, fd, buf, shorten(f, nbytes), offset);
}

static int64_t f_pwrite(void *ctx, int fd, const void *buf, uint64_t nbytes, uint64_t offset)
{
    ENTER(f, ctx);
    int rc = gate(f, true);
    if (rc != 0)
        return rc;
    int64_t n = f->real->pwrite(f->real->ctx, fd, buf, shorten(f, nbytes), offset);
    if (n > 0)
        power_log_write(f->log, fd, buf, (size_t)n, offset);
    return n;
}

static int f_truncate(void *ctx, int fd, uint64_t nbytes)
{
    ENTER(f, ctx);
    int rc = gate(f, false);
    if (rc == 0)
        rc = f->real->truncate(f->real->ctx, fd, nbytes);
    if (rc == 0)
        power_log_truncate(f->log, fd, nbytes);
    return rc;
}

static int f_allocate(void *ctx, int fd, uint64_t nbytes)
{
    ENTER(f, ctx);
    int rc = gate(f, false);
    if (rc == 0)
        rc = f->real->allocate(f->real->ctx, fd, nbytes);
    if (rc == 0)
        power_log_truncate(f->log, fd, nbytes);
    return rc;
}

/* Only records: no test cuts the power, and real fsyncs would slow down thousands of runs. */
static int f_fsync(void *ctx, int fd)
{
    ENTER(f, ctx);
    int rc = gate(f, false);
    if (rc == 0)
        power_log_fsync(f->log, fd);
    return rc;
}

static int f_fstat(void *ctx, int fd, struct fsdpck_stat *out)
{
    ENTER(f, ctx);
    return is_dead(f) ? -EIO : f->real->fstat(f->real->ctx, fd, out);
}

static int f_stat(void *ctx, const char *path, bool follow, struct fsdpck_stat *out)
{
    ENTER(f, ctx);
    int rc = is_dead(f) ? -EIO : f->real->stat(f->real->ctx, path, follow, out);
    if (rc == 0 && find_lie(f->devices, f->ndevices, path) != NULL)
        out->device += 1000;
    return rc;
}

static int f_list(void *ctx, const char *path, fsdpck_list_fn visit, void *visit_ctx)
{
    ENTER(f, ctx);
    int rc = gate(f, false);
    return rc != 0 ? rc : f->real->list(f->real->ctx, path, visit, visit_ctx);
}

static int f_resolve(void *ctx, const char *path, char *out, size_t out_nbytes)
{
    ENTER(f, ctx);
    int rc = gate(f, false);
    return rc != 0 ? rc : f->real->resolve(f->real->ctx, path, out, out_nbytes);
}

static int f_mkdir(void *ctx, const char *path, unsigned mode)
{
    ENTER(f, ctx);
    int rc = gate(f, false);
    if (rc == 0)
        rc = may_create(f, path);
    if (rc == 0)
        rc = f->real->mkdir(f->real->ctx, path, mode);
    if (rc == 0)
        power_log_mkdir(f->log, path);
    return rc;
}

static int rename_gate(struct faulty *f, const char *to)
{
    const struct lie *lie = find_lie(f->renames, f->nrenames, to);
    int rc = gate(f, false);
    return rc == 0 && lie != NULL ? -lie->sys_errno : rc;
}

static int f_rename(void *ctx, const char *from, const char *to)
{
    ENTER(f, ctx);
    int rc = rename_gate(f, to);
    if (rc == 0)
        rc = f->real->rename(f->real->ctx, from, to);
    if (rc == 0)
        power_log_rename(f->log, from, to);
    return rc;
}

static int f_rename_new(void *ctx, const char *from, const char *to)
{
    ENTER(f, ctx);
    int rc = rename_gate(f, to);
    if (rc == 0)
        rc = f->no_rename_new ? -EINVAL : f->real->rename_new(f->real->ctx, from, to);
    if (rc == 0)
        power_log_rename(f->log, from, to);
    return rc;
}

static int f_exchange(void *ctx, const char *a, const char *b)
{
    ENTER(f, ctx);
    int rc = rename_gate(f, b);
    if (rc == 0)
        rc = f->no_exchange ? -EINVAL : f->real->exchange(f->real->ctx, a, b);
    if (rc == 0)
        power_log_exchange(f->log, a, b);
    return rc;
}

static int f_unlink(void *ctx, const char *path)
{
    ENTER(f, ctx);
    int rc = gate(f, false);
    if (rc == 0)
        rc = f->real->unlink(f->real->ctx, path);
    if (rc == 0)
        power_log_remove(f->log, path);
    return rc;
}

static int f_rmdir(void *ctx, const char *path)
{
    ENTER(f, ctx);
    int rc = gate(f, false);
    if (rc == 0)
        rc = f->real->rmdir(f->real->ctx, path);
    if (rc == 0)
        power_log_remove(f->log, path);
    return rc;
}

static int f_lock(void *ctx, int fd)
{
    ENTER(f, ctx);
    f->nops++;
    int rc = is_dead(f) ? -EIO : f->no_locks ? -ENOLCK : 0;
    return rc != 0 ? rc : f->real->lock(f->real->ctx, fd);
}

static int f_lock_probe(void *ctx, int fd)
{
    ENTER(f, ctx);
    return f->no_locks ? -ENOLCK : f->real->lock_probe(f->real->ctx, fd);
}

static int f_random(void *ctx, void *buf, size_t nbytes)
{
    ENTER(f, ctx);
    return f->real->random(f->real->ctx, buf, nbytes);
}

static int64_t f_now_ns(void *ctx)
{
    ENTER(f, ctx);
    return f->real->now_ns(f->real->ctx);
}

static const struct fsdpck_io table = {
    .open = f_open,
    .close = f_close,
    .pread = f_pread,
    .pread_cached = f_pread_cached,
    .pwrite = f_pwrite,
    .truncate = f_truncate,
    .allocate = f_allocate,
    .fsync = f_fsync,
    .fstat = f_fstat,
    .stat = f_stat,
    .list = f_list,
    .resolve = f_resolve,
    .mkdir = f_mkdir,
    .rename = f_rename,
    .rename_new = f_rename_new,
    .exchange = f_exchange,
    .unlink = f_unlink,
    .rmdir = f_rmdir,
    .lock = f_lock,
    .lock_probe = f_lock_probe,
    .random = f_random,
    .now_ns = f_now_ns,
};

struct faulty *faulty_new(const char *root)
{
    struct faulty *f = calloc(1, sizeof *f);
    if (f == NULL)
        abort();
    pthread_mutexattr_t recursive; /* recursive, because the callback of a listing may run operations */
    pthread_mutexattr_init(&recursive);
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&f->lock, &recursive);
    pthread_mutexattr_destroy(&recursive);
    f->io = table;
    f->io.ctx = f;
    f->real = &fsdpck_io_posix;
    f->log = power_log_new(root);
    f->kill_at = f->fail_at = NEVER;
    return f;
}

void faulty_free(struct faulty *f)
{
    if (f == NULL)
        return;
    power_log_free(f->log);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

const struct fsdpck_io *faulty_io(struct faulty *f)
{
    return &f->io;
}
unsigned faulty_nops(const struct faulty *f)
{
    return f->nops;
}
void faulty_kill_at(struct faulty *f, unsigned n)
{
    f->kill_at = n;
}
bool faulty_hit(const struct faulty *f)
{
    return f->hit;
}

void faulty_fail_at(struct faulty *f, unsigned n, int sys_errno)
{
    f->fail_at = n;
    f->fail_errno = sys_errno;
}

static void add_lie(struct lie *lies, size_t *n, const char *path, const char *to, int sys_errno)
{
    if (*n == MAX_LIES)
        abort();
    struct lie *lie = &lies[(*n)++];
    snprintf(lie->path, sizeof lie->path, "%s", path);
    snprintf(lie->to, sizeof lie->to, "%s", to);
    lie->sys_errno = sys_errno;
}

void faulty_other_device(struct faulty *f, const char *path)
{
    add_lie(f->devices, &f->ndevices, path, "", 0);
}
void faulty_redirect(struct faulty *f, const char *from, const char *to)
{
    add_lie(f->redirects, &f->nredirects, from, to, 0);
}
void faulty_fail_rename(struct faulty *f, const char *to, int sys_errno)
{
    add_lie(f->renames, &f->nrenames, to, "", sys_errno);
}
void faulty_read_only(struct faulty *f, const char *dir)
{
    add_lie(f->read_only, &f->nread_only, dir, "", 0);
}
void faulty_no_exchange(struct faulty *f)
{
    f->no_exchange = true;
}
void faulty_no_rename_new(struct faulty *f)
{
    f->no_rename_new = true;
}
void faulty_no_locks(struct faulty *f)
{
    f->no_locks = true;
}

size_t faulty_nevents(const struct faulty *f)
{
    return power_log_nevents(f->log);
}
size_t faulty_nfsyncs(const struct faulty *f)
{
    return power_log_nfsyncs(f->log);
}

uint64_t faulty_after_crash(const struct faulty *f, size_t nevents, int seed, int ignored, const char *to)
{
    return power_log_replay(f->log, nevents, seed, ignored, to);
}

const char *faulty_event_text(const struct faulty *f, size_t event, char *buf, size_t nbytes)
{
    return power_log_text(f->log, event, buf, nbytes);
}
