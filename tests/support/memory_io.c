/* SPDX-License-Identifier: Apache-2.0 */
/* The I/O table over an array of names and bytes. A descriptor is the number of the file, because readers never use a
 * file position. */
#include "memory_io.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#define FIRST_FD 3 /* as in a process, so that 0 is not mistaken for "none" */

static struct memory_file *find(struct memory_io *m, const char *path)
{
    for (size_t i = 0; i < m->nfiles; i++)
        if (m->files[i].exists && strcmp(m->files[i].path, path) == 0)
            return &m->files[i];
    return NULL;
}

/* Returns the part of path after "dir/", or NULL. */
static const char *below(const char *path, const char *dir)
{
    size_t n = strlen(dir);
    return strncmp(path, dir, n) == 0 && path[n] == '/' ? path + n + 1 : NULL;
}

static bool is_directory(const struct memory_io *m, const char *path)
{
    for (size_t i = 0; i < m->nfiles; i++)
        if (below(m->files[i].path, path))
            return true;
    return false;
}

static struct memory_file *file_of(struct memory_io *m, int fd)
{
    assert(fd >= FIRST_FD && (size_t)(fd - FIRST_FD) < m->nfiles);
    return &m->files[fd - FIRST_FD];
}

static int open_file(void *ctx, const char *path, int flags, unsigned mode)
{
    struct memory_io *m = ctx;
    (void)mode;
    if (flags & FSDPCK_OPEN_DIRECT)
        return -EINVAL;
    if (flags & FSDPCK_OPEN_CREATE)
        for (size_t i = 0; i < m->nfiles; i++)
            if (m->files[i].room && !m->files[i].exists && strcmp(m->files[i].path, path) == 0)
                m->files[i].exists = true;
    struct memory_file *f = find(m, path);
    if (!f)
        return is_directory(m, path) ? -EISDIR : -ENOENT;
    if (flags & FSDPCK_OPEN_WRITE && !f->room)
        return -EROFS;
    m->nopen++;
    return FIRST_FD + (int)(f - m->files);
}

static int close_file(void *ctx, int fd)
{
    struct memory_io *m = ctx;
    file_of(m, fd);
    assert(m->nopen > 0);
    m->nopen--;
    return 0;
}

static int64_t read_file(void *ctx, int fd, void *buf, uint64_t nbytes, uint64_t offset)
{
    const struct memory_file *f = file_of(ctx, fd);
    if (offset > INT64_MAX || nbytes > INT64_MAX)
        return -EINVAL;
    if (offset >= f->nbytes)
        return 0;
    if (nbytes > f->nbytes - offset)
        nbytes = f->nbytes - offset;
    memcpy(buf, f->data + offset, nbytes);
    return (int64_t)nbytes;
}

static int64_t write_file(void *ctx, int fd, const void *buf, uint64_t nbytes, uint64_t offset)
{
    struct memory_file *f = file_of(ctx, fd);
    if (!f->room || offset > f->room_nbytes || nbytes > f->room_nbytes - offset)
        return -ENOSPC;
    memcpy(f->room + offset, buf, nbytes);
    if (f->nbytes < offset + nbytes)
        f->nbytes = offset + nbytes;
    return (int64_t)nbytes;
}

static int set_nbytes(void *ctx, int fd, uint64_t nbytes)
{
    struct memory_file *f = file_of(ctx, fd);
    if (!f->room || nbytes > f->room_nbytes)
        return -ENOSPC;
    if (nbytes > f->nbytes)
        memset(f->room + f->nbytes, 0, nbytes - f->nbytes);
    f->nbytes = nbytes;
    return 0;
}

static int sync_file(void *ctx, int fd)
{
    file_of(ctx, fd);
    return 0;
}

static int stat_fd(void *ctx, int fd, struct fsdpck_stat *out)
{
    const struct memory_file *f = file_of(ctx, fd);
    *out = (struct fsdpck_stat){ .type = FSDPCK_FILE_REGULAR, .nbytes = f->nbytes, .device = 1, .inode = (uint64_t)fd };
    return 0;
}

static int stat_path(void *ctx, const char *path, bool follow, struct fsdpck_stat *out)
{
    struct memory_io *m = ctx;
    struct memory_file *f = find(m, path);
    (void)follow;
    if (f)
        return stat_fd(ctx, FIRST_FD + (int)(f - m->files), out);
    if (!is_directory(m, path))
        return -ENOENT;
    *out = (struct fsdpck_stat){ .type = FSDPCK_FILE_DIRECTORY, .device = 1, .inode = 1 };
    return 0;
}

/* Returns true if an earlier file has the same first nbytes below dir, up to a '/' or the end. */
static bool listed_before(const struct memory_io *m, size_t number, const char *dir, const char *name, size_t nbytes)
{
    for (size_t i = 0; i < number; i++) {
        const char *rest = m->files[i].exists ? below(m->files[i].path, dir) : NULL;
        if (rest && strcspn(rest, "/") == nbytes && memcmp(rest, name, nbytes) == 0)
            return true;
    }
    return false;
}

static int list(void *ctx, const char *path, fsdpck_list_fn visit, void *visit_ctx)
{
    struct memory_io *m = ctx;
    char name[256];
    if (!is_directory(m, path))
        return find(m, path) ? -ENOTDIR : -ENOENT;
    for (size_t i = 0; i < m->nfiles; i++) {
        const char *rest = m->files[i].exists ? below(m->files[i].path, path) : NULL;
        size_t n = rest ? strcspn(rest, "/") : 0;
        if (n == 0 || n >= sizeof name || listed_before(m, i, path, rest, n))
            continue;
        memcpy(name, rest, n);
        name[n] = '\0';
        int r = visit(visit_ctx, name);
        if (r != 0)
            return r;
    }
    return 0;
}

static int resolve(void *ctx, const char *path, char *out, size_t out_nbytes)
{
    struct memory_io *m = ctx;
    size_t n = strlen(path);
    if (!find(m, path) && !is_directory(m, path))
        return -ENOENT;
    if (n >= out_nbytes)
        return -ENAMETOOLONG;
    memcpy(out, path, n + 1);
    return 0;
}

static int read_only(void)
{
    return -EROFS;
}
static int no_mkdir(void *ctx, const char *path, unsigned mode)
{
    return (void)ctx, (void)path, (void)mode, read_only();
}
static int no_pair(void *ctx, const char *a, const char *b)
{
    return (void)ctx, (void)a, (void)b, read_only();
}
static int no_name(void *ctx, const char *path)
{
    return (void)ctx, (void)path, read_only();
}
static int no_lock(void *ctx, int fd)
{
    return (void)ctx, (void)fd, 0;
}

static int fixed_random(void *ctx, void *buf, size_t nbytes)
{
    (void)ctx;
    memset(buf, 0x5a, nbytes);
    return 0;
}

static int64_t fixed_time(void *ctx)
{
    return (void)ctx, 0;
}

void memory_io_init(struct memory_io *m)
{
    *m = (struct memory_io){
        .io = { .ctx = m,
                .open = open_file,
                .close = close_file,
                .pread = read_file,
                .pread_cached = read_file,
                .pwrite = write_file,
                .truncate = set_nbytes,
                .allocate = set_nbytes,
                .fsync = sync_file,
                .fstat = stat_fd,
                .stat = stat_path,
                .list = list,
                .resolve = resolve,
                .mkdir = no_mkdir,
                .rename = no_pair,
                .rename_new = no_pair,
                .exchange = no_pair,
                .unlink = no_name,
                .rmdir = no_name,
                .lock = no_lock,
                .lock_probe = no_lock,
                .random = fixed_random,
                .now_ns = fixed_time },
    };
}

static struct memory_file *slot(struct memory_io *m, const char *path)
{
    struct memory_file *f = find(m, path);
    assert(f || m->nfiles < MEMORY_MAX_FILES);
    return f ? f : &m->files[m->nfiles++];
}

void memory_io_add(struct memory_io *m, const char *path, const void *data, uint64_t nbytes)
{
    *slot(m, path) = (struct memory_file){ .path = path, .data = data, .nbytes = nbytes, .exists = true };
}

void memory_io_add_room(struct memory_io *m, const char *path, void *room, uint64_t nbytes)
{
    *slot(m, path) = (struct memory_file){ .path = path, .data = room, .room = room, .room_nbytes = nbytes };
}
