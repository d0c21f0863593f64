/* SPDX-License-Identifier: Apache-2.0 */
/* Lock files that name their owner, and the test whether that owner is dead. It does not know the data.
 *
 * A lock is an OFD lock on a file. The kernel releases it when the process ends, for whatever reason. A file left by a
 * dead process means nothing; the next process takes it over. The owner removes the file while it still holds the lock.
 * A process that opened the file earlier may then lock a file that has no name any more. Therefore each process checks,
 * after locking, that the name still leads to the locked file, and starts again if it does not.
 *
 * On file systems without locks (some network ones) every process passes. Saves still cannot mix, because their files
 * have different names. There, left-overs count as dead only after a reboot. */
#include "commit/commit_impl.h"

#include <fsdpck/lock.h>

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>

#include "base/ioutil.h"
#include "base/json_read.h"

enum { TRIES = 100, IDENTITY_MAX = 4096 };

struct identity {
    char host[65], boot[37], save_id[37];
    json_int_t pid;
};

/* Reads the first line of a file in /proc; such files have no size. */
static void read_line(const struct fsdpck_io *io, const char *path, char *line, size_t nbytes)
{
    int64_t n = -1;
    int fd = io->open(io->ctx, path, FSDPCK_OPEN_READ, 0);
    if (fd >= 0) {
        do
            n = io->pread(io->ctx, fd, line, nbytes - 1, 0);
        while (n == -EINTR);
        io->close(io->ctx, fd);
    }
    line[n > 0 ? n : 0] = '\0';
    line[strcspn(line, "\n")] = '\0';
}

static void identify(const struct fsdpck_io *io, struct identity *who)
{
    memset(who, 0, sizeof *who);
    read_line(io, "/proc/sys/kernel/hostname", who->host, sizeof who->host);
    read_line(io, "/proc/sys/kernel/random/boot_id", who->boot, sizeof who->boot);
    who->pid = getpid();
}

static void take_string(struct fsdpck_json *j, char *to, size_t nbytes)
{
    const char *s = fsdpck_json_string(j);
    snprintf(to, nbytes, "%s", s ? s : "");
}

/* Returns FSDPCK_ERR_FORMAT if the text is not an identity: the writer was killed before it had written one. */
static int parse_identity(const char *text, size_t nbytes, struct identity *who)
{
    struct fsdpck_error err = { 0 };
    struct fsdpck_json j;
    const char *key;
    fsdpck_json_begin(&j, "", 0, text, nbytes, &err);
    fsdpck_json_object(&j);
    while (fsdpck_json_next_key(&j, &key)) {
        if (strcmp(key, "host") == 0)
            take_string(&j, who->host, sizeof who->host);
        else if (strcmp(key, "boot") == 0)
            take_string(&j, who->boot, sizeof who->boot);
        else if (strcmp(key, "save_id") == 0)
            take_string(&j, who->save_id, sizeof who->save_id);
        else if (strcmp(key, "pid") == 0)
            who->pid = (json_int_t)fsdpck_json_u64(&j);
        else
            fsdpck_json_skip(&j);
    }
    fsdpck_json_end(&j);
    fsdpck_json_free(&j);
    return err.code;
}

/* Only FSDPCK_ERR_FORMAT says something about the writer; other failures do not. */
static int read_identity(const struct fsdpck_io *io, int fd, struct identity *who)
{
    char text[IDENTITY_MAX];
    struct fsdpck_stat st;
    memset(who, 0, sizeof *who);
    if (io->fstat(io->ctx, fd, &st) != 0)
        return FSDPCK_ERR_IO;
    if (st.nbytes > sizeof text)
        return FSDPCK_ERR_FORMAT;
    int rc = fsdpck_read_full(io, fd, "", text, st.nbytes, 0, NULL);
    return !rc ? parse_identity(text, st.nbytes, who) : rc;
}

/* No fsync: after a power failure the file is unlocked, and an unreadable identity counts as dead. */
static int write_identity(const struct fsdpck_io *io, const struct commit_lock *lock, const char *uuid,
                          struct fsdpck_error *err)
{
    struct identity who;
    identify(io, &who);
    json_t *o = json_pack("{s:s, s:s, s:I, s:s}", "host", who.host, "boot", who.boot, "pid", who.pid, "save_id", uuid);
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    int rc = !text ? fsdpck_error_nomem(err, IDENTITY_MAX) : 0;
    if (!rc) {
        rc = io->truncate(io->ctx, lock->fd, 0);
        rc = rc < 0 ? fsdpck_error_sys(err, -rc, lock->path, "cannot truncate") : 0;
    }
    if (!rc)
        rc = fsdpck_write_full(io, lock->fd, lock->path, text, strlen(text), 0, err);
    free(text);
    json_decref(o);
    return rc;
}

static int busy(const struct fsdpck_io *io, int fd, const char *subject, struct fsdpck_error *err)
{
    struct identity who;
    if (read_identity(io, fd, &who) != 0 || who.host[0] == '\0')
        return fsdpck_error_set(err, FSDPCK_ERR_BUSY, subject, "another writer is at work on it");
    return fsdpck_error_set(err, FSDPCK_ERR_BUSY, subject,
                            "another writer is at work on it: process %" JSON_INTEGER_FORMAT " on host '%s', save %s",
                            who.pid, who.host, who.save_id);
}

/* Opens the file; creates it if missing. */
static int open_lock(const struct fsdpck_io *io, const char *path)
{
    int fd = io->open(io->ctx, path, FSDPCK_OPEN_READ | FSDPCK_OPEN_WRITE | FSDPCK_OPEN_CREATE, 0666);
    return fd == -EEXIST ? io->open(io->ctx, path, FSDPCK_OPEN_READ | FSDPCK_OPEN_WRITE, 0) : fd;
}

static bool has_no_locks(int rc)
{
    return rc == -ENOLCK || rc == -ENOSYS || rc == -EOPNOTSUPP;
}

/* Does not follow a link: we must not lock, still less write, the target of a foreign link. */
static bool is_still_named(const struct fsdpck_io *io, int fd, const char *path)
{
    struct fsdpck_stat opened, named;
    return io->fstat(io->ctx, fd, &opened) == 0 && io->stat(io->ctx, path, false, &named) == 0 &&
           opened.inode == named.inode && opened.device == named.device;
}

/* Returns a locked descriptor of the file that has the name now; -EAGAIN if another process holds the lock (*holder is
 * then open for reading its identity). */
static int open_locked(const struct fsdpck_io *io, const char *path, int *holder)
{
    for (int i = 0; i < TRIES; i++) {
        int fd = open_lock(io, path);
        if (fd == -ENOENT)
            continue; /* removed between the two open calls */
        if (fd < 0)
            return fd;
        int rc = io->lock(io->ctx, fd);
        if (rc == -EAGAIN) {
            *holder = fd;
            return rc;
        }
        if ((!rc || has_no_locks(rc)) && is_still_named(io, fd, path))
            return fd;
        io->close(io->ctx, fd);
        if (rc && !has_no_locks(rc))
            return rc;
    }
    return -EBUSY;
}

int fsdpck_lock_take(const struct fsdpck_io *io, char *path, const char *subject, const char *uuid,
                     struct commit_lock *lock, struct fsdpck_error *err)
{
    int holder = -1, rc;
    if (!path)
        return FSDPCK_ERR_NOMEM;
    int fd = open_locked(io, path, &holder);
    if (fd >= 0) {
        *lock = (struct commit_lock){ fd, path };
        rc = write_identity(io, lock, uuid, err);
        if (rc)
            fsdpck_lock_remove(io, lock);
        return rc;
    }
    rc = fd == -EAGAIN ? busy(io, holder, subject, err)
                       : fsdpck_error_sys(err, -fd, path, "cannot create and lock the file");
    if (holder >= 0)
        io->close(io->ctx, holder);
    free(path);
    return rc;
}

bool fsdpck_lock_remove(const struct fsdpck_io *io, struct commit_lock *lock)
{
    bool gone = lock->fd >= 0 && io->unlink(io->ctx, lock->path) == 0;
    fsdpck_lock_release(io, lock);
    return gone;
}

void fsdpck_lock_release(const struct fsdpck_io *io, struct commit_lock *lock)
{
    if (lock->fd >= 0)
        io->close(io->ctx, lock->fd);
    free(lock->path);
    *lock = (struct commit_lock)COMMIT_LOCK_NONE;
}

static void set_status(struct commit_writer_status *out, bool alive, const char *why)
{
    out->alive = alive;
    snprintf(out->why, sizeof out->why, "%s", why);
}

/* probe: 1 locked, 0 not locked, negative if unknown. */
static void probe_writer(const struct fsdpck_io *io, int probe, bool readable, const struct identity *who,
                         struct commit_writer_status *out)
{
    struct identity self;
    identify(io, &self);
    /* the same kernel: its locks count, whatever the container's host name */
    bool same_boot = self.boot[0] != '\0' && strcmp(self.boot, who->boot) == 0;
    bool same_host = strcmp(self.host, who->host) == 0;
    bool other_boot = !same_boot && self.boot[0] != '\0' && who->boot[0] != '\0';
    if (probe == 1)
        set_status(out, true, "locked by a writer");
    else if (!readable)
        set_status(out, probe != 0, probe == 0 ? "its writer was stopped at its start" : "does not say who made it");
    else if (other_boot && same_host)
        set_status(out, false, "writer is gone: the machine was started anew since");
    else if (!same_boot && !same_host) {
        out->alive = true;
        snprintf(out->why, sizeof out->why, "made on host '%s'", who->host);
    } else
        set_status(out, probe != 0,
                   probe == 0 ? "writer is gone" : "the file system has no locks: its writer may be at work");
}

void fsdpck_writer_probe(const struct fsdpck_io *io, const char *path, struct commit_writer_status *out)
{
    struct identity who;
    int fd = io->open(io->ctx, path, FSDPCK_OPEN_READ, 0);
    if (fd < 0) {
        set_status(out, true,
                   fd == -ENOENT ? "nothing says who made it" : "the file that says who made it cannot be opened");
        return;
    }
    int probe = io->lock_probe(io->ctx, fd);
    int rc = read_identity(io, fd, &who);
    if (!rc || rc == FSDPCK_ERR_FORMAT || probe == 1)
        probe_writer(io, probe, !rc, &who, out);
    else
        set_status(out, true, "the file that says who made it cannot be read");
    io->close(io->ctx, fd);
}

/* ---- a folder's owner */

struct fsdpck_folder_lock {
    const struct fsdpck_io *io;
    struct commit_lock lock;
};

static const char no_save[] = "00000000-0000-0000-0000-000000000000"; /* stands for a save id */

/* Returns whether the process that made the lock has ended while its forked children still hold the lock. They will end
 * with it, but not at once. */
static bool holder_is_ending(const struct fsdpck_io *io, int fd)
{
    struct identity who, self;
    identify(io, &self);
    return read_identity(io, fd, &who) == 0 && self.boot[0] != '\0' && strcmp(who.boot, self.boot) == 0 &&
           who.pid > 0 && kill((pid_t)who.pid, 0) != 0 && errno == ESRCH;
}

/* Like open_locked(), but waits a while for a holder that is ending. */
static int open_when_free(const struct fsdpck_io *io, const char *path, int *holder)
{
    const struct timespec turn = { .tv_nsec = 50000000 };
    for (int i = 0;; i++) {
        *holder = -1;
        int fd = open_locked(io, path, holder);
        if (fd != -EAGAIN || i == TRIES || !holder_is_ending(io, *holder))
            return fd;
        io->close(io->ctx, *holder);
        nanosleep(&turn, NULL);
    }
}

static int fail_busy(const struct fsdpck_io *io, int fd, const char *folder, const char *what, struct fsdpck_error *err)
{
    struct identity who;
    if (read_identity(io, fd, &who) != 0 || who.host[0] == '\0')
        return fsdpck_error_set(err, FSDPCK_ERR_BUSY, folder, "another %s is at work in it", what);
    return fsdpck_error_set(err, FSDPCK_ERR_BUSY, folder,
                            "another %s is at work in it: process %" JSON_INTEGER_FORMAT " on host '%s'", what, who.pid,
                            who.host);
}

/* Refuses a lock file whose earlier owner may be alive. The file is open, and locked if the file system has locks. */
static int check_left(const struct fsdpck_io *io, int fd, const char *folder, const char *what,
                      struct fsdpck_error *err)
{
    struct fsdpck_stat st;
    struct identity who;
    struct commit_writer_status v;
    if (io->fstat(io->ctx, fd, &st) == 0 && st.nbytes == 0)
        return 0; /* a new file */
    int rc = read_identity(io, fd, &who);
    /* lock again: success means that we hold it; failure means that there are no locks */
    probe_writer(io, io->lock(io->ctx, fd) == 0 ? 0 : -1, !rc, &who, &v);
    if (!v.alive)
        return 0;
    fsdpck_error_set(err, FSDPCK_ERR_BUSY, folder,
                     "another %s may be at work in it: process %" JSON_INTEGER_FORMAT " on host '%s' (%s)", what,
                     who.pid, who.host, v.why);
    fsdpck_error_hint(err,
                      "nothing here proves that it is gone; if it is, remove the file '.fsdpck-lock' in that folder");
    return FSDPCK_ERR_BUSY;
}

int fsdpck_folder_lock(const char *folder, const char *what, const struct fsdpck_options *opt,
                       struct fsdpck_folder_lock **out, struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    const struct fsdpck_io *io = opt && opt->io ? opt->io : &fsdpck_io_posix;
    struct fsdpck_folder_lock *l = calloc(1, sizeof *l);
    char *path = fsdpck_commit_name_path(folder, "", NAME_LOCK, NULL, &own);
    int holder = -1, fd = -1, rc = !l ? fsdpck_error_nomem(&own, sizeof *l) : !path ? FSDPCK_ERR_NOMEM : 0;
    *out = NULL;
    if (!rc) {
        fd = open_when_free(io, path, &holder);
        rc = fd >= 0         ? check_left(io, fd, folder, what, &own)
             : fd == -EAGAIN ? fail_busy(io, holder, folder, what, &own)
                             : fsdpck_error_sys(&own, -fd, path, "cannot create and lock the file");
    }
    if (!rc) {
        *l = (struct fsdpck_folder_lock){ io, { fd, path } };
        rc = write_identity(io, &l->lock, no_save, &own);
        if (rc)
            fsdpck_lock_remove(io, &l->lock);
    } else {
        if (fd >= 0)
            io->close(io->ctx, fd);
        free(path);
    }
    if (holder >= 0)
        io->close(io->ctx, holder);
    if (!rc)
        *out = l;
    else
        free(l);
    if (rc && err && err->code == 0)
        *err = own;
    return rc;
}

bool fsdpck_folder_is_locked(const struct fsdpck_folder_lock *lock)
{
    return is_still_named(lock->io, lock->lock.fd, lock->lock.path);
}

void fsdpck_folder_unlock(struct fsdpck_folder_lock *lock)
{
    if (!lock)
        return;
    if (fsdpck_folder_is_locked(lock))
        fsdpck_lock_remove(lock->io, &lock->lock);
    else
        fsdpck_lock_release(lock->io, &lock->lock);
    free(lock);
}
