/* See attention.h. */
#include "cpu/attention.h"

#include <string.h>

bool cpu_attention_check(struct kern_stream *stream, const struct kern_attention_shape *s)
{
    bool good = s->nkv > 0 && s->nhead % s->nkv == 0 && s->head_dim > 0 && s->head_dim <= CPU_STRIP && s->ndoc >= 0;
    for (int64_t d = 0; good && d < s->ndoc; d++)
        good = s->cu_seqlens[d] >= 0 && s->cu_seqlens[d] <= s->cu_seqlens[d + 1];
    return cpu_check(stream, good && (s->ndoc == 0 || s->cu_seqlens[s->ndoc] <= s->ntok), "attention: heads, head_dim (1 to 1024) or documents do not fit");
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

int64_t cpu_attention_dim(const struct kern_attention_shape *shape)
{
    return (shape->head_dim + CPU_LANES - 1) / CPU_LANES * CPU_LANES;
}

void cpu_attention_blocks(struct cpu_packing *p, const struct kern_attention_shape *shape, struct cpu_token_block *memory)
{
    *p = (struct cpu_packing){.shape = shape, .dim = cpu_attention_dim(shape), .blocks = memory};
    for (int64_t d = 0; d < shape->ndoc; d++) {
        const int64_t first = p->nblock, end = shape->cu_seqlens[d + 1];
        for (int64_t token = shape->cu_seqlens[d]; token < end; token += CPU_BLOCK)
            p->blocks[p->nblock++] = (struct cpu_token_block){token, end - token < CPU_BLOCK ? end - token : CPU_BLOCK, first};
    }
}

static void load_row(const struct cpu_simd *simd, const struct cpu_packing *p, float *dst, struct kern_cmat m, int64_t token, int64_t head)
{
    cpu_load_copy(simd, dst, m, token, head * p->shape->head_dim, p->shape->head_dim);
    memset(dst + p->shape->head_dim, 0, (size_t)(p->dim - p->shape->head_dim) * sizeof(*dst));
}

void cpu_attention_rows(const struct cpu_simd *simd, const struct cpu_packing *p, float *dst, struct kern_cmat m, int64_t head,
                        const struct cpu_token_block *b, float factor)
{
    for (int64_t i = 0; i < b->n; i++)
        load_row(simd, p, dst + i * p->dim, m, b->token + i, head);
    if (factor != 1)
        simd->scale(dst, dst, factor, b->n * p->dim);
}

/* Eight rows at a time, so that each line of dst is touched n/8 times and not n. */
enum { AT_ONCE = 8, MOST_DIM = 1024 };

void cpu_attention_columns(const struct cpu_simd *simd, const struct cpu_packing *p, float *dst, struct kern_cmat m, int64_t head,
                           const struct cpu_token_block *b)
{
    float rows[AT_ONCE][MOST_DIM];
    for (int64_t i = 0; i < CPU_BLOCK; i += AT_ONCE) {
        for (int64_t r = 0; r < AT_ONCE; r++)
            if (i + r < b->n)
                load_row(simd, p, rows[r], m, b->token + i + r, head);
            else
                memset(rows[r], 0, (size_t)p->dim * sizeof(rows[r][0]));
        for (int64_t j = 0; j < p->dim; j++)
            for (int64_t r = 0; r < AT_ONCE; r++)
                dst[j * CPU_BLOCK + i + r] = rows[r][j];
    }
}

int64_t cpu_attention_first(const struct cpu_packing *p, int64_t block)
{
    const struct cpu_token_block *q = &p->blocks[block], *first = &p->blocks[q->first];
    if (p->shape->window <= 0)
        return q->first;
    int64_t oldest = q->token - p->shape->window + 1; /* what the block's first query sees */
    return oldest <= first->token ? q->first : q->first + (oldest - first->token) / CPU_BLOCK;
}

void cpu_attention_seen(const struct cpu_packing *p, int64_t token, const struct cpu_token_block *b, int *from, int *to)
{
    int64_t oldest = p->shape->window > 0 ? token - p->shape->window + 1 - b->token : 0, end = token + 1 - b->token;
    *from = oldest <= 0 ? 0 : oldest < b->n ? (int)oldest : (int)b->n;
    *to = end >= b->n ? (int)b->n : end > *from ? (int)end : *from;
}
