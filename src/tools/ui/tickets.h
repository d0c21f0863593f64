/* SPDX-License-Identifier: Apache-2.0 */
/* Links cannot carry the token. A ticket is part of an address instead: valid once, for a minute, for one file. */
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
    struct ticket list[MOST_TICKETS]; /* a ring: a new ticket replaces the oldest */
    size_t next;
};

/* Fills out->name and out->until, and keeps a copy. Returns false if the system has no random numbers. */
bool tickets_add(struct tickets *t, struct ticket *out);
/* Removes a ticket. Returns false if it does not exist or has expired. */
bool tickets_take(struct tickets *t, const char *name, struct ticket *out);

#endif
