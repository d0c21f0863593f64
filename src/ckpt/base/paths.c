/* SPDX-License-Identifier: Apache-2.0 */
/* Computes relative paths between absolute ones, component by component. Text only: callers resolve links first. */
#include "base/paths.h"

#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"

/* Returns the length of the common prefix of a and b, in whole components. */
static size_t common_parts(const char *a, const char *b)
{
    size_t i = 0, last = 0;
    for (;; i++) {
        bool end_a = a[i] == '/' || a[i] == '\0', end_b = b[i] == '/' || b[i] == '\0';
        if (end_a && end_b)
            last = i;
        if (a[i] != b[i] || a[i] == '\0')
            return last;
    }
}

char *fsdpck_path_relative(const char *dir, const char *to, struct fsdpck_error *err)
{
    const char *rest = dir[1] ? dir : "", *tail = to[1] ? to : ""; /* "/" has no component */
    size_t same = common_parts(rest, tail), nup = 0;
    for (const char *p = rest + same; *p; p++)
        nup += *p == '/';
    tail += same + (tail[same] == '/');
    char *relative = malloc(3 * nup + strlen(tail) + 2), *at = relative;
    if (!relative) {
        fsdpck_error_nomem(err, 3 * nup + strlen(tail) + 2);
        return NULL;
    }
    for (size_t i = 0; i < nup; i++)
        at = stpcpy(at, i + 1 < nup || *tail ? "../" : "..");
    strcpy(at, *tail || nup ? tail : ".");
    return relative;
}

static bool starts_with_parent(const char *relative)
{
    return relative[0] == '.' && relative[1] == '.' && (relative[2] == '/' || relative[2] == '\0');
}

char *fsdpck_path_follow(const char *dir, const char *relative, struct fsdpck_error *err)
{
    size_t n = strlen(dir), nbytes = n + strlen(relative) + 2;
    char *path = malloc(nbytes);
    if (!path) {
        fsdpck_error_nomem(err, nbytes);
        return NULL;
    }
    memcpy(path, dir, n + 1);
    for (; starts_with_parent(relative); relative += 2 + (relative[2] == '/'))
        while (n && path[--n] != '/')
            ;
    n -= n && path[n - 1] == '/';
    path[n] = '\0';
    bool stays = strcmp(relative, ".") == 0 || !*relative;
    if (!stays)
        stpcpy(stpcpy(path + n, "/"), relative);
    else if (n == 0)
        strcpy(path, "/");
    return path;
}

bool fsdpck_path_is_relative(const char *relative)
{
    const char *rest = relative;
    while (starts_with_parent(rest))
        rest += 2 + (rest[2] == '/');
    bool ends_up = rest > relative && *rest == '\0' && rest[-1] != '/';
    return strnlen(relative, 4096) < 4096 && (ends_up || strcmp(relative, ".") == 0 || fsdpck_path_is_plain(rest));
}
