/* SPDX-License-Identifier: Apache-2.0 */
/* Attention on the device: the table of documents, delta, and the choice of the kernels for a call. */
#include "cuda/attention.cuh"

#include "cuda/ops.h"
#include "cuda/reduce.cuh"
#include "cuda/upload.cuh"

namespace {

enum { MOST_HEADS = 65535 }; /* limit of the second dimension of a grid */
enum { TILES = 4 }; /* tile counts are rounded up to a multiple, so that few grids occur; surplus blocks exit at once */

enum { CHUNK = sizeof(upload_words) / sizeof(struct document) };

struct document *docs_of(void *table)
{
    return reinterpret_cast<struct document *>(static_cast<struct counts *>(table) + 1);
}

int32_t tiles_of(const struct kern_attention_shape *s, int64_t doc, int tile_rows)
{
    return doc < s->ndoc ? (int32_t)((s->cu_seqlens[doc + 1] - s->cu_seqlens[doc] + tile_rows - 1) / tile_rows) : 0;
}

bool sound_documents(const struct kern_attention_shape *s)
{
    bool docs = s->ntok >= 0 && s->ntok < INT32_MAX / 2 && s->ndoc > 0 && s->ndoc < INT32_MAX &&
                s->cu_seqlens[0] == 0 && s->cu_seqlens[s->ndoc] == s->ntok;
    for (int64_t d = 0; docs && d < s->ndoc; d++)
        docs = s->cu_seqlens[d] <= s->cu_seqlens[d + 1];
    return docs;
}

bool sound(const struct kern_attention_shape *s)
{
    return s->ntok >= 0 && s->nhead > 0 && s->nkv > 0 && s->nhead % s->nkv == 0 && s->head_dim > 0 && s->window >= 0 &&
           s->nkeys >= 0 && !((s->full || s->nkeys) && s->window) && s->table.data;
}

/* Returns false if there is nothing to do or the stream has failed. */
bool find_packing(struct kern_stream *stream, const struct kern_attention_shape *s, void *scratch, struct packing *p)
{
    if (!cuda_check(stream, sound(s),
                    "attention: heads, window or padding make no sense, or there is no table of documents"))
        return false;
    p->counts = static_cast<const struct counts *>(s->table.data);
    p->docs = docs_of(s->table.data);
    p->delta = static_cast<float *>(scratch);
    return s->ntok > 0 && stream->status == KERN_OK;
}

bool fits_tensor_cores(const struct kern_attention_shape *s, std::initializer_list<operand> all)
{
    return s->head_dim <= 128 && s->nhead <= MOST_HEADS && types_of(all) == ALL_BF16;
}

bool in_vectors(const struct kern_attention_shape *s, std::initializer_list<operand> all)
{
    return s->head_dim % 8 == 0 && aligned(all);
}

enum { LANES = 16 }; /* per token and head */

template <types K>
__global__ void __launch_bounds__(THREADS) sum_delta(struct kern_attention_grad g, float *delta, bool vectors)
{
    const struct kern_attention_shape &s = g.shape;
    const int64_t number = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / LANES, token = number / s.nhead,
                  head = number % s.nhead;
    const bool there = token < s.ntok;
    float sum = 0;
    for (int64_t c = threadIdx.x % LANES * WIDTH; there && c < s.head_dim; c += LANES * WIDTH) {
        const int n = s.head_dim - c < WIDTH ? (int)(s.head_dim - c) : WIDTH;
        const f8 d_o = load8<K>(g.d_o, token, head * s.head_dim + c, n, vectors),
                 o = load8<K>(g.o, token, head * s.head_dim + c, n, vectors);
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            sum += d_o.v[i] * o.v[i];
    }
    sum = group_sum<LANES>(sum);
    if (there && threadIdx.x % LANES == 0)
        delta[head * s.ntok + token] = sum;
}

/* A block takes a head. */
__global__ void __launch_bounds__(THREADS) sum_sinks(struct kern_attention_grad g, const float *delta)
{
    const int64_t head = blockIdx.x, at = head * g.shape.ntok;
    const float sink = load1<MIXED>(g.shape.sinks, 0, head);
    float sum = 0;
    for (int64_t i = threadIdx.x; i < g.shape.ntok; i += THREADS)
        sum += expf(sink - g.lse[at + i]) * delta[at + i];
    sum = block_sum<THREADS>(shared_memory<block_parts<float>>(), sum);
    if (threadIdx.x == 0)
        g.dsinks[head] -= sum;
}

} // namespace

size_t cuda_attention_table_bytes(const struct kern_stream *, const struct kern_attention_shape *s)
{
    return sizeof(struct counts) + (size_t)(s->ndoc + 1) * sizeof(struct document);
}

void cuda_attention_table(struct kern_stream *stream, struct kern_attention_shape *s)
{
    const int tile_rows = stream->warpgroups ? GROUPS_ROWS : WARPS_ROWS;
    if (!cuda_check(stream, sound_documents(s) && s->table.data,
                    "attention: documents make no sense, or there is no room for their table"))
        return;
    struct counts counts = { (int32_t)s->ndoc, 0 };
    for (int64_t from = 0; from <= s->ndoc; from += CHUNK) {
        struct document docs[CHUNK];
        const int n = s->ndoc + 1 - from < CHUNK ? (int)(s->ndoc + 1 - from) : CHUNK;
        for (int i = 0; i < n; i++) {
            docs[i] = document{ (int32_t)s->cu_seqlens[from + i], counts.ntile };
            counts.ntile += tiles_of(s, from + i, tile_rows);
        }
        upload(stream, docs_of(s->table.data) + from, docs, (size_t)n * sizeof(*docs));
    }
    upload(stream, s->table.data, &counts, sizeof(counts));
    s->table.ntile = (counts.ntile + TILES - 1) / TILES * TILES;
}

void cuda_attention_delta(struct kern_stream *stream, const struct kern_attention_grad *g, const struct packing *p,
                          bool vectors)
{
    const dim3 grid = blocks_for(g->shape.ntok * g->shape.nhead, THREADS / LANES);
    switch (types_of({ g->o, g->d_o })) {
    case ALL_F32: launch(stream, sum_delta<ALL_F32>, grid, THREADS, 0, *g, p->delta, vectors); break;
    case ALL_BF16: launch(stream, sum_delta<ALL_BF16>, grid, THREADS, 0, *g, p->delta, vectors); break;
    case MIXED: launch(stream, sum_delta<MIXED>, grid, THREADS, 0, *g, p->delta, vectors); break;
    }
}

size_t cuda_attention_scratch(const struct kern_stream *, const struct kern_attention_shape *)
{
    return 0;
}

size_t cuda_attention_grad_scratch(const struct kern_stream *, const struct kern_attention_shape *s)
{
    return (size_t)(s->nhead * s->ntok) * sizeof(float);
}

void cuda_attention(struct kern_stream *stream, const struct kern_attention *a)
{
    struct packing p;
    const std::initializer_list<operand> all = { a->q, a->k, a->v, a->o };
    const bool vectors = in_vectors(&a->shape, all);
    if (!find_packing(stream, &a->shape, a->scratch, &p))
        return;
    if (!fits_tensor_cores(&a->shape, all))
        cuda_attention_plain(stream, a, &p);
    else if (stream->warpgroups)
        cuda_attention_wgmma(stream, a, &p, vectors);
    else
        cuda_attention_mma(stream, a, &p, vectors);
}

void cuda_attention_grad(struct kern_stream *stream, const struct kern_attention_grad *g)
{
    struct packing p;
    const std::initializer_list<operand> all = { g->q, g->k, g->v, g->o, g->d_o, g->dq, g->dk, g->dv };
    const bool vectors = in_vectors(&g->shape, all);
    if (!find_packing(stream, &g->shape, g->scratch, &p))
        return;
    cuda_attention_delta(stream, g, &p, vectors);
    if (g->dsinks)
        launch(stream, sum_sinks, dim3((unsigned)g->shape.nhead), THREADS, sizeof(block_parts<float>), *g, p.delta);
    if (!fits_tensor_cores(&g->shape, all))
        cuda_attention_plain_grad(stream, g, &p);
    else if (stream->warpgroups)
        cuda_attention_wgmma_grad(stream, g, &p, vectors);
    else
        cuda_attention_mma_grad(stream, g, &p, vectors);
}
