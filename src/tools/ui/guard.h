/* SPDX-License-Identifier: Apache-2.0 */
/* Who may ask: the token, and pages of this server only. A page of another site that the browser has open can send
 * requests here; it knows neither the token nor, by a name that it points here, this host. */
#ifndef UI_GUARD_H
#define UI_GUARD_H

#include <stdbool.h>

#include <fsdpck/error.h>

enum { TOKEN_NBYTES = 128 };

struct guard {
    char token[TOKEN_NBYTES]; /* what "Authorization: Bearer" must say */
    char host[256];           /* besides 127.0.0.1, localhost and [::1], a name of this server; "": none */
    bool any_address;         /* it listens on all: any address of the form of a number is its own */
};

/* Headers of a request; NULL: not sent. */
struct guard_headers {
    const char *host, *origin, *site, *authorization, *type;
};

/* changes: the request is no GET. open: it needs no token. Returns 0, or the HTTP status with *why. */
unsigned guard_check(const struct guard *g, const struct guard_headers *h, bool changes, bool open, const char **why);

/* Reads the token of the state folder, or makes one of 128 random bits there, with mode 0600. */
int guard_load_token(struct guard *g, const char *path, struct fsdpck_error *err);
/* Hexadecimal digits of so many random bytes, at most 64. Returns false if the system has none. */
bool guard_random(char *out, size_t nrandom);

#endif
