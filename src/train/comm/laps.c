/* SPDX-License-Identifier: Apache-2.0 */
/* A list of pairs of events that is filled, asked and filled again. */
#include "comm/laps.h"

#include <stdlib.h>

struct lap {
    struct kern_event *from, *to;
    unsigned kind;
};

struct laps {
    const struct kern_device *device;
    struct lap *laps; /* (capacity), the first n of them begun */
    size_t n, capacity;
    uint64_t *ns; /* (nkinds) */
};

int laps_new(const struct kern_device *device, int index, unsigned nkinds, size_t nlaps, struct laps **out, struct fsdpck_error *err)
{
    struct laps *l = calloc(1, sizeof *l);
    char message[KERN_MESSAGE_BYTES] = "no memory";
    *out = NULL;
    if (!l)
        return fsdpck_error_nomem(err, sizeof *l);
    l->device = device;
    l->capacity = nlaps;
    l->laps = calloc(nlaps, sizeof *l->laps);
    l->ns = calloc(nkinds, sizeof *l->ns);
    bool there = l->laps && l->ns;
    for (size_t i = 0; i < nlaps && there; i++)
        there = device->event_new(index, true, &l->laps[i].from, message) == KERN_OK && device->event_new(index, true, &l->laps[i].to, message) == KERN_OK;
    if (there) {
        *out = l;
        return 0;
    }
    laps_free(l);
    return fsdpck_error_set(err, FSDPCK_ERR_NOMEM, NULL, "events to take times by: %s", message);
}

void laps_free(struct laps *l)
{
    if (!l)
        return;
    for (size_t i = 0; i < l->capacity && l->laps; i++) {
        l->device->event_free(l->laps[i].from);
        l->device->event_free(l->laps[i].to);
    }
    free(l->laps);
    free(l->ns);
    free(l);
}

static void ask(struct laps *l)
{
    for (size_t i = 0; i < l->n; i++) {
        const struct lap *lap = &l->laps[i];
        if (l->device->event_sync(lap->to) == KERN_OK) /* else the run ends by what failed */
            l->ns[lap->kind] += l->device->event_elapsed_ns(lap->from, lap->to);
    }
    l->n = 0;
}

void laps_begin(struct laps *l, unsigned kind, struct kern_stream *s)
{
    if (l->n == l->capacity)
        ask(l);
    struct lap *lap = &l->laps[l->n++];
    lap->kind = kind;
    l->device->event_record(lap->from, s);
}

void laps_end(struct laps *l, struct kern_stream *s)
{
    l->device->event_record(l->laps[l->n - 1].to, s);
}

uint64_t laps_ns(struct laps *l, unsigned kind)
{
    ask(l);
    return l->ns[kind];
}
