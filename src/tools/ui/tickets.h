/* SPDX-License-Identifier: Apache-2.0 */
/* A link cannot send the token. A ticket stands in an address once, for a minute, for one file. */
#ifndef UI_TICKETS_H
#define UI_TICKETS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

enum { TICKET_NBYTES = 33, MOST_TICKETS = 64 };

struct ticket {
    char name[TICKET_NBYTES]; /* "": free */
    int64_t job;
    char file[1024]; /* beneath output_dir; "": the report */
    time_t until;
};

struct tickets {
    pthread_mutex_t mutex;
    struct ticket list[MOST_TICKETS]; /* the oldest makes room */
    size_t next;
};

/* Fills out->name and out->until, and keeps a copy. Returns false if the system has no random numbers. */
bool tickets_add(struct tickets *t, struct ticket *out);
/* Takes it away; false: there is none, or its time is over. */
bool tickets_take(struct tickets *t, const char *name, struct ticket *out);

#endif
