/* SPDX-License-Identifier: Apache-2.0 */
/* Access control: the token, and the defences against pages of other sites that are open in the same browser. */
#ifndef UI_GUARD_H
#define UI_GUARD_H

#include <stdbool.h>

#include <fsdpck/error.h>

enum { TOKEN_NBYTES = 128 };

struct guard {
    char token[TOKEN_NBYTES]; /* wanted after "Authorization: Bearer " */
    char host[256];           /* another valid name of this server; "": none */
    bool any_address;         /* accept every numeric address: the server listens on all of them */
};

/* Headers of a request; NULL: absent. */
struct guard_headers {
    const char *host, *origin, *site, *authorization, *type;
};

/* changes: the method is not GET. open: the path needs no token. Returns 0, or an HTTP status and *why. */
unsigned guard_check(const struct guard *g, const struct guard_headers *h, bool changes, bool open, const char **why);

/* Reads the token of the state folder, or makes one of 128 random bits there, with mode 0600. */
int guard_load_token(struct guard *g, const char *path, struct fsdpck_error *err);
/* Writes nrandom (at most 64) random bytes as hexadecimal digits. Returns false if the system has no random bytes. */
bool guard_random(char *out, size_t nrandom);

#endif
