/* SPDX-License-Identifier: Apache-2.0 */
/* Streams and events of the CPU. Work runs synchronously, so an event is a clock reading, and waiting for one does
 * nothing. */
#include "cpu/stream.h"

#include "cpu/experts.h"
#include "cpu/image.h"
#include "cpu/matmul.h"
#include "cpu/packed_plan.h"
#include "cpu/simd.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct kern_event {
    uint64_t ns;
};

int cpu_fail(struct kern_stream *stream, int status, const char *format, ...)
{
    pthread_mutex_lock(&stream->lock);
    if (!stream->status) {
        va_list ap;
        va_start(ap, format);
        vsnprintf(stream->message, sizeof(stream->message), format, ap);
        va_end(ap);
        stream->status = status;
    }
    status = stream->status;
    pthread_mutex_unlock(&stream->lock);
    return status;
}

static bool grow(struct kern_stream *stream, struct cpu_scratch *s, size_t nbytes)
{
    nbytes = (nbytes + 63) / 64 * 64;
    if (s->nbytes >= nbytes)
        return true;
    free(s->data);
    s->data = aligned_alloc(64, nbytes);
    s->nbytes = s->data ? nbytes : 0;
    if (!s->data)
        cpu_fail(stream, KERN_ERR_MEMORY, "no memory for %zu bytes of a worker's scratch", nbytes);
    return s->data != NULL;
}

bool cpu_reserve(struct kern_stream *stream, size_t nbytes)
{
    for (unsigned i = 0; i < kern_pool_nthreads(stream->pool); i++)
        if (!grow(stream, &stream->scratch[i], nbytes))
            return false;
    return true;
}

static void stream_free(struct kern_stream *stream)
{
    if (!stream)
        return;
    for (unsigned i = 0; stream->scratch && i < kern_pool_nthreads(stream->pool); i++)
        free(stream->scratch[i].data);
    free(stream->scratch);
    cpu_packed_choices_free(stream->choices);
    cpu_matmuls_free(stream->matmuls);
    pthread_mutex_destroy(&stream->lock);
    free(stream);
}

static int stream_new(int index, struct kern_pool *pool, struct kern_stream **out, char *message)
{
    if (index != 0) {
        snprintf(message, KERN_MESSAGE_BYTES, "the CPU is one device, number 0; there is no %d", index);
        return KERN_ERR_DEVICE;
    }
    struct kern_stream *stream = calloc(1, sizeof(*stream));
    int rc = KERN_ERR_MEMORY;
    if (stream) {
        pthread_mutex_init(&stream->lock, NULL);
        stream->pool = pool;
        stream->simd = cpu_simd_best();
        stream->panels[KERN_F32] = cpu_panels_best(KERN_F32);
        stream->panels[KERN_BF16] = cpu_panels_best(KERN_BF16);
        stream->scratch = calloc(kern_pool_nthreads(pool), sizeof(*stream->scratch));
        stream->choices = cpu_packed_choices_new();
        rc = stream->scratch && stream->choices ? cpu_matmuls_new(kern_pool_nthreads(pool), &stream->matmuls, message)
                                                : KERN_ERR_MEMORY;
    }
    if (rc == KERN_ERR_MEMORY)
        snprintf(message, KERN_MESSAGE_BYTES, "no memory for a stream");
    if (!rc)
        *out = stream;
    else
        stream_free(stream);
    return rc;
}

static int stream_status(struct kern_stream *stream, char *message)
{
    if (stream->status)
        memcpy(message, stream->message, sizeof(stream->message));
    return stream->status;
}

static int stream_sync(struct kern_stream *stream, char *message)
{
    int status = stream_status(stream, message);
    stream->status = KERN_OK;
    return status;
}

static int event_new(int index, bool timed, struct kern_event **out, char *message)
{
    (void)index, (void)timed; /* an event is a clock reading, independent of streams */
    struct kern_event *event = calloc(1, sizeof(*event));
    if (!event) {
        snprintf(message, KERN_MESSAGE_BYTES, "no memory for an event");
        return KERN_ERR_MEMORY;
    }
    *out = event;
    return KERN_OK;
}

static void event_free(struct kern_event *event)
{
    free(event);
}

static void event_record(struct kern_event *event, struct kern_stream *stream)
{
    (void)stream; /* the work on the stream has already run */
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    event->ns = (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void event_wait(struct kern_event *event, struct kern_stream *stream)
{
    (void)event, (void)stream; /* the event was reached when it was recorded */
}

static int event_sync(struct kern_event *event)
{
    (void)event;
    return KERN_OK;
}

static uint64_t event_elapsed_ns(struct kern_event *from, struct kern_event *to)
{
    return to->ns - from->ns;
}

const struct kern_device cpu_device = {
    .name = "cpu",
    .row_unit = 1,
    .ops = &cpu_ops,
    .experts = &cpu_expert_ops,
    .images = &cpu_image_ops,
    .memory = &cpu_memory,
    .stream_new = stream_new,
    .stream_free = stream_free,
    .stream_sync = stream_sync,
    .stream_status = stream_status,
    .event_new = event_new,
    .event_free = event_free,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_sync = event_sync,
    .event_elapsed_ns = event_elapsed_ns,
};
