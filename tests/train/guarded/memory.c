/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that only kernels and copies may access, while they run. Any other access from the host causes a segmentation
 * fault. */
#include "guarded.h"
#include "late.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MAX_REGIONS = 256 };

/* Device memory; the rest of the host's memory is pageable. */
struct region {
    char *data;
    size_t nbytes;
    enum kern_memory_kind kind;
};

static struct {
    pthread_mutex_t lock;
    struct region regions[MAX_REGIONS];
    unsigned inside; /* kernels and copies that are running */
} guard = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* Call with the lock. */
static void protect(int rights)
{
    for (int i = 0; i < MAX_REGIONS; i++) {
        const struct region *r = &guard.regions[i];
        if (r->data && r->kind == KERN_MEMORY_DEVICE && mprotect(r->data, r->nbytes, rights))
            guarded_die("mprotect", "failed");
    }
}

void guarded_enter(void)
{
    pthread_mutex_lock(&guard.lock);
    if (guard.inside++ == 0)
        protect(PROT_READ | PROT_WRITE);
    pthread_mutex_unlock(&guard.lock);
}

void guarded_leave(void)
{
    pthread_mutex_lock(&guard.lock);
    if (--guard.inside == 0)
        protect(PROT_NONE);
    pthread_mutex_unlock(&guard.lock);
}

/* Call with the lock. */
static struct region *find(const void *p)
{
    for (int i = 0; i < MAX_REGIONS; i++) {
        struct region *r = &guard.regions[i];
        if (r->data && (const char *)p >= r->data && (const char *)p < r->data + r->nbytes)
            return r;
    }
    return NULL;
}

static enum kern_memory_kind kind_of(const void *p)
{
    pthread_mutex_lock(&guard.lock);
    const struct region *r = find(p);
    enum kern_memory_kind kind = r ? r->kind : KERN_MEMORY_HOST;
    pthread_mutex_unlock(&guard.lock);
    return kind;
}

void guarded_must_own(const char *kernel, const void *p)
{
    if (p && kind_of(p) != KERN_MEMORY_DEVICE)
        guarded_die("an operand is not in the device's memory", kernel);
}

static void add_region(struct region region)
{
    struct region *r = NULL;
    pthread_mutex_lock(&guard.lock);
    for (int i = 0; i < MAX_REGIONS && !r; i++)
        r = guard.regions[i].data ? NULL : &guard.regions[i];
    if (!r)
        guarded_die("too many buffers", "alloc");
    *r = region;
    if (region.kind == KERN_MEMORY_DEVICE && !guard.inside && mprotect(r->data, r->nbytes, PROT_NONE))
        guarded_die("mprotect", "failed");
    pthread_mutex_unlock(&guard.lock);
}

static int alloc(struct kern_location location, size_t nbytes, struct kern_buffer *out, char *message)
{
    int rc = guarded_cpu()->memory->alloc(location, nbytes, out, message);
    if (rc == KERN_OK && location.kind != KERN_MEMORY_HOST && nbytes > 0)
        add_region((struct region){ out->data, (nbytes + 4095) / 4096 * 4096, location.kind });
    return rc;
}

static void release(struct kern_buffer *buffer)
{
    pthread_mutex_lock(&guard.lock);
    struct region *r = buffer->data ? find(buffer->data) : NULL;
    if (r)
        *r = (struct region){ 0 };
    pthread_mutex_unlock(&guard.lock);
    guarded_cpu()->memory->free(buffer);
}

struct copy {
    char *dst;
    const char *src;
    size_t nbytes;
    enum kern_memory_kind to, from;
};

static void run_copy(struct kern_stream *s, void *args)
{
    const struct copy *a = args;
    if (kind_of(a->dst) != a->to || kind_of(a->src) != a->from)
        guarded_die("memory was freed before it was used", "copy");
    guarded_cpu()->memory->copy(s, a->dst, a->src, a->nbytes);
}

/* Like CUDA: pageable memory is read, or written, before the call returns. */
static void copy(struct kern_stream *s, void *dst, const void *src, size_t nbytes)
{
    struct copy copy = { dst, src, nbytes, kind_of(dst), kind_of(src) };
    if (nbytes == 0)
        return;
    const size_t span = copy.from == KERN_MEMORY_HOST ? nbytes : 0;
    void *staged;
    struct copy *args = late_copy(&copy, sizeof copy, src, span, &staged);
    if (span > 0)
        args->src = staged;
    late_put(s, run_copy, args);
    if (copy.to == KERN_MEMORY_HOST)
        late_run(s);
}

struct zeroes {
    void *dst;
    size_t nbytes;
};

static void run_zero(struct kern_stream *s, void *args)
{
    const struct zeroes *a = args;
    guarded_must_own("zero", a->dst);
    guarded_cpu()->memory->zero(s, a->dst, a->nbytes);
}

static void zero(struct kern_stream *s, void *dst, size_t nbytes)
{
    const struct zeroes zeroes = { dst, nbytes };
    if (nbytes > 0)
        late_put(s, run_zero, late_copy(&zeroes, sizeof zeroes, NULL, 0, NULL));
}

const struct kern_memory guarded_memory = { alloc, release, copy, zero };
