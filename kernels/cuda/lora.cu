/* SPDX-License-Identifier: Apache-2.0 */
/* The low-rank products of LoRA, one segment at a time. Dropout masks X; its scale is a factor of the product. */
#include "cuda/ops.h"
#include "cuda/product.cuh"

namespace {

/* Dropout of the segment, counted from its first row. */
struct kern_dropout drop_from(const struct kern_lora_segment *s)
{
    struct kern_dropout d = s->dropout;
    d.token0 += s->row0;
    return d;
}

float keep_scale(const struct kern_lora_segment *s)
{
    return s->dropout.p > 0 ? 1.0f / (1.0f - s->dropout.p) : 1.0f;
}

void down(struct kern_stream *stream, const struct kern_lora *l, const struct kern_lora_segment *s)
{
    const struct kern_dropout dropout = drop_from(s);
    struct product p = {};
    p.m = s->nrow, p.n = s->r, p.k = l->nin;
    p.a = rows_from(l->x, s->row0);
    p.b = s->a, p.trans_b = true;
    p.c = rows_from(l->s, s->row0);
    p.alpha = s->scale * keep_scale(s);
    cuda_product_masked_a(stream, &p, &dropout);
}

void up_grad(struct kern_stream *stream, const struct kern_lora *l, const struct kern_lora_segment *s)
{
    struct product p = {};
    p.m = s->nrow, p.n = s->r, p.k = l->nout;
    p.a = rows_from(l->dy, s->row0);
    p.b = s->b;
    p.c = rows_from(l->ds, s->row0);
    p.alpha = s->scale;
    cuda_product(stream, &p);
}

void grad_a(struct kern_stream *stream, const struct kern_lora *l, const struct kern_lora_segment *s)
{
    const struct kern_dropout dropout = drop_from(s);
    struct product p = {};
    p.m = s->r, p.n = l->nin, p.k = s->nrow;
    p.a = kern_const(rows_from(l->ds, s->row0)), p.trans_a = true;
    p.b = rows_from(l->x, s->row0);
    p.c = kern_mat{ s->da, s->pitch_da, KERN_F32 }, p.add = kern_const(p.c);
    p.alpha = keep_scale(s);
    cuda_product_masked_b(stream, &p, &dropout);
}

void grad_b(struct kern_stream *stream, const struct kern_lora *l, const struct kern_lora_segment *s)
{
    struct product p = {};
    p.m = l->nout, p.n = s->r, p.k = s->nrow;
    p.a = rows_from(l->dy, s->row0), p.trans_a = true;
    p.b = kern_const(rows_from(l->s, s->row0));
    p.c = kern_mat{ s->db, s->pitch_db, KERN_F32 }, p.add = kern_const(p.c);
    p.alpha = 1;
    cuda_product(stream, &p);
}

typedef void (*segment_fn)(struct kern_stream *stream, const struct kern_lora *l, const struct kern_lora_segment *s);

void each(struct kern_stream *stream, const struct kern_lora *l, segment_fn fn)
{
    for (int i = 0; i < l->nsegments; i++) {
        const struct kern_lora_segment *s = &l->segments[i];
        const bool inside = s->row0 >= 0 && s->nrow >= 0 && s->row0 + s->nrow <= l->nrow && s->r >= 0;
        if (cuda_check(stream, inside, "lora: a segment outside of the rows") && s->nrow > 0)
            fn(stream, l, s);
    }
}

} // namespace

void cuda_lora_down(struct kern_stream *stream, const struct kern_lora *l)
{
    each(stream, l, down);
}

void cuda_lora_up_grad(struct kern_stream *stream, const struct kern_lora *l)
{
    each(stream, l, up_grad);
}

void cuda_lora_grad_a(struct kern_stream *stream, const struct kern_lora *l)
{
    each(stream, l, grad_a);
}

void cuda_lora_grad_b(struct kern_stream *stream, const struct kern_lora *l)
{
    each(stream, l, grad_b);
}
