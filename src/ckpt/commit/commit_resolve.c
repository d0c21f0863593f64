/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the real path of an output: through links, '.', '..' and trailing slashes, whether it exists or not. Tells
 * whether it can be renamed. It does not know what will be written there. */
#include "commit/commit_impl.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"

static int too_long(const char *out, struct fsdpck_error *err)
{
    return fsdpck_error_set(err, FSDPCK_ERR_USAGE, out, "the path is longer than %d bytes", PATH_MAX - 1);
}

/* "a/b//" and "a/b/." -> "a/b". Leaves "/" and "." alone. */
static void trim(char *path)
{
    for (;;) {
        size_t n = strlen(path);
        if (n > 1 && path[n - 1] == '/')
            path[n - 1] = '\0';
        else if (n > 2 && path[n - 1] == '.' && path[n - 2] == '/')
            path[n - 1] = '\0';
        else
            return;
    }
}

/* Moves the last, missing component of `path` to the front of `tail`. */
static int split_missing(const struct fsdpck_io *io, const char *out, char *path, char *tail, struct fsdpck_error *err)
{
    struct fsdpck_stat st;
    char joined[PATH_MAX];
    trim(path);
    if (io->stat(io->ctx, path, false, &st) == 0 && st.type == FSDPCK_FILE_SYMLINK)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, out, "'%s' is a symbolic link to something that does not exist",
                                path);
    char *slash = strrchr(path, '/');
    const char *leaf = slash ? slash + 1 : path;
    if (strcmp(leaf, "..") == 0)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, out,
                                "the path goes up ('..') from a directory that does not exist");
    if (snprintf(joined, sizeof joined, "/%s%s", leaf, tail) >= (int)sizeof joined)
        return too_long(out, err);
    strcpy(tail, joined);
    if (!slash)
        strcpy(path, ".");
    else
        slash[slash == path] = '\0'; /* "/x" -> "/" */
    return 0;
}

/* full: PATH_MAX bytes. realpath() resolves the part that exists; the rest is kept as written. */
static int resolve(const struct fsdpck_io *io, const char *out, char *full, struct fsdpck_error *err)
{
    char path[PATH_MAX], head[PATH_MAX], tail[PATH_MAX] = "";
    if (out[0] == '\0')
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "the output path is empty");
    if (snprintf(path, sizeof path, "%s", out) >= (int)sizeof path)
        return too_long(out, err);
    int rc;
    while ((rc = io->resolve(io->ctx, path, head, sizeof head)) == -ENOENT) {
        rc = split_missing(io, out, path, tail, err);
        if (rc)
            return rc;
    }
    if (rc < 0)
        return fsdpck_error_sys(err, -rc, out, "cannot resolve the path");
    if (strcmp(head, "/") == 0 && tail[0] != '\0')
        head[0] = '\0';
    return snprintf(full, PATH_MAX, "%s%s", head, tail) < PATH_MAX ? 0 : too_long(out, err);
}

int fsdpck_output_resolve(const struct fsdpck_io *io, const char *out, struct commit_output *output,
                          struct fsdpck_error *err)
{
    char full[PATH_MAX];
    memset(output, 0, sizeof *output);
    int rc = resolve(io, out, full, err);
    if (rc)
        return rc;
    const char *slash = strrchr(full, '/');
    output->path = strdup(full);
    output->base = strdup(slash + 1);
    output->parent = strndup(full, slash == full ? 1 : (size_t)(slash - full));
    if (!output->path || !output->base || !output->parent) {
        fsdpck_output_free(output);
        return fsdpck_error_nomem(err, strlen(full) + 1);
    }
    return 0;
}

int fsdpck_commit_resolve(const struct fsdpck_io *io, const char *out, char **path, struct fsdpck_error *err)
{
    struct commit_output output;
    int rc = fsdpck_output_resolve(io, out, &output, err);
    if (rc)
        return rc;
    *path = output.path;
    output.path = NULL;
    fsdpck_output_free(&output);
    return 0;
}

void fsdpck_output_free(struct commit_output *output)
{
    free(output->path);
    free(output->parent);
    free(output->base);
    memset(output, 0, sizeof *output);
}

static char *parent_of(const char *path, struct fsdpck_error *err)
{
    const char *slash = strrchr(path, '/');
    char *parent = strndup(path, slash == path ? 1 : (size_t)(slash - path));
    if (!parent)
        fsdpck_error_nomem(err, strlen(path));
    return parent;
}

/* Makes one directory and its name durable. A directory that another process made meanwhile is fine, but is not added
 * to `made`. */
static int make_one(const struct fsdpck_io *io, const char *path, struct fsdpck_vec *made, struct fsdpck_error *err)
{
    int rc = io->mkdir(io->ctx, path, 0777);
    if (rc == -EEXIST)
        return 0;
    if (rc < 0)
        return fsdpck_error_sys(err, -rc, path, "cannot create the directory");
    rc = fsdpck_strings_add(made, path, err);
    char *parent = parent_of(path, err);
    if (!rc)
        rc = parent ? fsdpck_fsync_path(io, parent, err) : FSDPCK_ERR_NOMEM;
    free(parent);
    return rc;
}

int fsdpck_output_make_parents(const struct fsdpck_io *io, const struct commit_output *output, struct fsdpck_vec *made,
                               struct fsdpck_error *err)
{
    char path[PATH_MAX];
    struct fsdpck_stat st;
    for (size_t n = 1; output->parent[n - 1] != '\0'; n++) {
        if (output->parent[n] != '/' && output->parent[n] != '\0')
            continue;
        memcpy(path, output->parent, n);
        path[n] = '\0';
        if (io->stat(io->ctx, path, true, &st) != -ENOENT)
            continue;
        int rc = make_one(io, path, made, err);
        if (rc)
            return rc;
    }
    return 0;
}

/* mountinfo writes a space, tab, newline or backslash as three octal digits. */
static size_t unescape(char *text, size_t nbytes)
{
    size_t at = 0;
    for (size_t i = 0; i < nbytes; i++) {
        if (text[i] == '\\' && i + 3 < nbytes) {
            text[at++] = (char)((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
            i += 3;
        } else {
            text[at++] = text[i];
        }
    }
    return at;
}

/* Parses one line of /proc/self/mountinfo: the fifth field is the mount point. */
static bool line_mounts(char *line, const char *path)
{
    for (int field = 1; field < 5; field++) {
        line = strchr(line, ' ');
        if (!line)
            return false;
        line++;
    }
    size_t n = unescape(line, strcspn(line, " "));
    return n == strlen(path) && memcmp(line, path, n) == 0;
}

/* A bind mount has the same device as its parent, so only the mount table shows it. */
static bool is_listed_mount(const struct fsdpck_io *io, const char *path)
{
    enum { CHUNK = 16384 };
    char text[CHUNK + 1];
    uint64_t at = 0;
    bool found = false;
    int fd = io->open(io->ctx, "/proc/self/mountinfo", FSDPCK_OPEN_READ, 0);
    while (fd >= 0 && !found) {
        int64_t n = io->pread(io->ctx, fd, text, CHUNK, at);
        if (n == -EINTR)
            continue;
        if (n <= 0)
            break;
        text[n] = '\0';
        char *line = text, *end;
        for (; !found && (end = strchr(line, '\n')) != NULL; line = end + 1) {
            *end = '\0';
            found = line_mounts(line, path);
        }
        /* read the rest of a line again; skip a line that fills the chunk */
        at += (uint64_t)(line > text ? line - text : n);
    }
    if (fd >= 0)
        io->close(io->ctx, fd);
    return found;
}

bool fsdpck_output_is_mount(const struct fsdpck_io *io, const struct commit_output *output)
{
    struct fsdpck_stat own, parent;
    if (output->base[0] == '\0')
        return true;
    if (io->stat(io->ctx, output->path, false, &own) != 0 || io->stat(io->ctx, output->parent, true, &parent) != 0)
        return false;
    return own.device != parent.device || is_listed_mount(io, output->path);
}

bool fsdpck_output_holds_cwd(const struct fsdpck_io *io, const struct commit_output *output)
{
    char cwd[PATH_MAX];
    size_t n = strlen(output->path);
    return io->resolve(io->ctx, ".", cwd, sizeof cwd) == 0 && strncmp(cwd, output->path, n) == 0 &&
           (cwd[n] == '\0' || cwd[n] == '/');
}
