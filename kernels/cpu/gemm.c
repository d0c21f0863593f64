/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products in a grid of tiles. If nothing else is to be done, a tile is computed directly in C. Otherwise it is
 * computed in the worker's scratch; the low-rank parts, bias, `add` and rounding follow while it is in the cache. */
#include "cpu/gemm.h"

#include "cpu/matmul.h"
#include "cpu/ops.h"
#include "cpu/packed.h"
#include "cpu/work.h"

#include <string.h>

enum {
    TILE = 256,    /* largest side of a tile that passes through scratch; the tile stays in the L2 cache */
    LARGE = 512,   /* largest side of a tile that is computed directly in C */
    LEAST = 64,    /* smallest side of a tile; twice that along n if B is not transposed, because B is then read in row
                      segments of that length */
    WANTED = 16,   /* tiles that a product should have, for threads to share; smaller tiles are slower per element */
    WIDE_K = 1024, /* length along k of the strips of operands that are widened or masked first */
};

struct gemm_work {
    struct kern_stream *stream;
    const struct cpu_product *p;
    int64_t tile_m, tile_n, ntile_n;
    bool direct, widen;
};

/* Scratch of a worker. */
struct tile_scratch {
    float *sum, *part; /* (tile_m, tile_n) each */
    float *a, *b;      /* (tile_m, WIDE_K) and (tile_n, WIDE_K), or transposed if the operand is stored transposed */
};

struct tile {
    int64_t row, col, m, n;
    unsigned worker;
    struct tile_scratch s;
};

static int64_t min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Cuts a side evenly, in multiples of LEAST: 576 becomes 320 + 256, not 512 + 64. */
static int64_t even(int64_t n, int64_t tile)
{
    int64_t ncut = (n + tile - 1) / tile, each = (n + ncut - 1) / ncut;
    return min((each + LEAST - 1) / LEAST * LEAST, n);
}

void cpu_gemm_grid(int64_t m, int64_t n, int64_t most, int64_t least_n, int64_t *tile_m, int64_t *tile_n)
{
    int64_t tm = most, tn = most;
    while (((m + tm - 1) / tm) * ((n + tn - 1) / tn) < WANTED) {
        bool cut_m = tm > LEAST && tm / 2 < m && (tm >= tn || tn <= least_n || tn / 2 >= n);
        bool cut_n = tn > least_n && tn / 2 < n;
        if (cut_m)
            tm /= 2;
        else if (cut_n)
            tn /= 2;
        else
            break;
    }
    *tile_m = even(m, tm);
    *tile_n = even(n, tn);
}

/* Address of element (i, l) of op(X). */
static const void *element(struct kern_cmat m, bool trans, int64_t i, int64_t l)
{
    int64_t at = trans ? l * m.pitch + i : i * m.pitch + l;
    return (const char *)m.data + at * kern_dtype_bytes(m.dtype);
}

static int run(const struct gemm_work *w, const struct tile *t, struct cpu_matmul shape, const void *a, const void *b,
               void *c)
{
    char message[KERN_MESSAGE_BYTES];
    if (shape.in == KERN_F32)
        shape.out = KERN_F32;
    int rc = cpu_matmul_run(w->stream->matmuls, t->worker, &shape, a, b, c, message);
    return rc == KERN_OK ? rc : cpu_fail(w->stream, rc, "%s", message);
}

/* Copies (rows, cols) of an operand, starting at (row, col), into dst without gaps, widened and masked. */
static void widen(const struct cpu_simd *simd, float *dst, struct kern_cmat m, const struct kern_dropout *drop,
                  int64_t row, int64_t col, int64_t rows, int64_t cols)
{
    for (int64_t i = 0; i < rows; i++) {
        float *to = dst + i * cols;
        cpu_load_copy(simd, to, m, row + i, col, cols);
        if (drop->p > 0)
            simd->dropout(to, to, drop->p, 1.0f, &drop->rng,
                          (uint64_t)(drop->token0 + row + i) * (uint64_t)drop->width + (uint64_t)col, cols);
    }
}

static void widen_op(const struct cpu_simd *simd, float *dst, struct kern_cmat m, const struct kern_dropout *drop,
                     bool trans, int64_t i, int64_t l, int64_t ni, int64_t nl)
{
    if (trans)
        widen(simd, dst, m, drop, l, i, nl, ni);
    else
        widen(simd, dst, m, drop, i, l, ni, nl);
}

/* Computes a product from widened operands, in strips along k that are added in order. */
static int wide_product(const struct gemm_work *w, const struct tile *t, float *c, int64_t ldc, bool accumulate)
{
    const struct kern_gemm *g = &w->p->g;
    for (int64_t l = 0; l < g->k; l += WIDE_K) {
        int64_t nl = min(WIDE_K, g->k - l);
        widen_op(w->stream->simd, t->s.a, g->a, &w->p->drop_a, g->trans_a, t->row, l, t->m, nl);
        widen_op(w->stream->simd, t->s.b, g->b, &w->p->drop_b, !g->trans_b, t->col, l, t->n, nl);
        struct cpu_matmul shape = { .m = t->m,
                                    .n = t->n,
                                    .k = nl,
                                    .lda = g->trans_a ? t->m : nl,
                                    .ldb = g->trans_b ? nl : t->n,
                                    .ldc = ldc,
                                    .trans_a = g->trans_a,
                                    .trans_b = g->trans_b,
                                    .accumulate = accumulate || l > 0,
                                    .in = KERN_F32 };
        int rc = run(w, t, shape, t->s.a, t->s.b, c);
        if (rc != KERN_OK)
            return rc;
    }
    return KERN_OK;
}

static int plain_product(const struct gemm_work *w, const struct tile *t, void *c, int64_t ldc, enum kern_dtype out,
                         bool accumulate)
{
    const struct kern_gemm *g = &w->p->g;
    struct cpu_matmul shape = { .m = t->m,
                                .n = t->n,
                                .k = g->k,
                                .lda = g->a.pitch,
                                .ldb = g->b.pitch,
                                .ldc = ldc,
                                .trans_a = g->trans_a,
                                .trans_b = g->trans_b,
                                .accumulate = accumulate,
                                .in = g->a.dtype,
                                .out = out };
    return run(w, t, shape, element(g->a, g->trans_a, t->row, 0), element(g->b, !g->trans_b, t->col, 0), c);
}

static int product(const struct gemm_work *w, const struct tile *t, void *c, int64_t ldc, enum kern_dtype out,
                   bool accumulate)
{
    if (w->widen)
        return wide_product(w, t, c, ldc, accumulate);
    return plain_product(w, t, c, ldc, out, accumulate);
}

/* c (rows, n) = S · B, or +=, for rows row … row+rows-1 of a segment. Widens the operands if their types require it. */
static int lowrank_product(const struct gemm_work *w, const struct tile *t, const struct kern_lowrank *r, int64_t row,
                           int64_t rows, float *c, bool accumulate)
{
    struct cpu_product p = {
        .g = { .m = w->p->g.m, .n = w->p->g.n, .k = r->r, .a = r->s, .b = r->b, .trans_b = r->trans_b }
    };
    struct gemm_work sub = *w;
    struct tile t2 = *t;
    sub.p = &p;
    sub.widen = r->s.dtype != r->b.dtype || (r->s.dtype == KERN_BF16 && !cpu_matmul_bf16());
    t2.row = row;
    t2.m = rows;
    return product(&sub, &t2, c, t->n, KERN_F32, accumulate);
}

static int add_lowrank(const struct gemm_work *w, const struct tile *t, const struct kern_lowrank *r)
{
    const struct cpu_simd *simd = w->stream->simd;
    int64_t row = r->row0 > t->row ? r->row0 : t->row, end = min(r->row0 + r->nrow, t->row + t->m);
    if (row >= end || r->r == 0)
        return KERN_OK;
    if (r->alpha == 1 && r->dropout.p == 0)
        return lowrank_product(w, t, r, row, end - row, t->s.sum + (row - t->row) * t->n, true);
    int rc = lowrank_product(w, t, r, row, end - row, t->s.part, false);
    for (int64_t i = row; i < end && rc == KERN_OK; i++) {
        float *part = t->s.part + (i - row) * t->n;
        const struct kern_dropout d = kern_dropout_now(r->dropout);
        if (d.p > 0)
            simd->dropout(part, part, d.p, 1.0f / (1.0f - d.p), &d.rng,
                          (uint64_t)(d.token0 + i) * (uint64_t)d.width + (uint64_t)t->col, t->n);
        simd->add_scaled(t->s.sum + (i - t->row) * t->n, part, r->alpha, t->n);
    }
    return rc;
}

/* Adds bias and `add`, and stores the tile in C. */
static void finish(const struct gemm_work *w, const struct tile *t)
{
    const struct kern_gemm *g = &w->p->g;
    const struct cpu_simd *simd = w->stream->simd;
    float bias[TILE], add[TILE];
    if (g->bias.data)
        cpu_load_copy(simd, bias, g->bias, 0, t->col, t->n);
    for (int64_t i = 0; i < t->m; i++) {
        float *sum = t->s.sum + i * t->n;
        if (g->bias.data)
            simd->add(sum, sum, bias, t->n);
        if (g->add.data)
            simd->add(sum, sum, cpu_load(simd, g->add, t->row + i, t->col, t->n, add), t->n);
        cpu_store(simd, g->c, t->row + i, t->col, t->n, sum);
    }
}

static int start_sum(const struct gemm_work *w, const struct tile *t)
{
    const struct kern_gemm *g = &w->p->g;
    if (g->k == 0 || g->alpha == 0) {
        memset(t->s.sum, 0, (size_t)(t->m * t->n) * sizeof(float));
        return KERN_OK;
    }
    int rc = product(w, t, t->s.sum, t->n, KERN_F32, false);
    if (rc == KERN_OK && g->alpha != 1)
        w->stream->simd->scale(t->s.sum, t->s.sum, g->alpha, t->m * t->n);
    return rc;
}

static struct tile_scratch split_scratch(const struct gemm_work *w, unsigned worker)
{
    float *data = w->stream->scratch[worker].data;
    struct tile_scratch s = { .sum = data };
    s.part = s.sum + TILE * TILE;
    s.a = s.part + TILE * TILE;
    s.b = s.a + TILE * WIDE_K;
    return s;
}

static void run_tile(void *ctx, int64_t piece, unsigned worker)
{
    const struct gemm_work *w = ctx;
    const struct kern_gemm *g = &w->p->g;
    struct tile t = { .row = piece / w->ntile_n * w->tile_m,
                      .col = piece % w->ntile_n * w->tile_n,
                      .worker = worker,
                      .s = split_scratch(w, worker) };
    t.m = min(w->tile_m, g->m - t.row);
    t.n = min(w->tile_n, g->n - t.col);
    if (w->direct) {
        void *c = (char *)g->c.data + (t.row * g->c.pitch + t.col) * kern_dtype_bytes(g->c.dtype);
        product(w, &t, c, g->c.pitch, g->c.dtype, g->add.data != NULL);
        return;
    }
    int rc = start_sum(w, &t);
    for (int i = 0; i < g->nlowrank && rc == KERN_OK; i++)
        rc = add_lowrank(w, &t, &g->lowrank[i]);
    if (rc == KERN_OK)
        finish(w, &t);
}

/* Returns true if a tile can be computed directly in C. */
static bool is_direct(const struct gemm_work *w)
{
    const struct kern_gemm *g = &w->p->g;
    bool in_place = g->add.data == g->c.data && g->add.pitch == g->c.pitch && g->add.dtype == g->c.dtype;
    if (g->alpha != 1 || g->nlowrank || g->bias.data || g->k == 0)
        return false;
    /* fp32 operands give an fp32 product, which a bf16 C cannot hold */
    return g->c.dtype == KERN_F32 ? !g->add.data || in_place : !g->add.data && !w->widen && g->a.dtype == KERN_BF16;
}

void cpu_product(struct kern_stream *stream, const struct cpu_product *p)
{
    const struct kern_gemm *g = &p->g;
    if (!cpu_check(stream, g->m >= 0 && g->n >= 0 && g->k >= 0 && !(g->trans_a && g->trans_b),
                   "gemm: negative shape, or both operands transposed"))
        return;
    if (g->m == 0 || g->n == 0 || cpu_packed_product(stream, p))
        return;
    struct gemm_work w = { .stream = stream, .p = p };
    w.widen = g->a.dtype != g->b.dtype || (g->a.dtype == KERN_BF16 && !cpu_matmul_bf16()) || p->drop_a.p > 0 ||
              p->drop_b.p > 0;
    w.direct = is_direct(&w);
    cpu_gemm_grid(g->m, g->n, w.direct && !w.widen ? LARGE : TILE, g->trans_b ? LEAST : 2 * LEAST, &w.tile_m,
                  &w.tile_n);
    w.ntile_n = (g->n + w.tile_n - 1) / w.tile_n;
    if (!cpu_reserve(stream, (2 * TILE * TILE + 2 * TILE * WIDE_K) * sizeof(float)))
        return;
    int threads = cpu_matmul_enter();
    kern_pool_run(stream->pool, (g->m + w.tile_m - 1) / w.tile_m * w.ntile_n, run_tile, &w);
    cpu_matmul_leave(threads);
}

void cpu_gemm(struct kern_stream *stream, const struct kern_gemm *g)
{
    struct cpu_product p = { .g = *g };
    cpu_product(stream, &p);
}
