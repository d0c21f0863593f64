/* SPDX-License-Identifier: Apache-2.0 */
/* A simulation of one rank: its computation, and its link. */
#include "price/overlap.h"

enum { WINDOW = 2048 }; /* more than the largest prefetch, so that gathers ahead have a place */

struct state {
    const struct overlap_use *uses;
    uint32_t nuses, asked;   /* asked: uses whose gathers have been asked for, or need none */
    double at;               /* the computation */
    double link;             /* when the link is free */
    double exchanged;        /* when the last exchange is done */
    double gathered[WINDOW]; /* when the gathers of uses are done, by use mod WINDOW */
};

static double later(double a, double b)
{
    return a > b ? a : b;
}

/* Asks for the gathers that may begin now: `over` uses are over, and use `begun` has begun. */
static void ask(struct state *s, uint32_t begun, uint32_t over)
{
    for (; s->asked < s->nuses && s->asked < begun + WINDOW; s->asked++) {
        const struct overlap_use *u = &s->uses[s->asked];
        if (u->gather > 0 && (u->after > over || s->asked > begun + u->ahead))
            return;
        if (u->gather > 0)
            s->link = later(s->link, s->at) + u->gather;
        s->gathered[s->asked % WINDOW] = u->gather > 0 ? s->link : 0;
    }
}

/* An exchange waits for the one before the last: there are two buffers. */
static void exchange(struct state *s, double seconds)
{
    s->at = later(s->at, s->exchanged);
    s->link = later(s->link, s->at) + seconds;
    s->exchanged = s->link;
}

struct overlap overlap_run(const struct overlap_use *uses, uint32_t nuses)
{
    struct state s = { .uses = uses, .nuses = nuses };
    double computed = 0;
    for (uint32_t u = 0; u < nuses; u++) {
        ask(&s, u, u);
        s.at = later(s.at, s.gathered[u % WINDOW]) + uses[u].compute;
        computed += uses[u].compute;
        ask(&s, u, u + 1);
        if (uses[u].exchange > 0)
            exchange(&s, uses[u].exchange);
    }
    s.at = later(s.at, s.exchanged);
    return (struct overlap){ s.at, s.at - computed };
}
