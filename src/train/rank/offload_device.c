/* SPDX-License-Identifier: Apache-2.0 */
/* Two streams copy, one in each direction. A buffer on the device is used again when the chunk that was in it has been
 * copied back; a pinned buffer is given back to the file then. */
#include "rank/offload_device.h"

#include <stdlib.h>

enum { NBUFFERS = OFFLOAD_DEVICE_BUFFERS, NO_TREE = -1 };

struct buffer {
    struct offload_view on_host, on_device;
    struct kern_event *arrived, *updated, *back;
};

struct offload_device {
    const struct kern_device *device;
    struct offload *offload;
    struct kern_stream *compute, *in, *out;
    uint32_t nheld; /* chunks that are taken and not given back, at most */
    struct buffer buffers[NBUFFERS];
    uint64_t ntaken, ngiven; /* chunks; those between them are on the device */
    float *window;           /* one tree of a chunk */
    float *window_on_host;   /* NULL: the window is closed */
    int64_t window_nelem;
};

static int fail(const char *why, struct fsdpck_error *err)
{
    return fsdpck_error_set(err, FSDPCK_ERR_IO, NULL, "copies of the optimizer state (fsdp.offload): %s", why);
}

static int open_streams(struct offload_device *d, int index, struct fsdpck_error *err)
{
    char message[KERN_MESSAGE_BYTES];
    int rc = d->device->stream_new(index, NULL, &d->in, message);
    if (rc == KERN_OK)
        rc = d->device->stream_new(index, NULL, &d->out, message);
    for (int i = 0; i < NBUFFERS; i++) {
        struct kern_event **events[] = { &d->buffers[i].arrived, &d->buffers[i].updated, &d->buffers[i].back };
        for (int e = 0; e < 3 && rc == KERN_OK; e++)
            rc = d->device->event_new(index, false, events[e], message);
    }
    return rc == KERN_OK ? 0 : fail(message, err);
}

/* Divides the device's memory: the window, then the trees of each buffer. */
static void cut(struct offload_device *d, const struct offload_sizes *sizes, char *memory)
{
    d->window = (float *)(void *)memory;
    memory += sizes->tree_nbytes;
    for (int i = 0; i < NBUFFERS; i++)
        for (int tree = sizes->values ? 0 : 1; tree < OFFLOAD_TREES; tree++, memory += sizes->tree_nbytes)
            d->buffers[i].on_device.trees[tree] = (float *)(void *)memory;
}

int offload_device_new(const struct kern_device *device, int index, const struct offload_sizes *sizes,
                       struct offload *o, struct kern_stream *compute, void *device_memory, struct offload_device **out,
                       struct fsdpck_error *err)
{
    struct offload_device *d = calloc(1, sizeof *d);
    *out = NULL;
    if (!d)
        return fsdpck_error_nomem(err, sizeof *d);
    d->device = device;
    d->offload = o;
    d->compute = compute;
    d->nheld = sizes->nbuffers < NBUFFERS ? (uint32_t)sizes->nbuffers : NBUFFERS;
    cut(d, sizes, device_memory);
    int rc = open_streams(d, index, err);
    if (rc)
        offload_device_free(d);
    else
        *out = d;
    return rc;
}

void offload_device_free(struct offload_device *d)
{
    char message[KERN_MESSAGE_BYTES];
    if (!d)
        return;
    struct kern_stream *streams[] = { d->in, d->out };
    for (int i = 0; i < 2; i++) {
        if (streams[i])
            d->device->stream_sync(streams[i], message);
        d->device->stream_free(streams[i]);
    }
    for (int i = 0; i < NBUFFERS; i++) {
        d->device->event_free(d->buffers[i].arrived);
        d->device->event_free(d->buffers[i].updated);
        d->device->event_free(d->buffers[i].back);
    }
    free(d);
}

static int sync(struct offload_device *d, struct kern_stream *stream, struct fsdpck_error *err)
{
    char message[KERN_MESSAGE_BYTES];
    return d->device->stream_sync(stream, message) == KERN_OK ? 0 : fail(message, err);
}

/* --- the window --- */

/* Copies it on the compute stream, behind the kernels that have changed it and before those that will use it. */
static int copy_window(struct offload_device *d, void *dst, const void *src, struct fsdpck_error *err)
{
    d->device->memory->copy(d->compute, dst, src, (size_t)d->window_nelem * sizeof(float));
    return sync(d, d->compute, err);
}

int offload_device_close(struct offload_device *d, struct fsdpck_error *err)
{
    int rc = d->window_on_host ? copy_window(d, d->window_on_host, d->window, err) : 0;
    d->window_on_host = NULL;
    return rc ? rc : offload_close(d->offload, err);
}

int offload_device_open(struct offload_device *d, int tree, int64_t at, float **data, int64_t *nelem,
                        struct fsdpck_error *err)
{
    float *on_host, *begin;
    const bool moves = !d->window_on_host || !offload_is_open(d->offload, tree, at);
    int rc = moves ? offload_device_close(d, err) : 0;
    if (!rc)
        rc = offload_open(d->offload, tree, at, &on_host, nelem, err);
    if (rc)
        return rc;
    begin = offload_window(d->offload);
    *data = d->window + (on_host - begin);
    if (!moves)
        return 0;
    d->window_on_host = begin;
    d->window_nelem = on_host - begin + *nelem;
    return copy_window(d, d->window, begin, err);
}

/* --- updates --- */

static void copy_trees(struct offload_device *d, const struct buffer *b, bool in)
{
    for (int tree = 0; tree < OFFLOAD_TREES; tree++) {
        void *on_host = b->on_host.trees[tree], *on_device = b->on_device.trees[tree];
        if (on_host)
            d->device->memory->copy(in ? d->in : d->out, in ? on_device : on_host, in ? on_host : on_device,
                                    (size_t)b->on_host.chunk.nelem * sizeof(float));
    }
}

/* Gives chunks back, oldest first, until at most n are held. */
static int give_back(struct offload_device *d, uint32_t n, struct fsdpck_error *err)
{
    while (d->ntaken - d->ngiven > n) {
        if (d->device->event_sync(d->buffers[d->ngiven % NBUFFERS].back) != KERN_OK) {
            int rc = sync(d, d->out, err); /* which knows why */
            return rc ? rc : fail("a copy from the device failed", err);
        }
        offload_give(d->offload);
        d->ngiven++;
    }
    return 0;
}

int offload_device_take(struct offload_device *d, struct offload_view *out, struct fsdpck_error *err)
{
    struct buffer *b = &d->buffers[d->ntaken % NBUFFERS];
    int rc = give_back(d, d->nheld - 1, err);
    if (!rc)
        rc = offload_take(d->offload, &b->on_host, err);
    if (rc)
        return rc;
    b->on_device.chunk = b->on_host.chunk;
    copy_trees(d, b, true);
    d->device->event_record(b->arrived, d->in);
    d->device->event_wait(b->arrived, d->compute);
    *out = b->on_device;
    return 0;
}

void offload_device_give(struct offload_device *d)
{
    struct buffer *b = &d->buffers[d->ntaken % NBUFFERS];
    d->device->event_record(b->updated, d->compute);
    d->device->event_wait(b->updated, d->out);
    copy_trees(d, b, false);
    d->device->event_record(b->back, d->out);
    d->ntaken++;
}

int offload_device_end(struct offload_device *d, struct fsdpck_error *err)
{
    int rc = give_back(d, 0, err);
    if (!rc)
        rc = sync(d, d->in, err);
    return rc ? rc : sync(d, d->out, err);
}
