/* SPDX-License-Identifier: Apache-2.0 */
/* Uploads are locked while they arrive, as another server may use the same folder of runs. */
#include "ui/leftovers.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

static void remove_unlocked(const char *folder, const char *prefix)
{
    DIR *d = opendir(folder);
    const struct dirent *e;
    while (d && (e = readdir(d))) {
        if (strncmp(e->d_name, prefix, strlen(prefix)) != 0)
            continue;
        const int fd = openat(dirfd(d), e->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
            unlinkat(dirfd(d), e->d_name, 0);
        if (fd >= 0)
            close(fd);
    }
    if (d)
        closedir(d);
}

void leftovers_remove(const struct ui *ui)
{
    remove_unlocked(ui->dir, ".upload-");
    remove_unlocked(ui->state, "plan-");
}
