/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges of a piece of memory that is given out and taken back: places of adapters beside the base. Knows only
 * offsets. */
#ifndef SERVE_RANGES_H
#define SERVE_RANGES_H

#include <fsdpck/error.h>

struct range {
    size_t first, nbytes;
};

/* Free ranges, ascending and apart. Zero-initialise. */
struct ranges {
    struct range *list; /* (n) owned */
    size_t n, capacity;
};

/* Makes [first, first + nbytes) free. false: out of memory; nothing has changed. */
bool ranges_give(struct ranges *r, size_t first, size_t nbytes);
/* The first free range of nbytes; false: there is none. */
bool ranges_take(struct ranges *r, size_t nbytes, size_t *first);
size_t ranges_largest(const struct ranges *r);
void ranges_free(struct ranges *r);

#endif
