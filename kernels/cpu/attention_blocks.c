/* SPDX-License-Identifier: Apache-2.0 */
/* See attention.h. */
#include "cpu/attention.h"

#include "cpu/matmul.h"

#include <string.h>

bool cpu_attention_check(struct kern_stream *stream, const struct kern_attention_shape *s)
{
    bool good = s->nkv > 0 && s->nhead % s->nkv == 0 && s->head_dim > 0 && s->head_dim <= CPU_STRIP && s->ndoc >= 0 &&
                s->scale > 0 && s->nkeys >= 0 && !((s->full || s->nkeys) && s->window > 0);
    for (int64_t d = 0; good && d < s->ndoc; d++)
        good = s->cu_seqlens[d] >= 0 && s->cu_seqlens[d] <= s->cu_seqlens[d + 1];
    return cpu_check(stream, good && (s->ndoc == 0 || s->cu_seqlens[s->ndoc] <= s->ntok),
                     "attention: heads, head_dim (1 to 1024), scale (above 0), window or documents do not fit");
}

size_t cpu_attention_blocks_bytes(int64_t nblock)
{
    return ((size_t)nblock * sizeof(struct cpu_token_block) + 63) / 64 * 64;
}

int64_t cpu_attention_nblock(const struct kern_attention_shape *shape)
{
    int64_t n = 0;
    for (int64_t d = 0; d < shape->ndoc; d++)
        n += (shape->cu_seqlens[d + 1] - shape->cu_seqlens[d] + CPU_BLOCK - 1) / CPU_BLOCK;
    return n;
}

/* The worst case: every document but one has a single token. */
int64_t cpu_attention_max_blocks(const struct kern_attention_shape *shape, int64_t ndoc)
{
    const int64_t n = ndoc < shape->ntok ? ndoc : shape->ntok;
    return n > 0 ? n - 1 + (shape->ntok - (n - 1) + CPU_BLOCK - 1) / CPU_BLOCK : 0;
}

int64_t cpu_attention_nstack(const struct kern_attention_shape *shape)
{
    return (shape->nhead / shape->nkv + CPU_STACK - 1) / CPU_STACK;
}

void cpu_attention_blocks(struct cpu_packing *p, struct kern_stream *stream, const struct kern_attention_shape *shape,
                          enum kern_dtype dtype, void *memory)
{
    *p = (struct cpu_packing){
        .shape = shape, .stream = stream, .nstack = cpu_attention_nstack(shape), .blocks = memory
    };
    p->compute = dtype == KERN_BF16 && cpu_matmul_bf16() ? KERN_BF16 : KERN_F32;
    for (int64_t d = 0; d < shape->ndoc; d++) {
        const int64_t first = p->nblock, from = shape->cu_seqlens[d], end = shape->cu_seqlens[d + 1],
                      seen = shape->nkeys && shape->nkeys < end - from ? from + shape->nkeys : end;
        for (int64_t token = from; token < end; token += CPU_BLOCK)
            p->blocks[p->nblock++] =
                (struct cpu_token_block){ token, end - token < CPU_BLOCK ? end - token : CPU_BLOCK, first, seen };
    }
}

struct cpu_stack cpu_attention_stack(const struct cpu_packing *p, int64_t i)
{
    const int64_t group = p->shape->nhead / p->shape->nkv, kv = i / p->nstack, from = i % p->nstack * CPU_STACK;
    return (struct cpu_stack){ kv, kv * group + from, group - from < CPU_STACK ? group - from : CPU_STACK };
}

static void pack_row(const struct cpu_packing *p, struct kern_mat to, int64_t row, struct kern_cmat m, int64_t token,
                     int64_t col)
{
    const int64_t n = p->shape->head_dim;
    float strip[CPU_STRIP];
    if (m.dtype == to.dtype) {
        const int64_t width = kern_dtype_bytes(m.dtype);
        memcpy((char *)to.data + row * n * width, (const char *)m.data + (token * m.pitch + col) * width,
               (size_t)(n * width));
        return;
    }
    cpu_store(p->stream->simd, to, row, 0, n, cpu_load(p->stream->simd, m, token, col, n, strip));
}

void cpu_attention_pack(const struct cpu_packing *p, void *dst, struct kern_cmat m, int64_t head,
                        const struct cpu_token_block *b)
{
    const struct kern_mat to = { dst, p->shape->head_dim, p->compute };
    const int64_t width = p->shape->head_dim * kern_dtype_bytes(p->compute);
    for (int64_t i = 0; i < b->n; i++)
        pack_row(p, to, i, m, b->token + i, head * p->shape->head_dim);
    memset((char *)dst + b->n * width, 0, (size_t)((CPU_BLOCK - b->n) * width));
}

void cpu_attention_pack_panel(const struct cpu_packing *p, char *panels, struct kern_cmat m, int64_t piece)
{
    cpu_attention_pack(p, panels + piece * cpu_attention_panel(p) * kern_dtype_bytes(p->compute), m, piece / p->nblock,
                       &p->blocks[piece % p->nblock]);
}

void cpu_attention_pack_stack(const struct cpu_packing *p, void *dst, struct kern_cmat m, const struct cpu_stack *s,
                              const struct cpu_token_block *b)
{
    for (int64_t h = 0; h < s->n; h++)
        cpu_attention_pack(p, (char *)dst + h * cpu_attention_panel(p) * kern_dtype_bytes(p->compute), m, s->head + h,
                           b);
}

int cpu_attention_product(const struct cpu_packing *p, unsigned worker, int64_t m, int64_t n, int64_t k, const void *a,
                          int64_t lda, bool trans_a, const void *b, int64_t ldb, bool trans_b, float *c, int64_t ldc,
                          bool accumulate)
{
    char message[KERN_MESSAGE_BYTES];
    struct cpu_matmul shape = { .m = m,
                                .n = n,
                                .k = k,
                                .lda = lda,
                                .ldb = ldb,
                                .ldc = ldc,
                                .trans_a = trans_a,
                                .trans_b = trans_b,
                                .accumulate = accumulate,
                                .in = p->compute,
                                .out = KERN_F32 };
    int rc = cpu_matmul_run(p->stream->matmuls, worker, &shape, a, b, c, message);
    return rc == KERN_OK ? rc : cpu_fail(p->stream, rc, "%s", message);
}

int64_t cpu_attention_first(const struct cpu_packing *p, int64_t block)
{
    const struct cpu_token_block *q = &p->blocks[block], *first = &p->blocks[q->first];
    if (p->shape->window <= 0)
        return q->first;
    int64_t oldest = q->token - p->shape->window + 1; /* first key that the block's first query sees */
    return oldest <= first->token ? q->first : q->first + (oldest - first->token) / CPU_BLOCK;
}

int64_t cpu_attention_end(const struct cpu_packing *p, int64_t block)
{
    const struct cpu_token_block *q = &p->blocks[block];
    const int64_t seen = q->first + (q->end - p->blocks[q->first].token + CPU_BLOCK - 1) / CPU_BLOCK;
    return p->shape->full || seen <= block ? seen : block + 1;
}

void cpu_attention_visible(const struct cpu_packing *p, const struct cpu_token_block *query, int64_t i,
                           const struct cpu_token_block *b, int64_t n, int64_t *from, int64_t *to)
{
    const int64_t token = query->token + i, last = p->shape->full || token >= query->end ? query->end : token + 1;
    int64_t oldest = p->shape->window > 0 ? token - p->shape->window + 1 - b->token : 0, end = last - b->token;
    *from = oldest <= 0 ? 0 : oldest < n ? oldest : n;
    *to = end >= n ? n : end > *from ? end : *from;
}

void cpu_attention_weights(const struct cpu_packing *p, uint16_t *dst, float *row, int64_t from, int64_t to, int64_t n)
{
    if (p->compute == KERN_F32) {
        memset(row, 0, (size_t)from * sizeof(*row));
        memset(row + to, 0, (size_t)(n - to) * sizeof(*row));
        return;
    }
    memset(dst, 0, (size_t)from * sizeof(*dst));
    p->stream->simd->narrow(dst + from, row + from, to - from);
    memset(dst + to, 0, (size_t)(n - to) * sizeof(*dst));
}
