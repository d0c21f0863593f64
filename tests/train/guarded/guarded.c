/* SPDX-License-Identifier: Apache-2.0 */
/* A device whose memory the host cannot read and whose streams run late: the CPU kernels, on memory that only they may
 * access (memory.c), on streams that run when a thread waits for them (late.h). A kernel that gets other memory ends
 * the program with a message. Without a GPU, it proves that the trainer keeps the two memories apart and orders its
 * work by events. A module like any other, for tests only. */
#include "guarded.h"
#include "late.h"

#include <kernels/module.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { NAP_NS = 500000000 };

static struct {
    uint64_t breaks, syncs;
    bool copies; /* only the streams of copies break, which run early */
} device1;
static int current; /* device of this process */

const struct kern_device *guarded_cpu(void)
{
    char message[KERN_MESSAGE_BYTES];
    return kern_device_find("cpu", message);
}

void guarded_die(const char *what, const char *name)
{
    fprintf(stderr, "guarded: %s: %s\n", what, name);
    abort();
}

/* A number from the environment, or 0. */
static uint64_t asked(const char *name)
{
    const char *value = getenv(name);
    return value ? strtoull(value, NULL, 10) : 0;
}

/* FSDPTRAIN_GUARDED_ORDER: "early": all streams but the compute stream run ahead, as far as events allow; "slow": they
 * run late, and the compute stream ahead. Otherwise all run when a thread waits for them. */
static bool order_is(const char *name)
{
    const char *order = getenv("FSDPTRAIN_GUARDED_ORDER");
    return order && strcmp(order, name) == 0;
}

/* The pool is unused, as work does not run synchronously; but only the compute stream has one. */
static int stream_new(int index, struct kern_pool *pool, struct kern_stream **out, char *message)
{
    struct kern_stream *inner;
    if (index == 1) {
        device1.breaks = asked("FSDPTRAIN_GUARDED_BREAKS");
        device1.copies = asked("FSDPTRAIN_GUARDED_BREAKS_COPIES") > 0;
    }
    current = index;
    int rc = guarded_cpu()->stream_new(0, NULL, &inner, message);
    if (rc == KERN_OK && (rc = late_stream_new(inner, order_is(pool ? "slow" : "early"), out, message)) != KERN_OK)
        guarded_cpu()->stream_free(inner);
    return rc;
}

/* FSDPTRAIN_GUARDED_CLOCK: file that receives the final clock of device 0. */
static void tell_clock(void)
{
    const char *path = getenv("FSDPTRAIN_GUARDED_CLOCK");
    FILE *f = path && current == 0 ? fopen(path, "w") : NULL;
    if (f) {
        fprintf(f, "%llu\n", (unsigned long long)late_now_ns());
        fclose(f);
    }
}

static void stream_free(struct kern_stream *s)
{
    if (s)
        guarded_cpu()->stream_free(late_stream_end(s));
    tell_clock();
}

/* Injected fault: device 1 fails after a number of synchronisations. */
static int stream_sync(struct kern_stream *s, char *message)
{
    const struct timespec nap = { 0, NAP_NS };
    if (order_is("slow") && !late_is_early(s))
        nanosleep(&nap, NULL);
    if (device1.breaks && (late_is_early(s) || !device1.copies) &&
        __atomic_add_fetch(&device1.syncs, 1, __ATOMIC_RELAXED) >= device1.breaks) {
        snprintf(message, KERN_MESSAGE_BYTES, "the device is gone");
        return KERN_ERR_DEVICE;
    }
    late_run(s);
    return guarded_cpu()->stream_sync(late_inner(s), message);
}

static int stream_status(struct kern_stream *s, char *message)
{
    return guarded_cpu()->stream_status(late_inner(s), message);
}

static const struct kern_device guarded_device = {
    .name = "cuda",
    .separate_memory = true,
    .row_unit = 1,
    .ops = &guarded_ops,
    .memory = &guarded_memory,
    .experts = &guarded_expert_ops,
    .images = &guarded_image_ops,
    .stream_new = stream_new,
    .stream_free = stream_free,
    .stream_sync = stream_sync,
    .stream_status = stream_status,
    .event_new = late_event_new,
    .event_free = late_event_free,
    .event_record = late_event_record,
    .event_wait = late_event_wait,
    .event_sync = late_event_sync,
    .event_elapsed_ns = late_event_elapsed_ns,
};

/* Two devices: two ranks have one each, more ranks share them. */
static int count(int *ndevices, char *message)
{
    (void)message;
    *ndevices = 2;
    return KERN_OK;
}

static int describe(int index, struct kern_device_facts *out, char *message)
{
    (void)message;
    const uint64_t few = asked("FSDPTRAIN_GUARDED_FREE");
    *out = (struct kern_device_facts){ .id = { (uint64_t)index },
                                       .total_nbytes = (uint64_t)64 << 30,
                                       .free_nbytes = few ? few : (uint64_t)64 << 30 };
    snprintf(out->name, sizeof out->name, "guarded %d", index);
    return KERN_OK;
}

__attribute__((visibility("default"))) const struct kern_module kern_module = {
    .build = KERN_BUILD,
    .ops_nbytes = sizeof(struct kern_ops),
    .device_nbytes = sizeof(struct kern_device),
    .module_nbytes = sizeof(struct kern_module),
    .device = &guarded_device,
    .links = LINKS,
    .count = count,
    .describe = describe,
};
