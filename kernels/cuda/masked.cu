/* SPDX-License-Identifier: Apache-2.0 */
/* Products with dropout. The masked operand is materialised in the stream's panel, some rows at a time, and cuBLASLt
 * multiplies it. */
#include "cuda/product.cuh"
#include "cuda/random.cuh"

namespace {

/* c = add + (x · keep if kept, else 0). */
struct add_masked_op {
    struct kern_mat c;
    struct kern_cmat add, x;
    struct kern_dropout d;
    float keep;
    template <types K> __device__ void at(int64_t row, int64_t col, int n, bool whole) const
    {
        const f8 u = dropout8(d, row, col);
        const f8 v = load8<K>(x, row, col, n, whole);
        f8 sum = {};
        if (add.data)
            sum = load8<K>(add, row, col, n, whole);
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            sum.v[i] += u.v[i] >= d.p ? v.v[i] * keep : 0.0f;
        store8<K>(c, row, col, n, whole, sum);
    }
};

/* A matrix in the panel. nrow: rows that fit at a time; 0: not even one fits. */
struct panel {
    struct kern_mat m;
    int64_t nrow;
};

struct panel panel_of(struct kern_stream *stream, int64_t ncol, enum kern_dtype dtype)
{
    enum { WHOLE = 128 }; /* rows per tile of a product */
    if (!cuda_has_scratch(stream))
        return {};
    const int64_t fit = (int64_t)(stream->panel_nbytes / (size_t)kern_dtype_bytes(dtype)) / ncol;
    const struct panel p = { { stream->panel, ncol, dtype }, fit > WHOLE ? fit / WHOLE * WHOLE : fit };
    cuda_check(stream, p.nrow > 0, "dropout: a row wider than a stream's panel");
    return p;
}

int64_t rows_at_once(const struct panel &p, int64_t from, int64_t end)
{
    return end - from < p.nrow ? end - from : p.nrow;
}

struct kern_dropout from_row(struct kern_dropout d, int64_t row)
{
    d.token0 += row;
    return d;
}

void mask(struct kern_stream *stream, const struct panel &to, struct kern_cmat x, int64_t row, int64_t nrow,
          const struct kern_dropout &d)
{
    const struct kern_cmat from = rows_from(x, row);
    for_eights(stream, { to.m, from }, nrow, to.m.pitch, dropout_op{ to.m, from, from_row(d, row), 1 });
}

struct kern_cmat sum_so_far(const struct product &p, int64_t row)
{
    return p.add.data ? rows_from(p.add, row) : p.add;
}

} // namespace

void cuda_product_masked_a(struct kern_stream *stream, const struct product *p, const struct kern_dropout *d)
{
    if (d->p == 0)
        return cuda_product(stream, p);
    const struct panel a = panel_of(stream, p->k, p->a.dtype);
    for (int64_t row = 0, n; row < p->m && !stream->status; row += n) {
        struct product part = *p;
        n = rows_at_once(a, row, p->m);
        mask(stream, a, p->a, row, n, *d);
        part.m = n, part.a = kern_const(a.m);
        part.c = rows_from(p->c, row), part.add = sum_so_far(*p, row);
        cuda_product(stream, &part);
    }
}

void cuda_product_masked_b(struct kern_stream *stream, const struct product *p, const struct kern_dropout *d)
{
    if (d->p == 0)
        return cuda_product(stream, p);
    const struct panel b = panel_of(stream, p->n, p->b.dtype);
    for (int64_t row = 0, n; row < p->k && !stream->status; row += n) {
        struct product part = *p;
        n = rows_at_once(b, row, p->k);
        mask(stream, b, p->b, row, n, *d);
        part.k = n, part.a = rows_from(p->a, row), part.b = kern_const(b.m);
        cuda_product(stream, &part);
    }
}

void cuda_product_masked_c(struct kern_stream *stream, const struct product *p, const struct kern_dropout *d)
{
    if (d->p == 0)
        return cuda_product(stream, p);
    const struct panel c = panel_of(stream, p->n, KERN_F32);
    for (int64_t row = 0, n; row < p->m && !stream->status; row += n) {
        struct product part = *p;
        const struct kern_mat to = rows_from(p->c, row);
        const struct kern_cmat add = sum_so_far(*p, row);
        n = rows_at_once(c, row, p->m);
        part.m = n, part.a = rows_from(p->a, row), part.c = c.m, part.add = kern_cmat{};
        cuda_product(stream, &part);
        for_eights(stream, { to, add, c.m }, n, p->n,
                   add_masked_op{ to, add, kern_const(c.m), from_row(*d, row), 1.0f / (1.0f - d->p) });
    }
}
