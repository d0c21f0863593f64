/* SPDX-License-Identifier: Apache-2.0 */
#include "ui/listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 64 };

static int fill(const char *address, uint32_t port, struct sockaddr_storage *out, socklen_t *nbytes)
{
    struct sockaddr_in *v4 = (struct sockaddr_in *)out;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;
    memset(out, 0, sizeof *out);
    if (inet_pton(AF_INET, address, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons((uint16_t)port);
        *nbytes = sizeof *v4;
        return 0;
    }
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons((uint16_t)port);
    *nbytes = sizeof *v6;
    return inet_pton(AF_INET6, address, &v6->sin6_addr) == 1 ? 0 : -1;
}

static int fail(int fd, const char *what, struct fsdpck_error *err)
{
    const int why = errno;
    if (fd >= 0)
        close(fd);
    return fsdpck_error_sys(err, why, what, "listen");
}

int listen_address(const char *address, uint32_t *port, int *fd, struct fsdpck_error *err)
{
    struct sockaddr_storage at;
    socklen_t n;
    const int one = 1;
    char what[100];
    if (fill(address, *port, &at, &n))
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, "--listen", "'%s' is no IP address", address);
    snprintf(what, sizeof what, "%.60s, port %u", address, *port);
    *fd = socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*fd < 0 || setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) ||
        bind(*fd, (struct sockaddr *)&at, n) || listen(*fd, BACKLOG))
        return fail(*fd, what, err);
    n = sizeof at;
    if (getsockname(*fd, (struct sockaddr *)&at, &n))
        return fail(*fd, what, err);
    *port = ntohs(at.ss_family == AF_INET ? ((struct sockaddr_in *)&at)->sin_port
                                          : ((struct sockaddr_in6 *)&at)->sin6_port);
    return 0;
}

int listen_path(const char *path, int *fd, struct fsdpck_error *err)
{
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    if (strlen(path) >= sizeof at.sun_path)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, path, "the path of a socket has at most %zu bytes",
                                sizeof at.sun_path - 1);
    memcpy(at.sun_path, path, strlen(path) + 1);
    *fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*fd < 0)
        return fail(*fd, path, err);
    if (connect(*fd, (struct sockaddr *)&at, sizeof at) == 0) {
        errno = EADDRINUSE;
        return fail(*fd, path, err);
    }
    if (errno == ECONNREFUSED) /* a stale socket; other files stay */
        unlink(path);
    const mode_t mask = umask(0177);
    const int rc = bind(*fd, (struct sockaddr *)&at, sizeof at);
    umask(mask);
    return rc || listen(*fd, BACKLOG) ? fail(*fd, path, err) : 0;
}
