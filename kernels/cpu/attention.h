/* SPDX-License-Identifier: Apache-2.0 */
/* What attention's forward and backward share: how tokens are cut into blocks, keys and values packed by document, and
 * query heads stacked that share a key head. Products inside are oneDNN's, in bf16 where that is worth it, else in
 * fp32. */
#ifndef CPU_ATTENTION_H
#define CPU_ATTENTION_H

#include "cpu/work.h"

#include <kernels/attention.h>

enum {
    CPU_BLOCK = 64, /* tokens of a block; a document's blocks start at its first token and are filled up with zeros */
    CPU_SPAN = 4 * CPU_BLOCK, /* keys that are looked at at once: few shapes, so that few primitives are made */
    CPU_STACK = 4,            /* heads that are stacked at most */
    CPU_STACKED = CPU_STACK * CPU_BLOCK /* rows of a stack at most */
};

struct cpu_token_block {
    int64_t token, n; /* first token, and how many */
    int64_t first;    /* the document's first block */
};

struct cpu_packing {
    const struct kern_attention_shape *shape;
    struct kern_stream *stream;
    enum kern_dtype compute; /* of what is multiplied */
    int64_t nblock;
    int64_t nstack; /* stacks of a key head */
    struct cpu_token_block *blocks;
};

/* A stack: query heads head … head+n-1, which share key head kv. */
struct cpu_stack {
    int64_t kv, head, n;
};

/* Whether the shape makes sense; else the stream fails. */
bool cpu_attention_check(struct kern_stream *stream, const struct kern_attention_shape *shape);
int64_t cpu_attention_nblock(const struct kern_attention_shape *shape);
/* The most blocks that this many documents can make of the shape's tokens. */
int64_t cpu_attention_most_blocks(const struct kern_attention_shape *shape, int64_t ndoc);
int64_t cpu_attention_nstack(const struct kern_attention_shape *shape);
/* Bytes that the blocks take at the head of scratch. */
size_t cpu_attention_blocks_bytes(int64_t nblock);
/* Fills p, whose blocks lie at memory. q's type decides what is multiplied. */
void cpu_attention_blocks(struct cpu_packing *p, struct kern_stream *stream, const struct kern_attention_shape *shape,
                          enum kern_dtype dtype, void *memory);

/* Stack number i of nkv · nstack. */
struct cpu_stack cpu_attention_stack(const struct cpu_packing *p, int64_t i);

/* Elements of a packed block: (CPU_BLOCK, head_dim). */
static inline int64_t cpu_attention_panel(const struct cpu_packing *p)
{
    return CPU_BLOCK * p->shape->head_dim;
}

/* A head's rows of a block, in p->compute, zeros beyond the block's n: (CPU_BLOCK, head_dim) without gaps. */
void cpu_attention_pack(const struct cpu_packing *p, void *dst, struct kern_cmat m, int64_t head,
                        const struct cpu_token_block *b);
/* Panel `piece` of (nkv, nblock) panels, of a key or value head's rows of a block. */
void cpu_attention_pack_panel(const struct cpu_packing *p, char *panels, struct kern_cmat m, int64_t piece);
/* As cpu_attention_pack, for the heads of a stack, one under the other. */
void cpu_attention_pack_stack(const struct cpu_packing *p, void *dst, struct kern_cmat m, const struct cpu_stack *s,
                              const struct cpu_token_block *b);

/* C (m, n) fp32 = or += op(A) · op(B), all without gaps but for the pitches given. */
int cpu_attention_product(const struct cpu_packing *p, unsigned worker, int64_t m, int64_t n, int64_t k, const void *a,
                          int64_t lda, bool trans_a, const void *b, int64_t ldb, bool trans_b, float *c, int64_t ldc,
                          bool accumulate);

/* The first key block that a query block can see. */
int64_t cpu_attention_first(const struct cpu_packing *p, int64_t block);
/* Keys from … to-1, counted from block b's first, of the n from there that the query token sees. */
void cpu_attention_seen(const struct cpu_packing *p, int64_t token, const struct cpu_token_block *b, int64_t n,
                        int64_t *from, int64_t *to);

/* A row of n weights (its part from … to-1; the rest is 0) as it is multiplied: in place where that is fp32, else
 * rounded into dst. */
void cpu_attention_weights(const struct cpu_packing *p, uint16_t *dst, float *row, int64_t from, int64_t to, int64_t n);

#endif
