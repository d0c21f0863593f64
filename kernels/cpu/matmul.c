/* SPDX-License-Identifier: Apache-2.0 */
/* Products by oneDNN. Each shape gets a primitive, cached together with memory objects for each
 * worker, because making them costs more than a small product. A training step has some hundred shapes. Varying numbers
 * of tokens would add primitives of about 130 KB each without end, so the least recently used are evicted. This file
 * must not know of tiles: a call is one product in one thread. */
#include "cpu/matmul.h"

#include "cpu/matmul_desc.h"

#include <kernels/stream.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* From libgomp, which oneDNN is built with. Declared here, because only GCC ships omp.h. */
extern void omp_set_num_threads(int);
extern int omp_get_max_threads(void);

enum { NBUCKET = 1024, NARG = 4, MOST_KEPT = 256 };

struct bound {
    dnnl_memory_t arg[NARG]; /* A, B, C, scratch */
};

struct primitive {
    struct primitive *next;
    struct cpu_matmul shape;
    dnnl_primitive_t primitive;
    dnnl_primitive_desc_t pd;
    size_t scratch_bytes;
    struct bound *bound; /* (nworkers), each made by its worker */
    uint64_t used;       /* value of nasked at the last use */
    unsigned running;    /* workers that are executing it; atomic */
};

struct worker_state {
    dnnl_stream_t stream;
    void *scratch;
    size_t scratch_bytes;
};

struct cpu_matmuls {
    dnnl_engine_t engine;
    unsigned nworkers;
    struct worker_state *workers;
    pthread_mutex_t lock; /* protects the buckets */
    struct primitive *bucket[NBUCKET];
    unsigned nkept;
    uint64_t nasked;
};

int cpu_matmul_enter(void)
{
    int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    return threads;
}

void cpu_matmul_leave(int threads)
{
    omp_set_num_threads(threads);
}

static int fail(char *message, const char *what, dnnl_status_t status)
{
    snprintf(message, KERN_MESSAGE_BYTES, "oneDNN: %s failed with status %d", what, (int)status);
    return status == dnnl_out_of_memory ? KERN_ERR_MEMORY : KERN_ERR_LIBRARY;
}

static void primitive_free(struct primitive *p, unsigned nworkers)
{
    for (unsigned i = 0; p->bound && i < nworkers; i++)
        for (int j = 0; j < NARG; j++)
            if (p->bound[i].arg[j])
                dnnl_memory_destroy(p->bound[i].arg[j]);
    free(p->bound);
    if (p->primitive)
        dnnl_primitive_destroy(p->primitive);
    if (p->pd)
        dnnl_primitive_desc_destroy(p->pd);
    free(p);
}

static int primitive_new(struct cpu_matmuls *matmuls, const struct cpu_matmul *shape, struct primitive **out,
                         char *message)
{
    struct primitive *p = calloc(1, sizeof(*p));
    if (p)
        p->bound = calloc(matmuls->nworkers, sizeof(*p->bound));
    if (!p || !p->bound) {
        free(p);
        return fail(message, "a primitive's memory", dnnl_out_of_memory);
    }
    p->shape = *shape;
    dnnl_status_t status = cpu_matmul_desc(matmuls->engine, shape, &p->pd);
    if (status == dnnl_success)
        status = dnnl_primitive_create(&p->primitive, p->pd);
    if (status != dnnl_success) {
        primitive_free(p, matmuls->nworkers);
        return fail(message, "making a product", status);
    }
    p->scratch_bytes = dnnl_memory_desc_get_size(dnnl_primitive_desc_query_md(p->pd, dnnl_query_scratchpad_md, 0));
    *out = p;
    return KERN_OK;
}

static bool same_shape(const struct cpu_matmul *a, const struct cpu_matmul *b)
{
    return a->m == b->m && a->n == b->n && a->k == b->k && a->lda == b->lda && a->ldb == b->ldb && a->ldc == b->ldc &&
           a->trans_a == b->trans_a && a->trans_b == b->trans_b && a->accumulate == b->accumulate && a->in == b->in &&
           a->out == b->out;
}

static size_t bucket_of(const struct cpu_matmul *s)
{
    const int64_t part[] = { s->m,       s->n,       s->k,          s->lda,         s->ldb,         s->ldc,
                             s->trans_a, s->trans_b, s->accumulate, (int64_t)s->in, (int64_t)s->out };
    uint64_t hash = 14695981039346656037u; /* FNV-1a over 64-bit numbers */
    for (size_t i = 0; i < sizeof(part) / sizeof(part[0]); i++)
        hash = (hash ^ (uint64_t)part[i]) * 1099511628211u;
    return (hash ^ hash >> 32) % NBUCKET;
}

/* Evicts the least recently used primitive that no worker is executing. The caller holds the lock. */
static void drop_oldest(struct cpu_matmuls *matmuls)
{
    struct primitive **oldest = NULL;
    for (size_t i = 0; i < NBUCKET; i++)
        for (struct primitive **p = &matmuls->bucket[i]; *p; p = &(*p)->next)
            if ((!oldest || (*p)->used < (*oldest)->used) && __atomic_load_n(&(*p)->running, __ATOMIC_ACQUIRE) == 0)
                oldest = p;
    if (!oldest)
        return;
    struct primitive *gone = *oldest;
    *oldest = gone->next;
    primitive_free(gone, matmuls->nworkers);
    matmuls->nkept--;
}

static int keep_new(struct cpu_matmuls *matmuls, const struct cpu_matmul *shape, struct primitive **bucket,
                    struct primitive **out, char *message)
{
    if (matmuls->nkept >= MOST_KEPT)
        drop_oldest(matmuls);
    int rc = primitive_new(matmuls, shape, out, message);
    if (rc != KERN_OK)
        return rc;
    (*out)->next = *bucket;
    *bucket = *out;
    matmuls->nkept++;
    return KERN_OK;
}

/* Finds the primitive of a shape, or makes it, and counts the caller in p->running. The caller must decrement
 * p->running after executing it. */
static int find(struct cpu_matmuls *matmuls, const struct cpu_matmul *shape, struct primitive **out, char *message)
{
    struct primitive **bucket = &matmuls->bucket[bucket_of(shape)];
    int rc = KERN_OK;
    pthread_mutex_lock(&matmuls->lock);
    struct primitive *p = *bucket;
    while (p && !same_shape(&p->shape, shape))
        p = p->next;
    if (!p)
        rc = keep_new(matmuls, shape, bucket, &p, message);
    if (rc == KERN_OK) {
        p->used = ++matmuls->nasked;
        __atomic_add_fetch(&p->running, 1, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&matmuls->lock);
    *out = p;
    return rc;
}

static dnnl_status_t bind(const struct cpu_matmuls *matmuls, const struct primitive *p, struct bound *b)
{
    static const dnnl_query_t what[NARG] = { dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_dst_md,
                                             dnnl_query_scratchpad_md };
    for (int i = 0; i < NARG; i++) {
        dnnl_status_t status = b->arg[i]
                                   ? dnnl_success
                                   : dnnl_memory_create(&b->arg[i], dnnl_primitive_desc_query_md(p->pd, what[i], 0),
                                                        matmuls->engine, DNNL_MEMORY_NONE);
        if (status != dnnl_success)
            return status;
    }
    return dnnl_success;
}

/* Sets the addresses in a worker's memory objects. */
static dnnl_status_t point(const struct bound *b, const void *a, const void *bb, void *c, void *scratch)
{
    void *data[NARG];
    memcpy(&data[0], &a, sizeof(a)); /* oneDNN's handles are not const; A and B are only read */
    memcpy(&data[1], &bb, sizeof(bb));
    data[2] = c;
    data[3] = scratch;
    for (int i = 0; i < NARG; i++) {
        dnnl_status_t status = dnnl_memory_set_data_handle(b->arg[i], data[i]);
        if (status != dnnl_success)
            return status;
    }
    return dnnl_success;
}

static bool reserve(struct worker_state *w, size_t nbytes)
{
    if (w->scratch_bytes >= nbytes)
        return true;
    free(w->scratch);
    nbytes = (nbytes + 4095) / 4096 * 4096;
    w->scratch = aligned_alloc(4096, nbytes);
    w->scratch_bytes = w->scratch ? nbytes : 0;
    return w->scratch != NULL;
}

static int execute(const struct cpu_matmuls *matmuls, unsigned worker, struct primitive *p, const void *a,
                   const void *b, void *c, char *message)
{
    struct worker_state *w = &matmuls->workers[worker];
    struct bound *bound = &p->bound[worker];
    if (!reserve(w, p->scratch_bytes))
        return fail(message, "scratch", dnnl_out_of_memory);
    dnnl_status_t status = bind(matmuls, p, bound);
    if (status == dnnl_success)
        status = point(bound, a, b, c, w->scratch);
    if (status != dnnl_success)
        return fail(message, "binding a product's matrices", status);
    dnnl_exec_arg_t args[NARG] = { { DNNL_ARG_SRC, bound->arg[0] },
                                   { DNNL_ARG_WEIGHTS, bound->arg[1] },
                                   { DNNL_ARG_DST, bound->arg[2] },
                                   { DNNL_ARG_SCRATCHPAD, bound->arg[3] } };
    status = dnnl_primitive_execute(p->primitive, w->stream, NARG, args);
    return status == dnnl_success ? KERN_OK : fail(message, "a product", status);
}

int cpu_matmul_run(struct cpu_matmuls *matmuls, unsigned worker, const struct cpu_matmul *shape, const void *a,
                   const void *b, void *c, char *message)
{
    struct primitive *p;
    omp_set_num_threads(1);
    int rc = find(matmuls, shape, &p, message);
    if (rc != KERN_OK)
        return rc;
    rc = execute(matmuls, worker, p, a, b, c, message);
    __atomic_sub_fetch(&p->running, 1, __ATOMIC_RELEASE);
    return rc;
}

int cpu_matmuls_new(unsigned nworkers, struct cpu_matmuls **out, char *message)
{
    struct cpu_matmuls *matmuls = calloc(1, sizeof(*matmuls));
    if (!matmuls)
        return fail(message, "start", dnnl_out_of_memory);
    pthread_mutex_init(&matmuls->lock, NULL);
    matmuls->nworkers = nworkers;
    matmuls->workers = calloc(nworkers, sizeof(*matmuls->workers));
    dnnl_set_primitive_cache_capacity(0); /* oneDNN would cache each a second time */
    dnnl_status_t status = matmuls->workers ? dnnl_engine_create(&matmuls->engine, dnnl_cpu, 0) : dnnl_out_of_memory;
    for (unsigned i = 0; i < nworkers && status == dnnl_success; i++)
        status = dnnl_stream_create(&matmuls->workers[i].stream, matmuls->engine, dnnl_stream_default_flags);
    if (status == dnnl_success) {
        *out = matmuls;
        return KERN_OK;
    }
    cpu_matmuls_free(matmuls);
    return fail(message, "start", status);
}

void cpu_matmuls_free(struct cpu_matmuls *matmuls)
{
    if (!matmuls)
        return;
    for (size_t i = 0; i < NBUCKET; i++)
        for (struct primitive *p = matmuls->bucket[i], *next; p; p = next) {
            next = p->next;
            primitive_free(p, matmuls->nworkers);
        }
    for (unsigned i = 0; matmuls->workers && i < matmuls->nworkers; i++) {
        if (matmuls->workers[i].stream)
            dnnl_stream_destroy(matmuls->workers[i].stream);
        free(matmuls->workers[i].scratch);
    }
    free(matmuls->workers);
    if (matmuls->engine)
        dnnl_engine_destroy(matmuls->engine);
    pthread_mutex_destroy(&matmuls->lock);
    free(matmuls);
}
