/* SPDX-License-Identifier: Apache-2.0 */
/* A set of digests of states that were judged good. Most crashes leave the same state as another one, so each state is
 * judged once. Aborts if out of memory. */
#ifndef TESTS_SEEN_H
#define TESTS_SEEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct seen {
    uint64_t *digests; /* (capacity), 0: free; a hash table, at most half full */
    size_t count, capacity;
};

bool seen_has(const struct seen *s, uint64_t digest);
void seen_add(struct seen *s, uint64_t digest);
void seen_forget(struct seen *s); /* empties it and frees its memory */

#endif
