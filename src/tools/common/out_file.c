/* SPDX-License-Identifier: Apache-2.0 */
#include "common/out_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int out_file_check(const struct out_file *out, struct fsdpck_error *err)
{
    char found[64] = "";
    struct stat st;
    if (lstat(out->path, &st))
        return errno == ENOENT ? 0 : fsdpck_error_sys(err, errno, out->path, "stat");
    const int fd = S_ISREG(st.st_mode) ? open(out->path, O_RDONLY | O_CLOEXEC) : -1;
    const ssize_t n = fd < 0 ? -1 : read(fd, found, sizeof found - 1);
    if (fd >= 0)
        close(fd);
    for (const char *const *head = out->heads; *head && n >= 0; head++)
        if (n == 0 || strncmp(found, *head, strlen(*head)) == 0)
            return 0;
    int rc = fsdpck_error_set(err, FSDPCK_ERR_EXISTS, out->path, "this is no %s, and one would replace it", out->what);
    fsdpck_error_hint(err, "choose another %s", out->option);
    return rc;
}

int out_file_write(const struct out_file *out, struct fsdpck_error *err)
{
    char temporary[PATH_MAX];
    if (!*out->path)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, out->option, "needs the name of a file");
    const int n = snprintf(temporary, sizeof temporary, "%s.tmp-%ld", out->path, (long)getpid());
    if (n < 0 || (size_t)n >= sizeof temporary)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, out->path, "the path is too long");
    int rc = out_file_check(out, err);
    FILE *f = rc ? NULL : fopen(temporary, "wxe");
    if (!f)
        return rc ? rc : fsdpck_error_sys(err, errno, out->path, "create");
    if (!out->put(f, out->ctx))
        rc = fsdpck_error_nomem(err, PATH_MAX);
    else if (fflush(f) || ferror(f) || fsync(fileno(f)))
        rc = fsdpck_error_sys(err, errno ? errno : EIO, temporary, "write");
    if (fclose(f) && !rc)
        rc = fsdpck_error_sys(err, errno, temporary, "close");
    if (!rc && rename(temporary, out->path))
        rc = fsdpck_error_sys(err, errno, out->path, "rename");
    if (rc)
        unlink(temporary);
    return rc;
}
