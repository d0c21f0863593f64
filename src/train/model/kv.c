/* SPDX-License-Identifier: Apache-2.0 */
#include "model/kv.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "model/bump.h"
#include "model/compute_impl.h"

struct kv_pool {
    const struct kern_device *device;
    struct kern_buffer memory, tables;
    size_t npages, page_nbytes;
    size_t *k_at, *v_at; /* (nlayer) */
    int64_t most;
    float *cosines, *sines; /* (most, rotary dim / 2) */

    pthread_mutex_t mutex; /* of what follows */
    size_t reserved, nfree;
    uint32_t *free;  /* (npages) the first nfree are free; the last is taken next */
    uint32_t *users; /* (npages) sequences that have the page */
};

size_t kv_layout(const struct compute *c, int64_t nrow, size_t *k_at, size_t *v_at)
{
    struct bump v = { 0 };
    const int64_t nelem = nrow * c->m->nkv * c->m->head_dim;
    for (int64_t i = 0; i < c->m->nlayer; i++) {
        const enum kern_dtype dtype = block_dtype(c->l, i);
        if (k_at)
            k_at[i] = v.at;
        bump_acts(&v, dtype, nelem);
        if (v_at)
            v_at[i] = v.at;
        bump_acts(&v, dtype, nelem);
    }
    return v.at;
}

/* ---- The pool */

static int alloc(const struct compute *c, size_t nbytes, struct kern_buffer *out, struct fsdpck_error *err)
{
    const struct kern_location own = { .kind = KERN_MEMORY_DEVICE, .index = c->index, .huge_pages = true };
    char message[KERN_MESSAGE_BYTES] = "";
    if (c->device->memory->alloc(own, nbytes, out, message) == KERN_OK)
        return 0;
    return fsdpck_error_set(err, FSDPCK_ERR_NOMEM, NULL, "no memory for keys and values (%zu bytes): %s", nbytes,
                            message);
}

static int make_lists(struct kv_pool *p, int64_t nlayer, struct fsdpck_error *err)
{
    p->k_at = calloc((size_t)nlayer, sizeof *p->k_at);
    p->v_at = calloc((size_t)nlayer, sizeof *p->v_at);
    p->free = calloc(p->npages, sizeof *p->free);
    p->users = calloc(p->npages, sizeof *p->users);
    if (!p->k_at || !p->v_at || !p->free || !p->users)
        return fsdpck_error_nomem(err, p->npages * sizeof *p->free);
    for (size_t i = 0; i < p->npages; i++)
        p->free[i] = (uint32_t)(p->npages - 1 - i);
    p->nfree = p->npages;
    return 0;
}

static int make_tables(struct kv_pool *p, const struct compute *from, struct fsdpck_error *err)
{
    struct compute c = *from;
    struct bump v = { 0 };
    const int64_t nelem = p->most * c.m->rope.dim / 2;
    bump_floats(&v, nelem);
    bump_floats(&v, nelem);
    int rc = alloc(&c, v.at, &p->tables, err);
    v = (struct bump){ .base = p->tables.data };
    p->cosines = c.cosines = bump_floats(&v, nelem);
    p->sines = c.sines = bump_floats(&v, nelem);
    return rc ? rc : compute_send_rope_tables(&c, p->most, err);
}

int kv_pool_new(const struct compute *from, uint64_t nbytes, int64_t most, struct kv_pool **out,
                struct fsdpck_error *err)
{
    struct kv_pool *p = calloc(1, sizeof *p);
    *out = NULL;
    if (!p)
        return fsdpck_error_nomem(err, sizeof *p);
    pthread_mutex_init(&p->mutex, NULL);
    p->device = from->device;
    p->page_nbytes = kv_layout(from, KV_PAGE, NULL, NULL);
    p->npages = nbytes / p->page_nbytes < UINT32_MAX ? (size_t)(nbytes / p->page_nbytes) : UINT32_MAX;
    p->most = (int64_t)p->npages * KV_PAGE;
    p->most = most && most < p->most ? most : p->most;
    int rc = make_lists(p, from->m->nlayer, err);
    if (!rc)
        rc = alloc(from, p->npages * p->page_nbytes, &p->memory, err);
    if (!rc)
        rc = make_tables(p, from, err);
    if (rc) {
        kv_pool_free(p);
        return rc;
    }
    kv_layout(from, KV_PAGE, p->k_at, p->v_at);
    *out = p;
    return 0;
}

void kv_pool_free(struct kv_pool *p)
{
    if (!p)
        return;
    p->device->memory->free(&p->memory);
    p->device->memory->free(&p->tables);
    pthread_mutex_destroy(&p->mutex);
    free(p->k_at);
    free(p->v_at);
    free(p->free);
    free(p->users);
    free(p);
}

size_t kv_pool_npages(const struct kv_pool *p)
{
    return p->npages;
}

size_t kv_pool_page_nbytes(const struct kv_pool *p)
{
    return p->page_nbytes;
}

int64_t kv_pool_most(const struct kv_pool *p)
{
    return p->most;
}

const size_t *kv_pool_k_at(const struct kv_pool *p)
{
    return p->k_at;
}

const size_t *kv_pool_v_at(const struct kv_pool *p)
{
    return p->v_at;
}

void kv_pool_tables(const struct kv_pool *p, float **cosines, float **sines)
{
    *cosines = p->cosines;
    *sines = p->sines;
}

bool kv_pool_reserve(struct kv_pool *p, size_t npages)
{
    pthread_mutex_lock(&p->mutex);
    const bool fits = npages <= p->npages - p->reserved;
    p->reserved += fits ? npages : 0;
    pthread_mutex_unlock(&p->mutex);
    return fits;
}

bool kv_pool_has(struct kv_pool *p, size_t npages)
{
    pthread_mutex_lock(&p->mutex);
    const bool fits = npages <= p->npages - p->reserved;
    pthread_mutex_unlock(&p->mutex);
    return fits;
}

void kv_pool_release(struct kv_pool *p, size_t npages)
{
    pthread_mutex_lock(&p->mutex);
    p->reserved -= npages;
    pthread_mutex_unlock(&p->mutex);
}

/* ---- Pages */

static uint32_t number_of(const struct kv_pool *p, const void *page)
{
    return (uint32_t)((size_t)((const char *)page - (const char *)p->memory.data) / p->page_nbytes);
}

/* NULL: none is free. */
static void *take(struct kv_pool *p)
{
    void *page = NULL;
    pthread_mutex_lock(&p->mutex);
    if (p->nfree) {
        const uint32_t number = p->free[--p->nfree];
        p->users[number] = 1;
        page = (char *)p->memory.data + number * p->page_nbytes;
    }
    pthread_mutex_unlock(&p->mutex);
    return page;
}

static void drop(struct kv_pool *p, const void *page)
{
    const uint32_t number = number_of(p, page);
    pthread_mutex_lock(&p->mutex);
    if (--p->users[number] == 0)
        p->free[p->nfree++] = number;
    pthread_mutex_unlock(&p->mutex);
}

static bool is_shared(struct kv_pool *p, const void *page)
{
    pthread_mutex_lock(&p->mutex);
    const bool shared = p->users[number_of(p, page)] > 1;
    pthread_mutex_unlock(&p->mutex);
    return shared;
}

/* ---- Sequences */

static int grow_list(struct kv *kv, size_t n, struct fsdpck_error *err)
{
    if (n <= kv->capacity)
        return 0;
    const size_t capacity = n < 2 * kv->capacity ? 2 * kv->capacity : n;
    void **list = realloc(kv->list, capacity * sizeof *list);
    if (!list)
        return fsdpck_error_nomem(err, capacity * sizeof *list);
    kv->list = list;
    kv->capacity = capacity;
    return 0;
}

static int add_page(struct kv *kv, struct fsdpck_error *err)
{
    int rc = grow_list(kv, kv->n + 1, err);
    void *page = rc ? NULL : take(kv->pool);
    if (!rc && !page)
        rc = fsdpck_error_set(err, FSDPCK_ERR_LIMIT, NULL, "all %zu pages of keys and values are taken",
                              kv->pool->npages);
    if (!rc)
        kv->list[kv->n++] = page;
    return rc;
}

/* The new tokens begin in the last page, which others have too. */
static int own_last(struct kv *kv, const struct compute *c, struct fsdpck_error *err)
{
    void *shared = kv->list[--kv->n];
    int rc = add_page(kv, err);
    if (rc) {
        kv->n++;
        return rc;
    }
    c->device->memory->copy(c->stream, kv->list[kv->n - 1], shared, kv->pool->page_nbytes);
    drop(kv->pool, shared);
    return 0;
}

int kv_extend(struct kv *kv, const struct compute *c, int64_t n, struct fsdpck_error *err)
{
    int rc = 0;
    if (!kv->pool)
        return 0;
    if (kv->ntok % kv->nrow && is_shared(kv->pool, kv->list[kv->n - 1]))
        rc = own_last(kv, c, err);
    while (!rc && (int64_t)kv->n * kv->nrow < kv->ntok + n)
        rc = add_page(kv, err);
    return rc;
}

int kv_share(struct kv *to, const struct kv *from, struct fsdpck_error *err)
{
    int rc = grow_list(to, from->n, err);
    if (rc)
        return rc;
    pthread_mutex_lock(&from->pool->mutex);
    for (size_t i = 0; i < from->n; i++) {
        from->pool->users[number_of(from->pool, from->list[i])]++;
        to->list[i] = from->list[i];
    }
    pthread_mutex_unlock(&from->pool->mutex);
    to->pool = from->pool;
    to->nrow = from->nrow;
    to->n = from->n;
    to->ntok = from->ntok;
    return 0;
}

void kv_clear(struct kv *kv)
{
    for (size_t i = 0; kv->pool && i < kv->n; i++)
        drop(kv->pool, kv->list[i]);
    kv->n = kv->pool ? 0 : kv->n;
    kv->ntok = 0;
}

void kv_free(struct kv *kv)
{
    kv_clear(kv);
    free(kv->list);
    *kv = (struct kv){ 0 };
}
