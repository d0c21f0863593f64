/* SPDX-License-Identifier: Apache-2.0 */
/* The keys and values of sequences: in one piece of memory, or in pages of a pool. A page has those of KV_PAGE tokens
 * in all layers. Sequences of one pool may share pages: a page is copied before a sequence that shares it writes to it.
 * A caller that reserves pages before it takes them always finds them. Knows nothing of what computes them. */
#ifndef TRAIN_KV_H
#define TRAIN_KV_H

#include "model/compute.h"

enum { KV_PAGE = 32 }; /* tokens */

/* A pool for sequences of the model of `from`, in up to nbytes of its device's memory, of which the system gives only
 * pages that are used. Threads may share a pool. most: the positions of the model; 0: no limit. */
struct kv_pool;
int kv_pool_new(const struct compute *from, uint64_t nbytes, int64_t most, struct kv_pool **out,
                struct fsdpck_error *err);
void kv_pool_free(struct kv_pool *p); /* NULL does nothing */
size_t kv_pool_npages(const struct kv_pool *p);
/* Bytes of a page. */
size_t kv_pool_page_nbytes(const struct kv_pool *p);
/* Tokens that a sequence may have: what the pages hold, and the model. */
int64_t kv_pool_most(const struct kv_pool *p);
/* The cosines and sines of these positions: (kv_pool_most(), rotary dim / 2). */
void kv_pool_tables(const struct kv_pool *p, float **cosines, float **sines);
/* Reserves pages for the caller, who takes no more than it has reserved. False: too few are left, and none is
 * reserved. */
bool kv_pool_reserve(struct kv_pool *p, size_t npages);
bool kv_pool_has(struct kv_pool *p, size_t npages); /* whether a reservation would succeed */
void kv_pool_release(struct kv_pool *p, size_t npages);
/* The pages of so many tokens. */
static inline size_t kv_pages(int64_t ntok)
{
    return (size_t)((ntok + KV_PAGE - 1) / KV_PAGE);
}

/* Of one sequence. Zeroed: it has nothing. */
struct kv {
    struct kv_pool *pool; /* NULL: one piece, which is its only page */
    void **list;          /* (n) pages */
    size_t n, capacity;
    int64_t nrow, ntok; /* tokens of a page; tokens whose keys and values are there */
};

/* Bytes of a page of nrow tokens. k_at, v_at: (nlayer) bytes from its start to the keys and to the values of a layer;
 * NULL: not wanted. */
size_t kv_layout(const struct compute *c, int64_t nrow, size_t *k_at, size_t *v_at);
/* The offsets of a pool. */
const size_t *kv_pool_k_at(const struct kv_pool *p);
const size_t *kv_pool_v_at(const struct kv_pool *p);
/* Makes room for n more tokens: copies the last page if it is a part and shared, and takes others. Does nothing in one
 * piece. */
int kv_extend(struct kv *kv, const struct compute *c, int64_t n, struct fsdpck_error *err);
/* Gives an empty sequence the pages of another one of the same pool. */
int kv_share(struct kv *to, const struct kv *from, struct fsdpck_error *err);
/* Gives its pages back. */
void kv_clear(struct kv *kv);
/* The same, and frees the list. */
void kv_free(struct kv *kv);

/* The row of token `ntok` in a matrix that begins `at` bytes behind the start of each page; pitch: elements of a row.
 */
static inline void *kv_row(const struct kv *kv, size_t at, int64_t ntok, int64_t pitch, enum kern_dtype dtype)
{
    return (char *)kv->list[ntok / kv->nrow] + at + (size_t)(ntok % kv->nrow * pitch * kern_dtype_bytes(dtype));
}

#endif
