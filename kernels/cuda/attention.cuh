/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the kernels of attention: documents and their tiles as a table on the device, and the choice between the
 * three implementations. */
#ifndef CUDA_ATTENTION_CUH
#define CUDA_ATTENTION_CUH

#include "cuda/vec.cuh"

#include <kernels/attention.h>

/* A document: its first token, and its first tile of queries or keys. The table ends with one extra entry. */
struct document {
    int32_t token, tile;
};

/* Header of the table. Only the device reads it, so that a launch is the same for other documents. */
struct counts {
    int32_t ndoc;
    int32_t ntile; /* a tile never spans two documents */
};

/* The documents of a call, as the kernels get them. */
struct packing {
    const struct counts *counts;
    const struct document *docs;
    float *delta; /* (nhead, ntok); only the backward has it */
};

/* The tokens of a tile, and those of its document. */
struct tile {
    int64_t token, n, begin, end;
};

/* Finds the document that holds a token or a tile: the last one that does not start behind it. Empty documents start
 * where the next one does and are skipped. */
template <int32_t document::*START> __device__ __forceinline__ int find_document(const struct packing &p, int32_t at)
{
    int low = 0, high = p.counts->ndoc;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (p.docs[middle].*START <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Tile of this block, counted from the first (up) or from the last (down). Later tiles of queries see more keys, so
 * they start first. Negative: the block is surplus, because the grid is rounded up. */
__device__ __forceinline__ int32_t tile_up(const struct packing &p)
{
    return (int32_t)blockIdx.x < p.counts->ntile ? (int32_t)blockIdx.x : -1;
}

__device__ __forceinline__ int32_t tile_down(const struct packing &p)
{
    return p.counts->ntile - 1 - (int32_t)blockIdx.x;
}

/* ROWS: tokens per tile, as the table was built. */
template <int ROWS> __device__ __forceinline__ struct tile find_tile(const struct packing &p, int32_t number)
{
    const int d = find_document<&document::tile>(p, number);
    struct tile t;
    t.begin = p.docs[d].token;
    t.end = p.docs[d + 1].token;
    t.token = t.begin + (int64_t)(number - p.docs[d].tile) * ROWS;
    t.n = t.end - t.token < ROWS ? t.end - t.token : ROWS;
    return t;
}

/* The end of the tokens from `begin` on that are keys: those behind them are padding, in a document that ends at
 * `end`. */
__device__ __forceinline__ int64_t end_of_keys(const struct kern_attention_shape &s, int64_t begin, int64_t end)
{
    return s.nkeys && s.nkeys < end - begin ? begin + s.nkeys : end;
}

/* delta[h][i] = Σ over a head's features of d_o · o. */
void cuda_attention_delta(struct kern_stream *stream, const struct kern_attention_grad *g, const struct packing *p,
                          bool vectors);

/* The three implementations: tensor cores by warpgroups (tiles of GROUPS_ROWS tokens) or by warps (WARPS_ROWS), for
 * bf16 heads of up to 128 features; and plain, for anything. vectors: all rows are multiples of 16 bytes and start at
 * multiples of 16. */
enum { GROUPS_ROWS = 128, WARPS_ROWS = 64 };
void cuda_attention_wgmma(struct kern_stream *stream, const struct kern_attention *a, const struct packing *p,
                          bool vectors);
void cuda_attention_wgmma_grad(struct kern_stream *stream, const struct kern_attention_grad *g, const struct packing *p,
                               bool vectors);
void cuda_attention_mma(struct kern_stream *stream, const struct kern_attention *a, const struct packing *p,
                        bool vectors);
void cuda_attention_mma_grad(struct kern_stream *stream, const struct kern_attention_grad *g, const struct packing *p,
                             bool vectors);
void cuda_attention_plain(struct kern_stream *stream, const struct kern_attention *a, const struct packing *p);
void cuda_attention_plain_grad(struct kern_stream *stream, const struct kern_attention_grad *g,
                               const struct packing *p);

#endif
