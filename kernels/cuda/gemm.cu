/* SPDX-License-Identifier: Apache-2.0 */
/* The products of kernels/gemm.h, built from library calls of the form D = A·B + C that each add to the sum so far. A
 * bf16 C holds this sum itself, rounded at each step; the small products of adapters come first. A separate fp32 sum
 * would cost more memory traffic than the products take time. */
#include "cuda/ops.h"
#include "cuda/product.cuh"
#include "cuda/vec.cuh"

namespace {

/* The sum so far. from: its location (data NULL: nothing was summed yet). The next step stores the sum in C. */
struct chain {
    struct kern_stream *stream;
    const struct kern_gemm *g;
    struct kern_cmat from;
};

bool same_view(struct kern_cmat a, struct kern_mat b)
{
    return a.data == b.data && a.pitch == b.pitch && a.dtype == b.dtype;
}

/* Moves the sum to C, where a step can add to a part of it. */
void move_sum_to_c(chain &c)
{
    if (same_view(c.from, c.g->c))
        return;
    struct product zero = {};
    zero.m = c.g->m, zero.n = c.g->n, zero.c = c.g->c;
    if (c.from.data)
        cuda_cast(c.stream, c.g->c, c.from, c.g->m, c.g->n);
    else
        cuda_product_own(c.stream, &zero);
    c.from = kern_const(c.g->c);
}

void add_lowrank(chain &c, const struct kern_lowrank &r)
{
    if (r.r == 0 || r.nrow == 0)
        return;
    struct product p = {};
    p.m = r.nrow, p.n = c.g->n, p.k = r.r;
    p.a = rows_from(r.s, r.row0), p.b = r.b, p.trans_b = r.trans_b;
    p.alpha = r.alpha;
    struct kern_dropout dropout = r.dropout;
    dropout.token0 += r.row0;
    if (r.row0 != 0 || r.nrow != c.g->m || (c.from.data && c.from.dtype != c.g->c.dtype))
        move_sum_to_c(c);
    p.c = rows_from(c.g->c, r.row0);
    p.add = c.from.data ? rows_from(c.from, r.row0) : c.from;
    cuda_product_masked_c(c.stream, &p, &dropout);
    c.from = kern_const(c.g->c);
}

struct bias_op {
    struct kern_mat c;
    struct kern_cmat bias;
    template <types K> __device__ void at(int64_t row, int64_t col, int n, bool whole) const
    {
        f8 x = load8<K>(as_const(c), row, col, n, whole);
        const f8 b = load8<K>(bias, 0, col, n, whole);
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            x.v[i] += b.v[i];
        store8<K>(c, row, col, n, whole, x);
    }
};

void add_product(chain &c)
{
    const struct kern_gemm *g = c.g;
    struct product p = {};
    if (g->k == 0 || g->alpha == 0)
        return;
    if (c.from.data && c.from.dtype != g->c.dtype)
        move_sum_to_c(c);
    p.m = g->m, p.n = g->n, p.k = g->k;
    p.a = g->a, p.b = g->b, p.trans_a = g->trans_a, p.trans_b = g->trans_b;
    p.c = g->c, p.add = c.from;
    p.alpha = g->alpha;
    p.bias = g->bias.data && g->bias.dtype == g->c.dtype ? g->bias.data : nullptr;
    cuda_product(c.stream, &p);
    c.from = kern_const(g->c);
}

void add_bias(chain &c)
{
    const struct kern_gemm *g = c.g;
    const bool done = g->k != 0 && g->alpha != 0 && g->bias.dtype == g->c.dtype; /* add_product has added it */
    if (!g->bias.data || done)
        return;
    move_sum_to_c(c);
    for_eights(c.stream, { g->c, one_row(g->bias) }, g->m, g->n, bias_op{ g->c, g->bias });
}

bool sound(struct kern_stream *stream, const struct kern_gemm *g)
{
    bool rows = true;
    for (int i = 0; i < g->nlowrank; i++) {
        const struct kern_lowrank *r = &g->lowrank[i];
        rows = rows && r->row0 >= 0 && r->nrow >= 0 && r->nrow <= g->m - r->row0 && r->r >= 0;
    }
    return cuda_check(stream, g->m >= 0 && g->n >= 0 && g->k >= 0 && !(g->trans_a && g->trans_b),
                      "gemm: negative shape, or both operands transposed") &&
           cuda_check(stream, rows, "gemm: a low-rank part outside of the rows");
}

} // namespace

void cuda_gemm(struct kern_stream *stream, const struct kern_gemm *g)
{
    if (!sound(stream, g) || g->m == 0 || g->n == 0)
        return;
    chain c = { stream, g, g->add };
    for (int i = 0; i < g->nlowrank; i++)
        add_lowrank(c, g->lowrank[i]);
    add_product(c);
    add_bias(c);
    move_sum_to_c(c);
}
