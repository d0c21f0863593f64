/* A device whose memory the host cannot read: the processor's kernels, and memory that nobody may touch but they, and copies of the table. Whoever reads or writes
 * it with the host's hands ends with a segmentation fault; a kernel that is given other memory ends the program with a word. It proves without a GPU that the
 * trainer keeps the two apart. A module like any other, for tests only. */
#include "links.h"

#include <kernels/memory.h>
#include <kernels/module.h>
#include <kernels/ops.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MAX_REGIONS = 64 };

static struct {
    pthread_mutex_t lock;
    struct region {
        char *data;
        size_t nbytes;
    } regions[MAX_REGIONS];
    unsigned inside; /* kernels and copies that run */
    uint64_t breaks, syncs;
} guard = { .lock = PTHREAD_MUTEX_INITIALIZER };

static const struct kern_device *cpu(void)
{
    char message[KERN_MESSAGE_BYTES];
    return kern_device_find("cpu", message);
}

void guarded_die(const char *what, const char *name)
{
    fprintf(stderr, "guarded: %s: %s\n", what, name);
    abort();
}

/* With the lock. */
static void protect(int rights)
{
    for (int i = 0; i < MAX_REGIONS; i++) {
        if (guard.regions[i].data && mprotect(guard.regions[i].data, guard.regions[i].nbytes, rights))
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

static struct region *find(const void *p)
{
    for (int i = 0; i < MAX_REGIONS; i++) {
        struct region *r = &guard.regions[i];
        if (r->data && (const char *)p >= r->data && (const char *)p < r->data + r->nbytes)
            return r;
    }
    return NULL;
}

/* An operand of a kernel; NULL: left out. */
void guarded_must_own(const char *kernel, const void *p)
{
    pthread_mutex_lock(&guard.lock);
    if (p && !find(p))
        guarded_die("an operand is not in the device's memory", kernel);
    pthread_mutex_unlock(&guard.lock);
}

static int guarded_alloc(struct kern_place place, size_t nbytes, struct kern_buffer *out, char *message)
{
    int rc = cpu()->memory->alloc(place, nbytes, out, message);
    if (rc != KERN_OK || place.kind != KERN_PLACE_DEVICE || nbytes == 0)
        return rc;
    pthread_mutex_lock(&guard.lock);
    struct region *r = NULL;
    for (int i = 0; i < MAX_REGIONS && !r; i++)
        r = guard.regions[i].data ? NULL : &guard.regions[i];
    if (!r)
        guarded_die("too many buffers", "alloc");
    *r = (struct region){ out->data, (nbytes + 4095) / 4096 * 4096 };
    if (!guard.inside && mprotect(r->data, r->nbytes, PROT_NONE))
        guarded_die("mprotect", "failed");
    pthread_mutex_unlock(&guard.lock);
    return KERN_OK;
}

static void guarded_free(struct kern_buffer *buffer)
{
    pthread_mutex_lock(&guard.lock);
    struct region *r = buffer->data ? find(buffer->data) : NULL;
    if (r)
        *r = (struct region){ NULL, 0 };
    pthread_mutex_unlock(&guard.lock);
    cpu()->memory->free(buffer);
}

static void guarded_copy(struct kern_stream *s, void *dst, const void *src, size_t nbytes)
{
    guarded_enter();
    cpu()->memory->copy(s, dst, src, nbytes);
    guarded_leave();
}

static void guarded_copy_rows(struct kern_stream *s, void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t row_bytes, size_t nrow)
{
    guarded_enter();
    cpu()->memory->copy_rows(s, dst, dst_pitch, src, src_pitch, row_bytes, nrow);
    guarded_leave();
}

static void guarded_zero(struct kern_stream *s, void *dst, size_t nbytes)
{
    if (nbytes)
        guarded_must_own("zero", dst);
    guarded_enter();
    cpu()->memory->zero(s, dst, nbytes);
    guarded_leave();
}

static const struct kern_memory guarded_memory = { guarded_alloc, guarded_free, guarded_copy, guarded_copy_rows, guarded_zero };

/* Every operand is looked at, then the processor's kernel runs. */
#define GUARDED(name, params, args, ...) \
    static void guarded_##name params \
    { \
        const void *const operands[] = { __VA_ARGS__ }; \
        for (size_t i = 0; i < sizeof operands / sizeof operands[0]; i++) \
            guarded_must_own(#name, operands[i]); \
        guarded_enter(); \
        cpu()->ops->name args; \
        guarded_leave(); \
    }
#define S struct kern_stream *s

static void guarded_gemm(S, const struct kern_gemm *a)
{
    const void *const operands[] = { a->a.data, a->b.data, a->c.data, a->add.data, a->bias.data };
    for (size_t i = 0; i < sizeof operands / sizeof operands[0]; i++)
        guarded_must_own("gemm", operands[i]);
    for (int i = 0; i < a->nlowrank; i++) {
        guarded_must_own("gemm, low rank", a->lowrank[i].s.data);
        guarded_must_own("gemm, low rank", a->lowrank[i].b.data);
    }
    guarded_enter();
    cpu()->ops->gemm(s, a);
    guarded_leave();
}

static void own_lora(const char *name, const struct kern_lora *a)
{
    const void *const operands[] = { a->x.data, a->dy.data, a->s.data, a->ds.data };
    for (size_t i = 0; i < sizeof operands / sizeof operands[0]; i++)
        guarded_must_own(name, operands[i]);
    for (int i = 0; i < a->nsegments; i++) {
        const struct kern_lora_segment *g = &a->segments[i];
        const void *const parts[] = { g->a.data, g->b.data, g->da, g->db };
        for (size_t k = 0; k < sizeof parts / sizeof parts[0]; k++)
            guarded_must_own(name, parts[k]);
    }
}

#define GUARDED_LORA(name) \
    static void guarded_##name(S, const struct kern_lora *a) \
    { \
        own_lora(#name, a); \
        guarded_enter(); \
        cpu()->ops->name(s, a); \
        guarded_leave(); \
    }

GUARDED_LORA(lora_down)
GUARDED_LORA(lora_up_grad)
GUARDED_LORA(lora_grad_a)
GUARDED_LORA(lora_grad_b)
GUARDED(rmsnorm, (S, const struct kern_rmsnorm *a), (s, a), a->x.data, a->gamma.data, a->y.data, a->rstd)
GUARDED(rmsnorm_grad, (S, const struct kern_rmsnorm_grad *a), (s, a), a->x.data, a->dy.data, a->gamma.data, a->rstd, a->add.data, a->dx.data, a->dgamma, a->scratch)
GUARDED(rope, (S, const struct kern_rope_apply *a), (s, a), a->x.data, a->cosines, a->sines, a->positions)
GUARDED(attention, (S, const struct kern_attention *a), (s, a), a->q.data, a->k.data, a->v.data, a->o.data, a->lse, a->scratch)
GUARDED(attention_grad, (S, const struct kern_attention_grad *a), (s, a), a->q.data, a->k.data, a->v.data, a->o.data, a->d_o.data, a->lse, a->dq.data, a->dk.data,
        a->dv.data, a->scratch)
GUARDED(swiglu, (S, struct kern_mat y, struct kern_cmat g, struct kern_cmat u, int64_t m, int64_t n), (s, y, g, u, m, n), y.data, g.data, u.data)
GUARDED(swiglu_grad, (S, const struct kern_swiglu_grad *a), (s, a), a->gate.data, a->up.data, a->dy.data, a->dgate.data, a->dup.data, a->y.data)
GUARDED(cast, (S, struct kern_mat d, struct kern_cmat x, int64_t m, int64_t n), (s, d, x, m, n), d.data, x.data)
GUARDED(add, (S, struct kern_mat d, struct kern_cmat a, struct kern_cmat b, int64_t m, int64_t n), (s, d, a, b, m, n), d.data, a.data, b.data)
GUARDED(scale, (S, struct kern_mat d, struct kern_cmat x, float f, int64_t m, int64_t n), (s, d, x, f, m, n), d.data, x.data)
GUARDED(sum_rows, (S, float *d, struct kern_cmat x, int64_t m, int64_t n, float *scratch), (s, d, x, m, n, scratch), d, x.data, scratch)
GUARDED(sum, (S, double *d, const float *x, int64_t n), (s, d, x, n), d, x)
GUARDED(gather_rows, (S, struct kern_mat d, struct kern_cmat x, const int32_t *i_, int64_t m, int64_t n, int64_t k), (s, d, x, i_, m, n, k), d.data, x.data, i_)
GUARDED(scatter_rows, (S, struct kern_mat d, struct kern_cmat x, const int32_t *i_, int64_t m, int64_t n, int64_t k), (s, d, x, i_, m, n, k), d.data, x.data, i_)
GUARDED(scatter_add, (S, struct kern_mat d, struct kern_cmat x, const int32_t *i_, int64_t m, int64_t n, int64_t k), (s, d, x, i_, m, n, k), d.data, x.data, i_)
GUARDED(gather_cols, (S, struct kern_mat d, struct kern_cmat x, const int32_t *i_, int64_t m, int64_t n, int64_t k), (s, d, x, i_, m, n, k), d.data, x.data, i_)
GUARDED(scatter_add_cols, (S, struct kern_mat d, struct kern_cmat x, const int32_t *i_, int64_t m, int64_t n, int64_t k), (s, d, x, i_, m, n, k), d.data, x.data, i_)
GUARDED(cross_entropy, (S, const struct kern_cross_entropy *a), (s, a), a->logits.data, a->target, a->loss, a->dlogits.data)
GUARDED(uniform, (S, float *d, int64_t n, struct kern_philox rng, uint64_t at, float low, float high), (s, d, n, rng, at, low, high), d)
GUARDED(dropout, (S, struct kern_mat y, struct kern_cmat x, int64_t m, int64_t n, const struct kern_dropout *a), (s, y, x, m, n, a), y.data, x.data)

GUARDED(attention_one, (S, const struct kern_attention_one *a), (s, a), a->q.data, a->k.data, a->v.data, a->o.data)

static void guarded_adamw(S, const struct kern_adamw *a)
{
    for (size_t i = 0; i < a->nranges; i++) {
        const struct kern_adamw_range *r = &a->ranges[i];
        const void *const operands[] = { r->p, r->m, r->v, r->grad };
        for (size_t k = 0; k < sizeof operands / sizeof operands[0]; k++)
            guarded_must_own("adamw", operands[k]);
    }
    guarded_enter();
    cpu()->ops->adamw(s, a);
    guarded_leave();
}

static void guarded_sum_squares(S, double *out, const struct kern_rows *matrices, size_t nmatrices)
{
    guarded_must_own("sum_squares", out);
    for (size_t i = 0; i < nmatrices; i++)
        guarded_must_own("sum_squares", matrices[i].x.data);
    guarded_enter();
    cpu()->ops->sum_squares(s, out, matrices, nmatrices);
    guarded_leave();
}

static void guarded_gemv(S, const struct kern_gemv *a)
{
    guarded_must_own("gemv", a->x.data);
    for (int i = 0; i < a->nparts; i++) {
        const struct kern_gemv_part *p = &a->parts[i];
        const void *const operands[] = { p->w.data, p->s, p->b.data, p->bias.data, p->add.data, p->y.data };
        for (size_t k = 0; k < sizeof operands / sizeof operands[0]; k++)
            guarded_must_own("gemv", operands[k]);
    }
    guarded_enter();
    cpu()->ops->gemv(s, a);
    guarded_leave();
}

static size_t guarded_attention_scratch(const struct kern_stream *s, const struct kern_attention_shape *shape)
{
    return cpu()->ops->attention_scratch(s, shape);
}

static size_t guarded_attention_grad_scratch(const struct kern_stream *s, const struct kern_attention_shape *shape)
{
    return cpu()->ops->attention_grad_scratch(s, shape);
}

#define OP(name) .name = guarded_##name
static const struct kern_ops guarded_ops = {
    OP(gemm), OP(rmsnorm), OP(rmsnorm_grad), OP(rope), OP(attention_scratch), OP(attention_grad_scratch), OP(attention), OP(attention_grad), OP(swiglu),
    OP(swiglu_grad), OP(cast), OP(add), OP(scale), OP(sum_rows), OP(sum), OP(gather_rows), OP(scatter_rows), OP(scatter_add), OP(gather_cols),
    OP(scatter_add_cols), OP(cross_entropy), OP(lora_down), OP(lora_up_grad), OP(lora_grad_a), OP(lora_grad_b), OP(uniform), OP(dropout), OP(adamw),
    OP(sum_squares), OP(gemv), OP(attention_one),
};

/* What a test asks for: a number, or 0. */
static uint64_t asked(const char *name)
{
    const char *value = getenv(name);
    return value ? strtoull(value, NULL, 10) : 0;
}

/* Streams and events are the processor's. */
static int guarded_stream_new(int index, struct kern_pool *pool, struct kern_stream **out, char *message)
{
    if (index == 1)
        guard.breaks = asked("FSDPTRAIN_GUARDED_BREAKS");
    return cpu()->stream_new(0, pool, out, message);
}

static void guarded_stream_free(struct kern_stream *s)
{
    cpu()->stream_free(s);
}

/* Device 1 fails when it has been waited for so often. */
static int guarded_stream_sync(struct kern_stream *s, char *message)
{
    if (!guard.breaks || __atomic_add_fetch(&guard.syncs, 1, __ATOMIC_RELAXED) < guard.breaks)
        return cpu()->stream_sync(s, message);
    snprintf(message, KERN_MESSAGE_BYTES, "the device is gone");
    return KERN_ERR_DEVICE;
}

static int guarded_stream_status(struct kern_stream *s, char *message)
{
    return cpu()->stream_status(s, message);
}

static int guarded_event_new(int index, struct kern_event **out, char *message)
{
    return cpu()->event_new(index, out, message);
}

static void guarded_event_free(struct kern_event *e)
{
    cpu()->event_free(e);
}

static void guarded_event_record(struct kern_event *e, struct kern_stream *s)
{
    cpu()->event_record(e, s);
}

static void guarded_event_wait(struct kern_event *e, struct kern_stream *s)
{
    cpu()->event_wait(e, s);
}

static int guarded_event_sync(struct kern_event *e)
{
    return cpu()->event_sync(e);
}

static uint64_t guarded_event_elapsed_ns(struct kern_event *from, struct kern_event *to)
{
    return cpu()->event_elapsed_ns(from, to);
}

static const struct kern_device guarded_device = {
    .name = "cuda", .apart = true, .ops = &guarded_ops, .memory = &guarded_memory, .stream_new = guarded_stream_new, .stream_free = guarded_stream_free,
    .stream_sync = guarded_stream_sync, .stream_status = guarded_stream_status, .event_new = guarded_event_new, .event_free = guarded_event_free,
    .event_record = guarded_event_record, .event_wait = guarded_event_wait, .event_sync = guarded_event_sync, .event_elapsed_ns = guarded_event_elapsed_ns,
};

/* Two, so that two ranks have one each, and more ranks share them. */
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
    *out = (struct kern_device_facts){ .total_nbytes = (uint64_t)64 << 30, .free_nbytes = few ? few : (uint64_t)64 << 30 };
    snprintf(out->name, sizeof out->name, "guarded %d", index);
    return KERN_OK;
}

__attribute__((visibility("default"))) const struct kern_module kern_module = {
    .build = KERN_BUILD, .ops_nbytes = sizeof(struct kern_ops), .device_nbytes = sizeof(struct kern_device), .module_nbytes = sizeof(struct kern_module),
    .device = &guarded_device, .links = LINKS, .count = count, .describe = describe,
};
