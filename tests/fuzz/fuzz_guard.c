/* SPDX-License-Identifier: Apache-2.0 */
/* Headers of a request to `fsdptrain ui`: a byte of options, then Host, Origin, Sec-Fetch-Site, Authorization and
 * Content-Type, each ended by a zero byte; an empty one is absent. Properties: a request that is let in names this
 * server in Host, comes from no other origin, has the token, and cannot have been sent across sites by a form. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "fuzz.h"
#include "ui/guard.h"

enum { NHEADERS = 5 };

static bool is_number(const char *name)
{
    unsigned char bytes[16];
    char inner[300];
    if (inet_pton(AF_INET, name, bytes) == 1)
        return true;
    const size_t n = strlen(name);
    if (n < 2 || n >= sizeof inner || name[0] != '[' || name[n - 1] != ']')
        return false;
    snprintf(inner, sizeof inner, "%.*s", (int)n - 2, name + 1);
    return inet_pton(AF_INET6, inner, bytes) == 1;
}

/* Whether Host is one of the names, with a port or without. */
static bool names_server(const struct guard *g, const char *host)
{
    static const char *const names[] = { "localhost", "127.0.0.1", "[::1]" };
    char name[300];
    const char *colon = strrchr(host, ':');
    const bool port = colon && colon[1 + strspn(colon + 1, "0123456789")] == '\0' && colon[1];
    const size_t n = port ? (size_t)(colon - host) : strlen(host);
    if (n >= sizeof name)
        return false;
    memcpy(name, host, n);
    name[n] = '\0';
    for (size_t i = 0; i < 3; i++)
        if (strcasecmp(name, names[i]) == 0 || strcasecmp(host, names[i]) == 0)
            return true;
    if (strcasecmp(name, g->host) == 0)
        return true;
    return g->any_address && (is_number(name) || is_number(host));
}

static void check_admitted(const struct guard *g, const struct guard_headers *h, bool changes, bool open)
{
    char origin[600], words[200];
    FUZZ_CHECK(h->host && names_server(g, h->host));
    if (h->origin) {
        snprintf(origin, sizeof origin, "http://%s", h->host);
        FUZZ_CHECK(strcasecmp(h->origin, origin) == 0);
    }
    snprintf(words, sizeof words, "Bearer %s", g->token);
    FUZZ_CHECK(open || (h->authorization && strcasecmp(h->authorization, words) == 0));
    FUZZ_CHECK(open || !h->site || strcmp(h->site, "cross-site") != 0);
    FUZZ_CHECK(!changes || (h->type && strncasecmp(h->type, "application/json", 16) == 0));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    struct guard g = { .token = "0123456789abcdef", .host = "node7" };
    const char *at[NHEADERS] = { NULL }, *why = NULL;
    if (!nbytes)
        return 0;
    const uint8_t options = data[0];
    char *text = fuzz_text(data + 1, nbytes - 1), *next = text, *end = text + nbytes - 1;
    for (size_t i = 0; i < NHEADERS && next <= end; i++) {
        at[i] = *next ? next : NULL;
        next += strlen(next) + 1;
    }
    const struct guard_headers h = { at[0], at[1], at[2], at[3], at[4] };
    const bool changes = options & 1, open = options & 2;
    g.any_address = options & 4;
    const unsigned code = guard_check(&g, &h, changes, open, &why);
    FUZZ_CHECK(code == 0 || why);
    FUZZ_CHECK(code == 0 || code == 401 || code == 403 || code == 415 || code == 421);
    if (!code)
        check_admitted(&g, &h, changes, open);
    free(text);
    return 0;
}
