/* What attention's forward and backward share: how tokens are cut into blocks, and keys and values packed in fp32. */
#ifndef CPU_ATTENTION_H
#define CPU_ATTENTION_H

#include "cpu/work.h"

#include <kernels/attention.h>

/* Tokens of a block, of queries and of keys. A document's blocks start at its first token. */
enum { CPU_BLOCK = 64 };

struct cpu_token_block {
    int64_t token, n; /* first token, and how many */
    int64_t first;    /* the document's first block */
};

struct cpu_packing {
    const struct kern_attention_shape *shape;
    int64_t nblock;
    int64_t dim; /* head_dim, rounded up to CPU_LANES; what is beyond is 0 */
    struct cpu_token_block *blocks;
};

int64_t cpu_attention_nblock(const struct kern_attention_shape *shape);
int64_t cpu_attention_dim(const struct kern_attention_shape *shape);
/* Fills p, whose blocks lie at memory. */
void cpu_attention_blocks(struct cpu_packing *p, const struct kern_attention_shape *shape, struct cpu_token_block *memory);

/* A head's rows of a block in fp32, times factor: (n, dim) without gaps. */
void cpu_attention_rows(const struct cpu_simd *simd, const struct cpu_packing *p, float *dst, struct kern_cmat m, int64_t head,
                        const struct cpu_token_block *b, float factor);
/* Transposed: (dim, CPU_BLOCK), 0 beyond n. */
void cpu_attention_columns(const struct cpu_simd *simd, const struct cpu_packing *p, float *dst, struct kern_cmat m, int64_t head,
                           const struct cpu_token_block *b);

/* Whether the shape makes sense; else the stream fails. */
bool cpu_attention_check(struct kern_stream *stream, const struct kern_attention_shape *shape);
/* Bytes that the blocks take at the head of scratch. */
size_t cpu_attention_blocks_bytes(int64_t nblock);

/* Elements of one packed block. */
static inline int64_t cpu_attention_panel(const struct cpu_packing *p)
{
    return p->dim * CPU_BLOCK;
}

/* The first key block that a query block can see. */
int64_t cpu_attention_first(const struct cpu_packing *p, int64_t block);
/* Keys from … to-1 of block b that query token sees. */
void cpu_attention_seen(const struct cpu_packing *p, int64_t token, const struct cpu_token_block *b, int *from, int *to);

#endif
