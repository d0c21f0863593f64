/* SPDX-License-Identifier: Apache-2.0 */
#include "ui/control.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int control_write(const char *folder, const char *word, struct fsdpck_error *err)
{
    char path[PATH_MAX], made[PATH_MAX];
    const int n = snprintf(path, sizeof path, "%s/control", folder),
              k = snprintf(made, sizeof made, "%s/.control-XXXXXX", folder);
    if (n < 0 || n >= PATH_MAX || k < 0 || k >= PATH_MAX)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, folder, "the path is too long");
    const int fd = mkostemp(made, O_CLOEXEC);
    if (fd < 0)
        return fsdpck_error_sys(err, errno, folder, "write");
    const bool written = write(fd, word, strlen(word)) == (ssize_t)strlen(word);
    const int why = !written ? errno : link(made, path) ? errno : 0;
    close(fd);
    unlink(made);
    if (why == EEXIST)
        return fsdpck_error_set(err, FSDPCK_ERR_EXISTS, path, "the run has not read the last request yet");
    return why ? fsdpck_error_sys(err, why, path, "write") : 0;
}
