/* SPDX-License-Identifier: Apache-2.0 */
#include "ui/control.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int path_of(const char *folder, const char *name, char path[PATH_MAX], struct fsdpck_error *err)
{
    const int n = snprintf(path, PATH_MAX, "%s/%s", folder, name);
    return n < 0 || n >= PATH_MAX ? fsdpck_error_set(err, FSDPCK_ERR_USAGE, folder, "the path is too long") : 0;
}

static int refuse(const char *path, struct fsdpck_error *err)
{
    return fsdpck_error_set(err, FSDPCK_ERR_EXISTS, path, "the run has not read the last request yet");
}

int control_check(const char *folder, struct fsdpck_error *err)
{
    char path[PATH_MAX];
    int rc = path_of(folder, "control", path, err);
    return !rc && access(path, F_OK) == 0 ? refuse(path, err) : rc;
}

int control_write(const char *folder, const char *word, struct fsdpck_error *err)
{
    char path[PATH_MAX], made[PATH_MAX];
    int rc = path_of(folder, "control", path, err);
    if (!rc)
        rc = path_of(folder, ".control-XXXXXX", made, err);
    if (rc)
        return rc;
    const int fd = mkostemp(made, O_CLOEXEC);
    if (fd < 0)
        return fsdpck_error_sys(err, errno, folder, "write");
    const bool written = write(fd, word, strlen(word)) == (ssize_t)strlen(word);
    const int why = !written ? errno : link(made, path) ? errno : 0;
    close(fd);
    unlink(made);
    if (why == EEXIST)
        return refuse(path, err);
    return why ? fsdpck_error_sys(err, why, path, "write") : 0;
}
