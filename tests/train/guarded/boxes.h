/* SPDX-License-Identifier: Apache-2.0 */
/* Messages between ranks of one host through shared memory: delivered in the order in which they were sent, in pieces,
 * by the calling thread. Sends and receives of two ranks must match. */
#ifndef GUARDED_BOXES_H
#define GUARDED_BOXES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BOXES_MAX_RANKS = 16 };

/* What a rank sends, and its peer has to wait for. */
struct letter {
    uint64_t turn; /* operations before */
    bool gathers;  /* a part of an all-gather */
    size_t nbytes; /* of the whole letter */
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
    void (*enter)(void), (*leave)(void); /* around what touches data; or NULL */
    void (*die)(const char *what, const char *name);
};

/* The ranks of an id meet. False: there is no shared memory. The caller has set enter, leave and die. */
bool boxes_open(struct boxes *b, const unsigned char *id, uint32_t rank, uint32_t nranks);
void boxes_close(struct boxes *b);
/* Nobody else comes: what is shared goes away with the last rank, however that ends. */
void boxes_shut(const struct boxes *b);
/* Moves what can be moved of posts that are under way together: of those of one kind with one peer the first. Whether
 * anything moved; *left: something is to come. */
bool boxes_pass(const struct boxes *b, struct post *posts, size_t nposts, bool *left);

/* Posts that become one operation. */
struct posts {
    struct post *list;
    size_t n, capacity;
};
void posts_add(struct posts *p, const struct post *post);

#endif
