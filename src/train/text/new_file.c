/* SPDX-License-Identifier: Apache-2.0 */
#include "text/new_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH = 4300 };

static const char ending[] = ".tmp-XXXXXX";

/* As open() creates files: mkostemp() lets nobody else read its own. */
static void set_mode(int fd)
{
    const mode_t mask = umask(0);
    umask(mask);
    fchmod(fd, 0666 & ~mask);
}

static FILE *create(char *temporary, struct fsdpck_error *err)
{
    const int fd = mkostemp(temporary, O_CLOEXEC);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "w");
    if (!f) {
        fsdpck_error_sys(err, errno, temporary, "create");
        if (fd >= 0)
            close(fd);
        return NULL;
    }
    set_mode(fd);
    return f;
}

int new_file_write(const char *path, new_file_put_fn *put, const void *ctx, struct fsdpck_error *err)
{
    char temporary[PATH];
    if (snprintf(temporary, sizeof temporary, "%s%s", path, ending) >= PATH)
        return fsdpck_error_set(err, FSDPCK_ERR_LIMIT, path, "the name is too long");
    FILE *f = create(temporary, err);
    if (!f)
        return err ? err->code : FSDPCK_ERR_IO;
    errno = 0;
    const bool written = put(f, ctx) && !ferror(f) && !fflush(f) && !fsync(fileno(f));
    int rc = written ? 0 : fsdpck_error_sys(err, errno ? errno : EIO, temporary, "write");
    if (fclose(f) && !rc)
        rc = fsdpck_error_sys(err, errno, temporary, "close");
    if (!rc && rename(temporary, path))
        rc = fsdpck_error_sys(err, errno, path, "rename");
    if (rc)
        unlink(temporary);
    return rc;
}

/* "step-000001-1.png.tmp-a1B2c3" */
static bool is_unfinished(const char *name, const char *begin)
{
    const size_t n = strlen(name), nending = sizeof ending - 1, nfixed = strcspn(ending, "X");
    return n > nending && strncmp(name, begin, strlen(begin)) == 0 && strncmp(name + n - nending, ending, nfixed) == 0;
}

void new_file_sweep(const char *folder, const char *begin)
{
    DIR *dir = opendir(folder);
    for (struct dirent *e; dir && (e = readdir(dir)) != NULL;)
        if (is_unfinished(e->d_name, begin))
            unlinkat(dirfd(dir), e->d_name, 0);
    if (dir)
        closedir(dir);
}
