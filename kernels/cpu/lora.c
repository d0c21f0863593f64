/* SPDX-License-Identifier: Apache-2.0 */
/* The low-rank products of LoRA, one segment at a time. Dropout masks X while it is read; its scale is a factor of the
 * product. */
#include "cpu/gemm.h"
#include "cpu/ops.h"
#include "cpu/work.h"

static struct kern_cmat rows_from(struct kern_cmat m, int64_t row)
{
    m.data = (const char *)m.data + row * m.pitch * kern_dtype_bytes(m.dtype);
    return m;
}

static struct kern_mat rows_of(struct kern_mat m, int64_t row)
{
    m.data = (char *)m.data + row * m.pitch * kern_dtype_bytes(m.dtype);
    return m;
}

/* Dropout of the segment, counted from its first row. */
static struct kern_dropout drop_from(const struct kern_lora_segment *s)
{
    struct kern_dropout d = kern_dropout_now(s->dropout);
    d.token0 += s->row0;
    return d;
}

/* Scale of drop(X). The mask is applied while X is read. */
static float keep_scale(const struct kern_lora_segment *s)
{
    return s->dropout.p > 0 ? 1.0f / (1.0f - s->dropout.p) : 1.0f;
}

static void down(struct kern_stream *stream, const struct kern_lora *l, const struct kern_lora_segment *s)
{
    struct cpu_product p = { .g = { .m = s->nrow,
                                    .n = s->r,
                                    .k = l->nin,
                                    .a = rows_from(l->x, s->row0),
                                    .b = s->a,
                                    .trans_b = true,
                                    .c = rows_of(l->s, s->row0),
                                    .alpha = s->scale * keep_scale(s) },
                             .drop_a = drop_from(s) };
    cpu_product(stream, &p);
}

static void up_grad(struct kern_stream *stream, const struct kern_lora *l, const struct kern_lora_segment *s)
{
    struct cpu_product p = { .g = { .m = s->nrow,
                                    .n = s->r,
                                    .k = l->nout,
                                    .a = rows_from(l->dy, s->row0),
                                    .b = s->b,
                                    .c = rows_of(l->ds, s->row0),
                                    .alpha = s->scale } };
    cpu_product(stream, &p);
}

static void grad_a(struct kern_stream *stream, const struct kern_lora *l, const struct kern_lora_segment *s)
{
    struct kern_mat da = { s->da, s->pitch_da, KERN_F32 };
    struct cpu_product p = { .g = { .m = s->r,
                                    .n = l->nin,
                                    .k = s->nrow,
                                    .a = kern_const(rows_of(l->ds, s->row0)),
                                    .trans_a = true,
                                    .b = rows_from(l->x, s->row0),
                                    .c = da,
                                    .add = kern_const(da),
                                    .alpha = keep_scale(s) },
                             .drop_b = drop_from(s) };
    cpu_product(stream, &p);
}

static void grad_b(struct kern_stream *stream, const struct kern_lora *l, const struct kern_lora_segment *s)
{
    struct kern_mat db = { s->db, s->pitch_db, KERN_F32 };
    struct cpu_product p = { .g = { .m = l->nout,
                                    .n = s->r,
                                    .k = s->nrow,
                                    .a = rows_from(l->dy, s->row0),
                                    .trans_a = true,
                                    .b = kern_const(rows_of(l->s, s->row0)),
                                    .c = db,
                                    .add = kern_const(db),
                                    .alpha = 1 } };
    cpu_product(stream, &p);
}

typedef void (*segment_fn)(struct kern_stream *stream, const struct kern_lora *l, const struct kern_lora_segment *s);

static void each(struct kern_stream *stream, const struct kern_lora *l, segment_fn fn)
{
    for (int i = 0; i < l->nsegments; i++) {
        const struct kern_lora_segment *s = &l->segments[i];
        if (cpu_check(stream, s->row0 >= 0 && s->nrow >= 0 && s->row0 + s->nrow <= l->nrow && s->r >= 0,
                      "lora: a segment outside of the rows") &&
            s->nrow > 0)
            fn(stream, l, s);
    }
}

void cpu_lora_down(struct kern_stream *stream, const struct kern_lora *l)
{
    each(stream, l, down);
}

void cpu_lora_up_grad(struct kern_stream *stream, const struct kern_lora *l)
{
    each(stream, l, up_grad);
}

void cpu_lora_grad_a(struct kern_stream *stream, const struct kern_lora *l)
{
    each(stream, l, grad_a);
}

void cpu_lora_grad_b(struct kern_stream *stream, const struct kern_lora *l)
{
    each(stream, l, grad_b);
}
