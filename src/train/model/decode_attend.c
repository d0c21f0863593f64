/* SPDX-License-Identifier: Apache-2.0 */
/* Where the keys and values of a sequence are, in one piece or in pages, and the attention to them. */
#include "model/decode_impl.h"

static size_t k_at(const struct decode *d, int64_t number)
{
    return d->kv.pool ? kv_pool_k_at(d->kv.pool)[number] : d->k_at[number];
}

static size_t v_at(const struct decode *d, int64_t number)
{
    return d->kv.pool ? kv_pool_v_at(d->kv.pool)[number] : d->v_at[number];
}

static void *cached(const struct decode *d, size_t at, int64_t ntok)
{
    return kv_row(&d->kv, at, ntok, d->c.m->nkv * d->c.m->head_dim, d->c.dtype);
}

/* The prompt of a sequence in pages: its attention wants one piece. */
static bool is_beside(const struct decode *d)
{
    return d->kv.pool && d->kv.ntok == 0;
}

struct decode_new_rows decode_new_rows(const struct decode *d, int64_t number)
{
    return is_beside(d) ? (struct decode_new_rows){ d->k, d->v }
                        : (struct decode_new_rows){ cached(d, k_at(d, number), d->kv.ntok),
                                                    cached(d, v_at(d, number), d->kv.ntok) };
}

/* Copies the keys and values of a prompt to their pages. */
static void store_prompt(struct decode *d, int64_t number)
{
    const struct compute *c = &d->c;
    const int64_t n = c->batch.ntok, width = c->m->nkv * c->m->head_dim;
    for (int64_t i = 0; i < n; i += d->kv.nrow) {
        const int64_t nrow = n - i < d->kv.nrow ? n - i : d->kv.nrow;
        const size_t nbytes = (size_t)(nrow * width * kern_dtype_bytes(c->dtype));
        c->device->memory->copy(c->stream, cached(d, k_at(d, number), i), compute_row(c, d->k, i, width), nbytes);
        c->device->memory->copy(c->stream, cached(d, v_at(d, number), i), compute_row(c, d->v, i, width), nbytes);
    }
}

static void attend_prompt(struct decode *d, int64_t number, float scale)
{
    struct compute *c = &d->c;
    const struct model *m = c->m;
    const int64_t n = c->batch.ntok, nq = m->nhead * m->head_dim, nkv = m->nkv * m->head_dim, bounds[2] = { 0, n };
    const struct decode_new_rows at = decode_new_rows(d, number);
    const struct kern_attention a = { .shape = { .ntok = n,
                                                 .nhead = m->nhead,
                                                 .nkv = m->nkv,
                                                 .head_dim = m->head_dim,
                                                 .cu_seqlens = bounds,
                                                 .ndoc = 1,
                                                 .window = m->window[number],
                                                 .scale = scale,
                                                 .table = c->batch.documents,
                                                 .sinks = value_of(c, c->l->layers[number].sinks) },
                                      .q = cmat(c, d->q, nq),
                                      .k = cmat(c, at.k, nkv),
                                      .v = cmat(c, at.v, nkv),
                                      .o = mat(c, d->o, nq),
                                      .scratch = c->attention };
    c->device->ops->attention(c->stream, &a);
    if (is_beside(d))
        store_prompt(d, number);
}

static struct kern_pages pages_of(const struct decode *d, int64_t number, int64_t first)
{
    const struct kv *kv = &d->kv;
    return (struct kern_pages){ .list = kv->list + first / kv->nrow,
                                .nrow = kv->nrow,
                                .first = first % kv->nrow,
                                .k_at = k_at(d, number),
                                .v_at = v_at(d, number) };
}

/* The token attends to the cache, including its own key, within the layer's window. */
static void attend_token(struct decode *d, int64_t number, float scale)
{
    struct compute *c = &d->c;
    const struct model *m = c->m;
    const int64_t nq = m->nhead * m->head_dim, nkv = m->nkv * m->head_dim, window = m->window[number],
                  n = d->kv.ntok + 1, first = window && n > window ? n - window : 0;
    struct kern_attention_one a = { .nkeys = n - first,
                                    .nhead = m->nhead,
                                    .nkv = m->nkv,
                                    .head_dim = m->head_dim,
                                    .scale = scale,
                                    .q = cmat(c, d->q, nq),
                                    .k = cmat(c, NULL, nkv),
                                    .v = cmat(c, NULL, nkv),
                                    .o = mat(c, d->o, nq),
                                    .sinks = value_of(c, c->l->layers[number].sinks) };
    if (d->kv.pool) {
        a.pages = pages_of(d, number, first);
    } else {
        a.k.data = cached(d, k_at(d, number), first);
        a.v.data = cached(d, v_at(d, number), first);
    }
    c->device->ops->attention_one(c->stream, &a);
}

void decode_attend(struct decode *d, int64_t number)
{
    const float scale = (float)(1 / __builtin_sqrt((double)d->c.m->head_dim));
    if (d->kv.ntok == 0) /* a prompt has no past */
        attend_prompt(d, number, scale);
    else
        attend_token(d, number, scale);
}
