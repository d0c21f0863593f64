/* SPDX-License-Identifier: Apache-2.0 */
/* Messages between ranks of one host through shared memory: delivered in the order in which they were sent, in pieces,
 * by the calling thread. Sends and receives of two ranks must match. */
#ifndef GUARDED_BOXES_H
#define GUARDED_BOXES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BOXES_MAX_RANKS = 16 };

/* Header of a message; sender and receiver must agree on it. */
struct letter {
    uint64_t turn; /* number of operations before */
    bool gathers;  /* part of an all-gather */
    size_t nbytes; /* of the whole message */
};

struct post {
    bool sends;
    uint32_t peer;
    char *data;
    struct letter letter;
    size_t done;
};

struct boxes {
    uint32_t rank, nranks;
    struct box *boxes; /* (nranks, nranks): from, to */
    char name[64];
    void (*enter)(void), (*leave)(void); /* called around accesses to data; may be NULL */
    void (*die)(const char *what, const char *name);
};

/* Connects the ranks of an id. Returns false if there is no shared memory. The caller has set enter, leave and die. */
bool boxes_open(struct boxes *b, const unsigned char *id, uint32_t rank, uint32_t nranks);
void boxes_close(struct boxes *b);
/* No other rank will join: the shared memory disappears with the last rank, however that ends. */
void boxes_shut(const struct boxes *b);
/* Advances the posts that are in flight together; of posts of one kind with one peer, the first. Returns true if
 * anything moved. *left: true if any post is unfinished. */
bool boxes_pass(const struct boxes *b, struct post *posts, size_t nposts, bool *left);

/* Posts that form one operation. */
struct posts {
    struct post *list;
    size_t n, capacity;
};
void posts_add(struct posts *p, const struct post *post);

#endif
