/* SPDX-License-Identifier: Apache-2.0 */
/* Opens files that the user named, and reads small ones as a whole. If a file grows during the read, the read stops at
 * the size that the file had when it was opened. */
#include "text/file.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static int read_all(const char *path, int fd, char *buffer, size_t wanted, size_t *nbytes, struct fsdpck_error *err)
{
    while (*nbytes < wanted) {
        ssize_t n = read(fd, buffer + *nbytes, wanted - *nbytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fsdpck_error_sys(err, errno, path, "read");
        if (n == 0)
            break;
        *nbytes += (size_t)n;
    }
    buffer[*nbytes] = '\0';
    return 0;
}

static const char *kind_of(mode_t mode)
{
    return S_ISDIR(mode)                    ? "a folder"
           : S_ISFIFO(mode)                 ? "a FIFO"
           : S_ISSOCK(mode)                 ? "a socket"
           : S_ISCHR(mode) || S_ISBLK(mode) ? "a device"
                                            : "no file";
}

static int refuse_kind(const char *path, mode_t mode, struct fsdpck_error *err)
{
    fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path, "this is %s; a file is wanted", kind_of(mode));
    if (S_ISFIFO(mode))
        fsdpck_error_hint(err, "files are read more than once: write what comes through it to a file first");
    return FSDPCK_ERR_FORMAT;
}

int text_file_open(const char *path, int *fd, uint64_t *nbytes, struct fsdpck_error *err)
{
    struct stat st;
    *fd = -1;
    if (stat(path, &st))
        return fsdpck_error_sys(err, errno, path, "open");
    if (!S_ISREG(st.st_mode))
        return refuse_kind(path, st.st_mode, err);
    *fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC); /* the path may be a FIFO by now */
    int rc = *fd < 0 || fstat(*fd, &st) ? fsdpck_error_sys(err, errno, path, "open")
             : S_ISREG(st.st_mode)      ? 0
                                        : refuse_kind(path, st.st_mode, err);
    *nbytes = rc ? 0 : (uint64_t)st.st_size;
    if (rc && *fd >= 0) {
        close(*fd);
        *fd = -1;
    }
    return rc;
}

int text_model_folder(const char *path, struct fsdpck_error *err)
{
    struct stat st;
    if (stat(path, &st) && errno != ENOENT && errno != ENOTDIR)
        return fsdpck_error_sys(err, errno, path, "open");
    if (stat(path, &st))
        return fsdpck_error_set(err, FSDPCK_ERR_MISSING, path,
                                "there is no such model; a folder with config.json and weights is wanted, or org/name "
                                "of one in the Hugging Face cache");
    return S_ISDIR(st.st_mode) ? 0
                               : fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path,
                                                  "this is %s; a model is a folder with config.json and weights",
                                                  S_ISREG(st.st_mode) ? "a file" : kind_of(st.st_mode));
}

int text_file_json(const char *path, json_t **out, struct fsdpck_error *err)
{
    enum { MAX_JSON = 1 << 30 };
    json_error_t why;
    size_t nbytes;
    char *text;
    *out = NULL;
    int rc = text_file_read(path, MAX_JSON, &text, &nbytes, err);
    if (rc)
        return rc;
    *out = json_loadb(text, nbytes, JSON_REJECT_DUPLICATES, &why);
    free(text);
    return *out ? 0 : fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path, "line %d: %s", why.line, why.text);
}

int text_file_read(const char *path, size_t max_nbytes, char **out, size_t *nbytes, struct fsdpck_error *err)
{
    uint64_t file_nbytes;
    char *buffer = NULL;
    int fd, rc = text_file_open(path, &fd, &file_nbytes, err);
    *out = NULL;
    *nbytes = 0;
    if (!rc && file_nbytes > max_nbytes)
        rc = fsdpck_error_set(err, FSDPCK_ERR_LIMIT, path, "%llu bytes; at most %zu are read",
                              (unsigned long long)file_nbytes, max_nbytes);
    else if (!rc && !(buffer = malloc((size_t)file_nbytes + 1)))
        rc = fsdpck_error_nomem(err, (size_t)file_nbytes);
    if (!rc)
        rc = read_all(path, fd, buffer, (size_t)file_nbytes, nbytes, err);
    if (fd >= 0)
        close(fd);
    if (rc)
        free(buffer);
    else
        *out = buffer;
    return rc;
}
