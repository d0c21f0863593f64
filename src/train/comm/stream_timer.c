/* SPDX-License-Identifier: Apache-2.0 */
/* A list of event pairs that is filled, read and reused. */
#include "comm/stream_timer.h"

#include <stdlib.h>

struct interval {
    struct kern_event *from, *to;
    unsigned kind;
};

struct stream_timer {
    const struct kern_device *device;
    struct interval *intervals; /* (capacity), of which the first n have begun */
    size_t n, capacity;
    uint64_t *ns; /* (nkinds) */
};

int stream_timer_new(const struct kern_device *device, int index, unsigned nkinds, size_t nintervals,
                     struct stream_timer **out, struct fsdpck_error *err)
{
    struct stream_timer *l = calloc(1, sizeof *l);
    char message[KERN_MESSAGE_BYTES] = "no memory";
    *out = NULL;
    if (!l)
        return fsdpck_error_nomem(err, sizeof *l);
    l->device = device;
    l->capacity = nintervals;
    l->intervals = calloc(nintervals, sizeof *l->intervals);
    l->ns = calloc(nkinds, sizeof *l->ns);
    bool there = l->intervals && l->ns;
    for (size_t i = 0; i < nintervals && there; i++)
        there = device->event_new(index, true, &l->intervals[i].from, message) == KERN_OK &&
                device->event_new(index, true, &l->intervals[i].to, message) == KERN_OK;
    if (there) {
        *out = l;
        return 0;
    }
    stream_timer_free(l);
    return fsdpck_error_set(err, FSDPCK_ERR_NOMEM, NULL, "events to take times by: %s", message);
}

void stream_timer_free(struct stream_timer *l)
{
    if (!l)
        return;
    for (size_t i = 0; i < l->capacity && l->intervals; i++) {
        l->device->event_free(l->intervals[i].from);
        l->device->event_free(l->intervals[i].to);
    }
    free(l->intervals);
    free(l->ns);
    free(l);
}

static void ask(struct stream_timer *l)
{
    for (size_t i = 0; i < l->n; i++) {
        const struct interval *interval = &l->intervals[i];
        if (l->device->event_sync(interval->to) == KERN_OK) /* after a device error the run ends with that error */
            l->ns[interval->kind] += l->device->event_elapsed_ns(interval->from, interval->to);
    }
    l->n = 0;
}

void stream_timer_begin(struct stream_timer *l, unsigned kind, struct kern_stream *s)
{
    if (l->n == l->capacity)
        ask(l);
    struct interval *interval = &l->intervals[l->n++];
    interval->kind = kind;
    l->device->event_record(interval->from, s);
}

void stream_timer_end(struct stream_timer *l, struct kern_stream *s)
{
    l->device->event_record(l->intervals[l->n - 1].to, s);
}

uint64_t stream_timer_ns(struct stream_timer *l, unsigned kind)
{
    ask(l);
    return l->ns[kind];
}
