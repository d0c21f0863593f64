/* Attention: the table of documents, delta, and the choice between the rows. */
#include "cuda/attention.cuh"

#include "cuda/ops.h"
#include "cuda/reduce.cuh"

namespace {

enum { MOST_HEADS = 65535 }; /* of a grid's second dimension */

/* A table travels as arguments of launches: the host's copy need not live on, and a graph can replay it. */
enum { CHUNK = 400 };

struct chunk {
    struct document docs[CHUNK];
};

__global__ void __launch_bounds__(THREADS) write_documents(struct document *to, chunk c, int n)
{
    for (int i = (int)threadIdx.x; i < n; i += THREADS)
        to[i] = c.docs[i];
}

size_t table_bytes(const struct kern_attention_shape *s)
{
    return ((size_t)(s->ndoc + 1) * sizeof(struct document) + 255) / 256 * 256;
}

bool sound(const struct kern_attention_shape *s)
{
    const bool heads = s->ntok >= 0 && s->nhead > 0 && s->nkv > 0 && s->nhead % s->nkv == 0 && s->head_dim > 0 && s->window >= 0;
    bool docs = heads && s->ntok < INT32_MAX / 2 && s->ndoc > 0 && s->ndoc < INT32_MAX && s->cu_seqlens[0] == 0 && s->cu_seqlens[s->ndoc] == s->ntok;
    for (int64_t d = 0; docs && d < s->ndoc; d++)
        docs = s->cu_seqlens[d] <= s->cu_seqlens[d + 1];
    return docs;
}

bool fits_tensor_cores(const struct kern_attention_shape *s, std::initializer_list<operand> all)
{
    return s->head_dim <= 128 && s->nhead <= MOST_HEADS && types_of(all) == ALL_BF16;
}

bool in_vectors(const struct kern_attention_shape *s, std::initializer_list<operand> all)
{
    return s->head_dim % 8 == 0 && aligned(all);
}

template <types K> __global__ void __launch_bounds__(THREADS) sum_delta(struct kern_attention_grad g, float *delta)
{
    const struct kern_attention_shape &s = g.shape;
    const int64_t warp = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / WARP, token = warp / s.nhead, head = warp % s.nhead;
    if (warp >= s.ntok * s.nhead)
        return;
    float sum = 0;
    for (int64_t c = threadIdx.x % WARP; c < s.head_dim; c += WARP)
        sum += load1<K>(g.d_o, token, head * s.head_dim + c) * load1<K>(g.o, token, head * s.head_dim + c);
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0)
        delta[head * s.ntok + token] = sum;
}

} // namespace

size_t cuda_attention_bytes(const struct kern_attention_shape *s, bool delta)
{
    return table_bytes(s) + (delta ? (size_t)(s->nhead * s->ntok) * sizeof(float) : 0);
}

bool cuda_attention_pack(struct kern_stream *stream, const struct kern_attention_shape *s, void *scratch, struct packing *p)
{
    const int tile_rows = stream->warpgroups ? GROUPS_ROWS : WARPS_ROWS;
    if (!cuda_check(stream, sound(s), "attention: heads, documents or window make no sense") || s->ntok == 0)
        return false;
    struct document *table = static_cast<struct document *>(scratch);
    int32_t ntile = 0;
    for (int64_t from = 0; from <= s->ndoc; from += CHUNK) {
        chunk c = {};
        const int n = s->ndoc + 1 - from < CHUNK ? (int)(s->ndoc + 1 - from) : CHUNK;
        for (int i = 0; i < n; i++) {
            const int64_t d = from + i, last = d < s->ndoc ? d + 1 : d;
            c.docs[i] = document{(int32_t)s->cu_seqlens[d], ntile};
            ntile += (int32_t)((s->cu_seqlens[last] - s->cu_seqlens[d] + tile_rows - 1) / tile_rows);
        }
        launch(stream, write_documents, dim3(1), THREADS, 0, table + from, c, n);
    }
    p->docs = table;
    p->delta = reinterpret_cast<float *>(static_cast<char *>(scratch) + table_bytes(s));
    p->ndoc = (int32_t)s->ndoc;
    p->ntile = ntile;
    return stream->status == KERN_OK;
}

void cuda_attention_delta(struct kern_stream *stream, const struct kern_attention_grad *g, const struct packing *p)
{
    const dim3 grid = blocks_for(g->shape.ntok * g->shape.nhead, THREADS / WARP);
    switch (types_of({g->o, g->d_o})) {
    case ALL_F32:
        launch(stream, sum_delta<ALL_F32>, grid, THREADS, 0, *g, p->delta);
        break;
    case ALL_BF16:
        launch(stream, sum_delta<ALL_BF16>, grid, THREADS, 0, *g, p->delta);
        break;
    case MIXED:
        launch(stream, sum_delta<MIXED>, grid, THREADS, 0, *g, p->delta);
        break;
    }
}

size_t cuda_attention_scratch(const struct kern_stream *, const struct kern_attention_shape *s)
{
    return cuda_attention_bytes(s, false);
}

size_t cuda_attention_grad_scratch(const struct kern_stream *, const struct kern_attention_shape *s)
{
    return cuda_attention_bytes(s, true);
}

void cuda_attention(struct kern_stream *stream, const struct kern_attention *a)
{
    struct packing p;
    const std::initializer_list<operand> all = {a->q, a->k, a->v, a->o};
    const bool vectors = in_vectors(&a->shape, all);
    if (!cuda_attention_pack(stream, &a->shape, a->scratch, &p))
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
    const std::initializer_list<operand> all = {g->q, g->k, g->v, g->o, g->d_o, g->dq, g->dk, g->dv};
    const bool vectors = in_vectors(&g->shape, all);
    if (!cuda_attention_pack(stream, &g->shape, g->scratch, &p))
        return;
    cuda_attention_delta(stream, g, &p);
    if (!fits_tensor_cores(&g->shape, all))
        cuda_attention_plain_grad(stream, g, &p);
    else if (stream->warpgroups)
        cuda_attention_wgmma_grad(stream, g, &p, vectors);
    else
        cuda_attention_mma_grad(stream, g, &p, vectors);
}
