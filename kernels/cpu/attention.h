/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by attention's forward and backward. Tokens are cut into blocks, keys and values are packed by document, and
 * query heads that share a key head are stacked. oneDNN computes the products, in bf16 if that is faster. */
#ifndef CPU_ATTENTION_H
#define CPU_ATTENTION_H

#include "cpu/work.h"

#include <kernels/attention.h>

enum {
    CPU_BLOCK = 64, /* tokens per block; blocks of a document start at its first token; the last is zero-padded */
    CPU_SPAN = 4 * CPU_BLOCK,           /* keys per step; few sizes occur, so that few primitives are made */
    CPU_STACK = 4,                      /* most heads in a stack */
    CPU_STACKED = CPU_STACK * CPU_BLOCK /* most rows in a stack */
};

struct cpu_token_block {
    int64_t token, n;   /* first token, number of tokens */
    int64_t first, end; /* of the document: index of its first block; the token after its last that is seen */
};

struct cpu_packing {
    const struct kern_attention_shape *shape;
    struct kern_stream *stream;
    enum kern_dtype compute; /* type of the operands of products */
    int64_t nblock;
    int64_t nstack; /* stacks per key head */
    struct cpu_token_block *blocks;
};

/* A stack: query heads head … head+n-1, which share key head kv. */
struct cpu_stack {
    int64_t kv, head, n;
};

/* Returns true if the shape is valid; otherwise sets the stream's error. */
bool cpu_attention_check(struct kern_stream *stream, const struct kern_attention_shape *shape);
int64_t cpu_attention_nblock(const struct kern_attention_shape *shape);
/* Largest number of blocks that the shape's tokens can form in ndoc documents. */
int64_t cpu_attention_max_blocks(const struct kern_attention_shape *shape, int64_t ndoc);
int64_t cpu_attention_nstack(const struct kern_attention_shape *shape);
/* Bytes of the blocks, which lie at the start of scratch. */
size_t cpu_attention_blocks_bytes(int64_t nblock);
/* Fills p; memory receives its blocks. dtype: that of q, which decides the type of the products. */
void cpu_attention_blocks(struct cpu_packing *p, struct kern_stream *stream, const struct kern_attention_shape *shape,
                          enum kern_dtype dtype, void *memory);

/* Returns stack i of nkv · nstack. */
struct cpu_stack cpu_attention_stack(const struct cpu_packing *p, int64_t i);

/* Elements of a packed block: (CPU_BLOCK, head_dim). */
static inline int64_t cpu_attention_panel(const struct cpu_packing *p)
{
    return CPU_BLOCK * p->shape->head_dim;
}

/* Packs a head's rows of a block, in p->compute: (CPU_BLOCK, head_dim) without gaps, zeros beyond the n tokens of the
 * block. */
void cpu_attention_pack(const struct cpu_packing *p, void *dst, struct kern_cmat m, int64_t head,
                        const struct cpu_token_block *b);
/* Packs panel `piece` of (nkv, nblock) panels: the rows of one key or value head in one block. */
void cpu_attention_pack_panel(const struct cpu_packing *p, char *panels, struct kern_cmat m, int64_t piece);
/* Like cpu_attention_pack, for the heads of a stack, one below the other. */
void cpu_attention_pack_stack(const struct cpu_packing *p, void *dst, struct kern_cmat m, const struct cpu_stack *s,
                              const struct cpu_token_block *b);

/* C (m, n) fp32 = op(A) · op(B), or += if accumulate. */
int cpu_attention_product(const struct cpu_packing *p, unsigned worker, int64_t m, int64_t n, int64_t k, const void *a,
                          int64_t lda, bool trans_a, const void *b, int64_t ldb, bool trans_b, float *c, int64_t ldc,
                          bool accumulate);

/* First block of keys that a block of queries can see, and the one after the last. */
int64_t cpu_attention_first(const struct cpu_packing *p, int64_t block);
int64_t cpu_attention_end(const struct cpu_packing *p, int64_t block);
/* Query i of a block sees keys *from … *to-1 of the n keys that start at block b, counted from b's first key. */
void cpu_attention_visible(const struct cpu_packing *p, const struct cpu_token_block *query, int64_t i,
                           const struct cpu_token_block *b, int64_t n, int64_t *from, int64_t *to);

/* Prepares a row of n weights for a product. Weights outside of from … to-1 become 0. fp32 weights stay in place; bf16
 * ones are rounded into dst. */
void cpu_attention_weights(const struct cpu_packing *p, uint16_t *dst, float *row, int64_t from, int64_t to, int64_t n);

#endif
