/* SPDX-License-Identifier: Apache-2.0 */
#include "ui/guard.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <unistd.h>

/* Copies the name of "NAME:PORT" or "[ADDRESS]:PORT". Returns false if it has no such form. */
static bool split_host(const char *host, char name[256])
{
    const char *end = host[0] == '[' ? strchr(host, ']') : strchr(host, ':');
    size_t n = end ? (size_t)(end - host) + (host[0] == '[') : strlen(host);
    const char *rest = host + n;
    if ((host[0] == '[' && !end) || n == 0 || n >= 256)
        return false;
    if (*rest == ':' && rest[1])
        rest += 1 + strspn(rest + 1, "0123456789");
    memcpy(name, host, n);
    name[n] = '\0';
    return *rest == '\0';
}

static bool is_address(const char *name)
{
    unsigned char bytes[16];
    char inner[256];
    if (name[0] != '[')
        return inet_pton(AF_INET, name, bytes) == 1;
    snprintf(inner, sizeof inner, "%.*s", (int)strcspn(name + 1, "]"), name + 1);
    return inet_pton(AF_INET6, inner, bytes) == 1;
}

/* DNS rebinding: another site can point its own name at this machine, but its name is not in this list. Ports are not
 * compared, as ssh -L changes them. */
static bool is_here(const struct guard *g, const char *host)
{
    char name[256];
    if (!host || !split_host(host, name))
        return false;
    return strcasecmp(name, "localhost") == 0 || strcmp(name, "127.0.0.1") == 0 || strcmp(name, "[::1]") == 0 ||
           (*g->host && strcasecmp(name, g->host) == 0) || (g->any_address && is_address(name));
}

static bool has_token(const struct guard *g, const char *authorization)
{
    static const char scheme[] = "Bearer ";
    const size_t n = strlen(g->token);
    if (!authorization || strncasecmp(authorization, scheme, sizeof scheme - 1) != 0)
        return false;
    const char *given = authorization + sizeof scheme - 1;
    if (strlen(given) != n)
        return false;
    unsigned differs = 0;
    for (size_t i = 0; i < n; i++) /* in constant time */
        differs |= (unsigned char)given[i] ^ (unsigned char)g->token[i];
    return differs == 0;
}

static bool is_same_origin(const struct guard_headers *h)
{
    return !h->origin || (strncmp(h->origin, "http://", 7) == 0 && strcasecmp(h->origin + 7, h->host) == 0);
}

unsigned guard_check(const struct guard *g, const struct guard_headers *h, bool changes, bool open, const char **why)
{
    if (!is_here(g, h->host)) {
        *why = "the name in Host is not one of this server";
        return 421;
    }
    if (!is_same_origin(h) ||
        (!open && h->site && strcmp(h->site, "same-origin") != 0 && strcmp(h->site, "none") != 0)) {
        *why = "the request comes from a page of another server";
        return 403;
    }
    if (!open && !has_token(g, h->authorization)) {
        *why = "the token is missing or wrong; the server printed it when it started";
        return 401;
    }
    /* Browsers send other types across sites without a preflight request. */
    if (changes && (!h->type || (strncasecmp(h->type, "application/json", 16) != 0 &&
                                 strncasecmp(h->type, "application/jsonl", 17) != 0))) {
        *why = "Content-Type must be application/json";
        return 415;
    }
    return 0;
}

bool guard_random(char *out, size_t nrandom)
{
    unsigned char bytes[64];
    if (nrandom > sizeof bytes || getrandom(bytes, nrandom, 0) != (ssize_t)nrandom)
        return false;
    for (size_t i = 0; i < nrandom; i++)
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
    return true;
}

int guard_load_token(struct guard *g, const char *path, struct fsdpck_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    ssize_t n = fd < 0 ? 0 : read(fd, g->token, TOKEN_NBYTES - 1);
    if (fd >= 0)
        close(fd);
    g->token[n > 0 ? n : 0] = '\0';
    g->token[strcspn(g->token, "\r\n")] = '\0';
    if (strlen(g->token) >= 32)
        return 0;
    if (!guard_random(g->token, 16))
        return fsdpck_error_sys(err, errno, "random numbers", "read");
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 || write(fd, g->token, strlen(g->token)) != (ssize_t)strlen(g->token) || close(fd))
        return fsdpck_error_sys(err, errno, path, "write");
    return 0;
}
