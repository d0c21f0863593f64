/* SPDX-License-Identifier: Apache-2.0 */
#include "ui/beneath.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/json_out.h"

enum { MOST_FILES = 4000, MOST_DEPTH = 6, NAME_NBYTES = 1024 };

int beneath_open(const char *folder, const char *name, struct stat *st)
{
    const struct open_how how = { .flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK,
                                  .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS };
    const int root = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int fd = root < 0 ? -1 : (int)syscall(SYS_openat2, root, name, &how, sizeof how);
    if (root >= 0)
        close(root);
    if (fd >= 0 && (fstat(fd, st) || !S_ISREG(st->st_mode))) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int is_shown(const struct dirent *e)
{
    return e->d_name[0] != '.' && strcmp(e->d_name, "cache") != 0;
}

static void walk(const char *folder, const char *prefix, int depth, json_t *out)
{
    struct dirent **list = NULL;
    char path[PATH_MAX], name[NAME_NBYTES];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", folder, prefix);
    const int n = scandir(path, &list, is_shown, by_name);
    for (int i = 0; i < n; i++) {
        const int k = snprintf(name, sizeof name, "%s%s", prefix, list[i]->d_name);
        const int m = snprintf(path, sizeof path, "%s/%s", folder, name);
        free(list[i]);
        if (k < 0 || k >= NAME_NBYTES - 1 || m < 0 || m >= PATH_MAX || json_array_size(out) >= MOST_FILES ||
            lstat(path, &st))
            continue;
        if (S_ISREG(st.st_mode)) {
            json_out_append(out, json_pack("{s:o, s:I}", "name", json_out_text(name), "bytes", (json_int_t)st.st_size));
        } else if (S_ISDIR(st.st_mode) && depth < MOST_DEPTH) {
            strcat(name, "/");
            walk(folder, name, depth + 1, out);
        }
    }
    free(list);
}

json_t *beneath_list(const char *folder)
{
    json_t *out = json_array();
    if (out)
        walk(folder, "", 0, out);
    return out;
}
