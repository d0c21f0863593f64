/* SPDX-License-Identifier: Apache-2.0 */
#include "ui/tickets.h"

#include <string.h>

#include "ui/guard.h"

enum { SECONDS = 60 };

static time_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec;
}

bool tickets_add(struct tickets *t, struct ticket *out)
{
    if (!guard_random(out->name, 16))
        return false;
    out->until = now() + SECONDS;
    pthread_mutex_lock(&t->mutex);
    t->list[t->next] = *out;
    t->next = (t->next + 1) % MOST_TICKETS;
    pthread_mutex_unlock(&t->mutex);
    return true;
}

bool tickets_take(struct tickets *t, const char *name, struct ticket *out)
{
    bool found = false;
    pthread_mutex_lock(&t->mutex);
    for (size_t i = 0; i < MOST_TICKETS && *name && !found; i++) {
        if (strcmp(t->list[i].name, name) != 0)
            continue;
        *out = t->list[i];
        found = t->list[i].until >= now();
        t->list[i].name[0] = '\0';
    }
    pthread_mutex_unlock(&t->mutex);
    return found;
}
