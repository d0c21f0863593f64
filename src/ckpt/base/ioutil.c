/* SPDX-License-Identifier: Apache-2.0 */
/* Complete transfers and small conveniences on top of the I/O table. Knows files, not their contents. */
#include "base/ioutil.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/vec.h"

enum { LONGEST_PATH = 4095 };

static int transfer_failed(struct fsdpck_error *err, int64_t rc, const char *file, const char *verb, uint64_t nbytes,
                           uint64_t offset)
{
    char what[96];
    snprintf(what, sizeof what, "cannot %s %llu bytes at %llu", verb, (unsigned long long)nbytes,
             (unsigned long long)offset);
    return fsdpck_error_sys(err, (int)-rc, file, what);
}

static int file_ends(const struct fsdpck_io *io, int fd, const char *file, uint64_t nbytes, uint64_t offset,
                     uint64_t at, struct fsdpck_error *err)
{
    struct fsdpck_stat st;
    if (io->fstat(io->ctx, fd, &st) == 0 && st.nbytes < at)
        at = st.nbytes;
    return fsdpck_error_at(err, FSDPCK_ERR_MISSING, file, at, "file ends at %llu, %llu bytes are wanted at %llu",
                           (unsigned long long)at, (unsigned long long)nbytes, (unsigned long long)offset);
}

int fsdpck_read_full(const struct fsdpck_io *io, int fd, const char *file, void *buf, uint64_t nbytes, uint64_t offset,
                     struct fsdpck_error *err)
{
    for (uint64_t done = 0; done < nbytes;) {
        int64_t n = io->pread(io->ctx, fd, (char *)buf + done, nbytes - done, offset + done);
        if (n == 0)
            return file_ends(io, fd, file, nbytes, offset, offset + done, err);
        if (n < 0 && n != -EINTR)
            return transfer_failed(err, n, file, "read", nbytes - done, offset + done);
        done += n > 0 ? (uint64_t)n : 0;
    }
    return 0;
}

int fsdpck_write_full(const struct fsdpck_io *io, int fd, const char *file, const void *buf, uint64_t nbytes,
                      uint64_t offset, struct fsdpck_error *err)
{
    for (uint64_t done = 0; done < nbytes;) {
        int64_t n = io->pwrite(io->ctx, fd, (const char *)buf + done, nbytes - done, offset + done);
        if (n == 0)
            n = -EIO; /* a write that takes no bytes and reports no error would loop forever */
        if (n < 0 && n != -EINTR)
            return transfer_failed(err, n, file, "write", nbytes - done, offset + done);
        done += n > 0 ? (uint64_t)n : 0;
    }
    return 0;
}

static int fsync_and_close(const struct fsdpck_io *io, int fd, const char *path, struct fsdpck_error *err)
{
    int rc = io->fsync(io->ctx, fd);
    if (rc < 0)
        rc = fsdpck_error_sys(err, -rc, path, "cannot fsync");
    int closed = io->close(io->ctx, fd);
    if (closed < 0 && !rc)
        rc = fsdpck_error_sys(err, -closed, path, "cannot close");
    return rc;
}

int fsdpck_write_file(const struct fsdpck_io *io, const char *path, const void *buf, uint64_t nbytes,
                      struct fsdpck_error *err)
{
    int fd = io->open(io->ctx, path, FSDPCK_OPEN_WRITE | FSDPCK_OPEN_CREATE, 0666);
    if (fd < 0)
        return fsdpck_error_sys(err, -fd, path, "cannot create");
    int rc = fsdpck_write_full(io, fd, path, buf, nbytes, 0, err);
    if (!rc)
        rc = fsync_and_close(io, fd, path, err);
    else
        io->close(io->ctx, fd);
    if (rc)
        io->unlink(io->ctx, path);
    return rc;
}

/* Opens a regular file for reading. Checks the type before opening, since opening a FIFO would wait for a writer. */
static int open_regular(const struct fsdpck_io *io, const char *path, uint64_t *nbytes, struct fsdpck_error *err)
{
    struct fsdpck_stat st;
    int rc = io->stat(io->ctx, path, true, &st);
    if (rc < 0)
        return fsdpck_error_sys(err, -rc, path, "cannot open");
    if (st.type != FSDPCK_FILE_REGULAR)
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path, "this is %s, a regular file is wanted",
                                st.type == FSDPCK_FILE_DIRECTORY ? "a directory" : "a device, pipe or socket");
    int fd = io->open(io->ctx, path, FSDPCK_OPEN_READ, 0);
    if (fd < 0)
        return fsdpck_error_sys(err, -fd, path, "cannot open");
    *nbytes = st.nbytes;
    return fd;
}

int fsdpck_read_file(const struct fsdpck_io *io, const char *path, uint64_t max_nbytes, char **out, uint64_t *nbytes,
                     struct fsdpck_error *err)
{
    char *text = NULL;
    uint64_t n = 0;
    int rc = 0;
    int fd = open_regular(io, path, &n, err);
    if (fd < 0)
        return fd;
    if (n > max_nbytes) {
        rc = fsdpck_error_set(err, FSDPCK_ERR_LIMIT, path, "file has %llu bytes, at most %llu are read",
                              (unsigned long long)n, (unsigned long long)max_nbytes);
        goto out;
    }
    text = n < SIZE_MAX ? malloc((size_t)n + 1) : NULL;
    if (!text) {
        rc = fsdpck_error_nomem(err, (size_t)n + 1);
        goto out;
    }
    rc = fsdpck_read_full(io, fd, path, text, n, 0, err);
    if (rc)
        goto out;
    text[n] = '\0';
    *out = text;
    *nbytes = n;
    text = NULL;
out:
    free(text);
    io->close(io->ctx, fd);
    return rc;
}

int fsdpck_fsync_path(const struct fsdpck_io *io, const char *path, struct fsdpck_error *err)
{
    int fd = io->open(io->ctx, path, FSDPCK_OPEN_READ, 0);
    if (fd < 0)
        return fsdpck_error_sys(err, -fd, path, "cannot open for fsync");
    return fsync_and_close(io, fd, path, err);
}

static bool has_type(const struct fsdpck_io *io, const char *path, enum fsdpck_file_type type)
{
    struct fsdpck_stat st;
    return io->stat(io->ctx, path, true, &st) == 0 && st.type == type;
}

bool fsdpck_is_file(const struct fsdpck_io *io, const char *path)
{
    return has_type(io, path, FSDPCK_FILE_REGULAR);
}

bool fsdpck_is_directory(const struct fsdpck_io *io, const char *path)
{
    return has_type(io, path, FSDPCK_FILE_DIRECTORY);
}

char *fsdpck_path_join(const char *dir, const char *name, struct fsdpck_error *err)
{
    size_t ndir = strlen(dir), nname = strlen(name);
    bool slash = ndir > 0 && dir[ndir - 1] != '/';
    char *path = malloc(ndir + slash + nname + 1);
    if (!path) {
        fsdpck_error_nomem(err, ndir + slash + nname + 1);
        return NULL;
    }
    memcpy(path, dir, ndir);
    if (slash)
        path[ndir] = '/';
    memcpy(path + ndir + slash, name, nname + 1);
    return path;
}

static bool part_is_plain(const char *part, size_t nbytes)
{
    if (nbytes == 0 || (nbytes == 1 && part[0] == '.') || (nbytes == 2 && part[0] == '.' && part[1] == '.'))
        return false;
    for (size_t i = 0; i < nbytes; i++)
        if ((unsigned char)part[i] < 0x20 || part[i] == 0x7F)
            return false;
    return true;
}

bool fsdpck_path_is_plain(const char *path)
{
    if (strnlen(path, LONGEST_PATH + 1) > LONGEST_PATH)
        return false;
    for (;;) {
        size_t nbytes = strcspn(path, "/");
        if (!part_is_plain(path, nbytes))
            return false;
        if (path[nbytes] == '\0')
            return true;
        path += nbytes + 1;
    }
}

struct listing {
    struct fsdpck_vec names; /* char * */
    struct fsdpck_error *err;
};

static int add_name(void *ctx, const char *name)
{
    struct listing *l = ctx;
    char *copy = strdup(name);
    if (!copy)
        return fsdpck_error_nomem(l->err, strlen(name) + 1);
    char **slot = fsdpck_vec_push(&l->names, l->err);
    if (!slot) {
        free(copy);
        return FSDPCK_ERR_NOMEM;
    }
    *slot = copy;
    return 0;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

int fsdpck_list_sorted(const struct fsdpck_io *io, const char *path, char ***names, size_t *count,
                       struct fsdpck_error *err)
{
    struct fsdpck_error nomem = { 0 };
    struct listing l = { FSDPCK_VEC(char *), &nomem };
    int rc = io->list(io->ctx, path, add_name, &l);
    if (rc) {
        fsdpck_list_free(l.names.data, l.names.count);
        if (nomem.code != 0)
            return fsdpck_error_set(err, nomem.code, path, "%s", nomem.message);
        return fsdpck_error_sys(err, -rc, path, "cannot list");
    }
    if (l.names.count > 1)
        qsort(l.names.data, l.names.count, sizeof(char *), compare_names);
    *names = l.names.data;
    *count = l.names.count;
    return 0;
}

void fsdpck_list_free(char **names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(names[i]);
    free(names);
}
