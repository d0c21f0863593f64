/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products with the panel kernels of panels.h. B is packed, strip by strip; A is read in place, or packed in
 * groups of rows where it is transposed. A product whose A has fewer rows than B has columns may be computed
 * transposed (Cᵀ = Bᵀ·Aᵀ): then the small A is packed, and each weight is read once, in place. A worker packs for its
 * own piece where that is little beside its work, because reading what another core has just written is slow. An
 * element of C has the same bits in all of these strategies. */
#include "cpu/packed.h"

#include "cpu/panels.h"
#include "cpu/stream.h"
#include "cpu/work.h"

enum {
    MOST_PARTS = 8,
    GROUP = CPU_PANEL_GROUP,
    BLOCK = 2 * GROUP,    /* rows per piece if A is transposed */
    TRANSPOSED_ROWS = 64, /* rows of a transposed product per call: whole cache lines of C */
    EACH = 8,             /* pieces per thread */
    CACHE = 1 << 17,      /* units of B that stay in a worker's cache beside some rows of A */
    ROWS = 128,           /* least rows per piece, so that packing costs little beside the work */
    FEW = 512,            /* most rows of A for which a product with W is computed transposed */
    THIN = 2 * BLOCK,     /* most rows of a transposed A for which a piece is some strips instead of a block of rows */
    UNITS = 32,           /* units of K per piece when packing for all workers */
    MOST_UNITS = 1 << 16, /* most units of K; bounds the scratch of a worker to some MiB */
    SHARED = 1 << 21,     /* units of B packed for all workers at once: fewer than fill a cache */
    LITTLE = 1 << 18 /* products of units; for fewer, waking a thread does not pay: it takes about 2 µs, as long as
                        waiting for the others */
};

/* One of the products that are added: C += a · b, as in kern_gemm. */
struct operands {
    struct kern_cmat a, b;
    int64_t k;
    bool trans_a, trans_b;
    int64_t at; /* units of K in the parts before this one */
};

struct packed {
    struct kern_stream *stream;
    const struct cpu_panels *panels;
    const struct kern_gemm *g;
    bool transposed;
    int64_t m, n; /* rows and columns of the product as computed, which may be transposed */
    struct operands parts[MOST_PARTS];
    int nparts;
    int64_t units;        /* units of K over all parts */
    int64_t rows, nstrip; /* rows or strips per piece */
    int64_t col0, ncol;   /* columns that are packed for all workers at present */
    float *shared;
};

static int64_t min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Number of parts of at most `each` in n. */
static int64_t parts_of(int64_t n, int64_t each)
{
    return (n + each - 1) / each;
}

static struct kern_cmat from(struct kern_cmat m, int64_t row, int64_t col)
{
    m.data = (const char *)m.data + (row * m.pitch + col) * kern_dtype_bytes(m.dtype);
    return m;
}

static int64_t units(const struct packed *w, int64_t k)
{
    return parts_of(k, w->panels->elements);
}

static int vectors(int64_t n)
{
    return (int)parts_of(min(n, CPU_PANEL_WIDTH), CPU_PANEL_LANES);
}

static bool add_part(struct packed *w, struct operands o)
{
    enum kern_dtype dtype = w->g->a.dtype;
    if (o.k == 0)
        return true;
    if (w->nparts == MOST_PARTS || o.a.dtype != dtype || o.b.dtype != dtype)
        return false;
    o.at = w->units;
    w->units += units(w, o.k);
    w->parts[w->nparts++] = o;
    return true;
}

static bool collect(struct packed *w, const struct cpu_product *p)
{
    const struct kern_gemm *g = w->g;
    bool good =
        p->drop_a.p == 0 && p->drop_b.p == 0 && g->alpha != 0 && (g->nlowrank == 0 || (g->alpha == 1 && !g->trans_a));
    good = good && add_part(w, (struct operands){ g->a, g->b, g->k, g->trans_a, g->trans_b, 0 });
    for (int i = 0; i < g->nlowrank && good; i++) {
        const struct kern_lowrank *r = &g->lowrank[i];
        good = r->alpha == 1 && r->dropout.p == 0 && r->row0 == 0 && r->nrow == g->m &&
               add_part(w, (struct operands){ r->s, r->b, r->r, false, r->trans_b, 0 });
    }
    return good && w->nparts > 0 && w->units <= MOST_UNITS;
}

/* Returns true if the product should be computed transposed. With W: its rows are read in place, and the few rows of A
 * are packed. With two transposed operands: the narrow one forms the groups. */
static bool should_transpose(const struct packed *w)
{
    const struct kern_gemm *g = w->g;
    if (g->trans_a)
        return g->n < g->m && g->n <= THIN;
    bool good = g->m <= FEW && g->n > g->m;
    for (int i = 0; i < w->nparts; i++)
        good = good && w->parts[i].trans_b;
    return good;
}

static void transpose_product(struct packed *w)
{
    w->transposed = true;
    w->m = w->g->n;
    w->n = w->g->m;
    for (int i = 0; i < w->nparts; i++) {
        struct operands o = w->parts[i];
        w->parts[i] = (struct operands){ o.b, o.a, o.k, !o.trans_b, !o.trans_a, o.at };
    }
}

/* Rows that are read in place must consist of whole units. */
static bool fits(const struct packed *w)
{
    for (int i = 0; i < w->nparts; i++)
        if (!w->parts[i].trans_a && w->parts[i].k % w->panels->elements)
            return false;
    return true;
}

/* Scratch of a worker: a bias, the sums of a transposed piece, and the panels that it packs. */
struct scratch {
    float *bias, *sums, *rest;
};

static struct scratch split_scratch(const struct packed *w, unsigned worker)
{
    float *data = w->stream->scratch[worker].data;
    return (struct scratch){ data, data + CPU_PANEL_WIDTH, data + CPU_PANEL_WIDTH * (1 + TRANSPOSED_ROWS) };
}

static bool reserve(struct packed *w, int64_t rest)
{
    return cpu_reserve(w->stream, (size_t)(CPU_PANEL_WIDTH * (1 + TRANSPOSED_ROWS) + rest) * sizeof(float));
}

/* Runs the pieces on all threads, or on the calling thread if there is little work. */
static void parallel_for(struct packed *w, int64_t npieces, kern_pool_fn fn)
{
    kern_pool_run(w->m * w->n * w->units > LITTLE ? w->stream->pool : NULL, npieces, fn, w);
}

static int64_t nthreads(const struct packed *w)
{
    return kern_pool_nthreads(w->stream->pool);
}

/* Packs units u … u+n-1 of a part's columns of B, from col on, to their place in a strip. */
static void pack_b(const struct packed *w, const struct operands *o, float *strip, int64_t col, int64_t u, int64_t n)
{
    const int64_t ncol = min(w->n - col, CPU_PANEL_WIDTH), width = vectors(ncol) * CPU_PANEL_LANES,
                  l = u * w->panels->elements;
    const int64_t k = min(o->k - l, n * w->panels->elements);
    if (o->trans_b)
        w->panels->pack_rows(strip + (o->at + u) * width, width, from(o->b, col, l), ncol, k);
    else
        w->panels->pack_cols(strip + (o->at + u) * width, width, from(o->b, l, col), ncol, k);
}

/* Packs the columns of group `group` of a transposed A. */
static void pack_group(const struct packed *w, float *dst, int64_t group)
{
    const struct operands *o = &w->parts[0];
    w->panels->pack_cols(dst, GROUP, from(o->a, 0, group * GROUP), min(w->m - group * GROUP, GROUP), o->k);
}

static struct cpu_panel_out out_of(const struct packed *w, const struct scratch *s, int64_t row, int64_t col,
                                   int64_t ncol)
{
    const struct kern_gemm *g = w->g;
    const int64_t at = (row * g->c.pitch + col) * kern_dtype_bytes(g->c.dtype);
    struct cpu_panel_out out = { .c = { (char *)g->c.data + at, g->c.pitch, g->c.dtype },
                                 .alpha = g->alpha,
                                 .ncol = ncol };
    if (g->add.data)
        out.add = from(g->add, row, col);
    if (g->bias.data) {
        cpu_load_copy(w->stream->simd, s->bias, g->bias, 0, col, ncol);
        out.bias = s->bias;
    }
    return out;
}

/* Computes at most TRANSPOSED_ROWS rows of a strip and stores them transposed. */
static void run_transposed(const struct packed *w, const struct scratch *s, int64_t row, int64_t nrow, int64_t col,
                           const struct cpu_panel_part *parts)
{
    const int64_t ncol = min(w->n - col, CPU_PANEL_WIDTH);
    const struct cpu_panel_out sums = { .c = { s->sums, CPU_PANEL_WIDTH, KERN_F32 },
                                        .alpha = 1,
                                        .ncol = CPU_PANEL_WIDTH },
                               out = out_of(w, s, col, row, nrow);
    w->panels->strip(nrow, vectors(ncol), parts, w->nparts, &sums);
    w->panels->store_transposed(ncol, s->sums, &out);
}

/* Computes rows row … row+nrow-1 of a strip; the parts start at that row. A transposed product allows at most
 * TRANSPOSED_ROWS rows. */
static void run(const struct packed *w, const struct scratch *s, int64_t row, int64_t nrow, int64_t col,
                const struct cpu_panel_part *parts)
{
    const int64_t ncol = min(w->n - col, CPU_PANEL_WIDTH);
    if (!w->transposed) {
        const struct cpu_panel_out out = out_of(w, s, row, col, ncol);
        w->panels->strip(nrow, vectors(ncol), parts, w->nparts, &out);
        return;
    }
    run_transposed(w, s, row, nrow, col, parts);
}

/* Packs a strip of B, with all parts, without gaps. */
static void pack_strip(const struct packed *w, float *strip, int64_t col)
{
    for (int i = 0; i < w->nparts; i++)
        pack_b(w, &w->parts[i], strip, col, 0, units(w, w->parts[i].k));
}

/* --- A is read in place --- */

static void plain_strip(const struct packed *w, const struct scratch *s, const float *strip, int64_t row, int64_t nrow,
                        int64_t col)
{
    struct cpu_panel_part parts[MOST_PARTS];
    for (int i = 0; i < w->nparts; i++) {
        const struct operands *o = &w->parts[i];
        parts[i] = (struct cpu_panel_part){ from(o->a, row, 0).data, o->a.pitch * kern_dtype_bytes(o->a.dtype), 4,
                                            strip + o->at * vectors(w->n - col) * CPU_PANEL_LANES, units(w, o->k) };
    }
    run(w, s, row, nrow, col, parts);
}

/* Computes rows first … end-1 of several packed strips, `each` rows at a time, so that these rows stay in the cache. */
static void plain_rows(const struct packed *w, const struct scratch *s, int64_t first, int64_t end, int64_t each,
                       int64_t from_col, int64_t to_col)
{
    for (int64_t row = first; row < end; row += each)
        for (int64_t col = from_col; col < to_col; col += CPU_PANEL_WIDTH)
            plain_strip(w, s, s->rest + (col - from_col) * w->units, row, min(end - row, each), col);
}

static void pack_strips(const struct packed *w, float *strips, int64_t from_col, int64_t to_col)
{
    for (int64_t col = from_col; col < to_col; col += CPU_PANEL_WIDTH)
        pack_strip(w, strips + (col - from_col) * w->units, col);
}

/* A piece: some rows of some strips. */
static void plain_piece(void *ctx, int64_t piece, unsigned worker)
{
    const struct packed *w = ctx;
    const int64_t width = w->nstrip * CPU_PANEL_WIDTH, nacross = parts_of(w->n, width), row = piece / nacross * w->rows,
                  col = piece % nacross * width;
    struct scratch s = split_scratch(w, worker);
    pack_strips(w, s.rest, col, min(col + width, w->n));
    plain_rows(w, &s, row, min(row + w->rows, w->m), w->nstrip > 1 ? BLOCK : w->rows, col, min(col + width, w->n));
}

/* A piece takes several strips at once, so that A is read from memory less often, if there are many strips and they fit
 * a worker's cache. */
static void plain(struct packed *w)
{
    const int64_t nstrip = parts_of(w->n, CPU_PANEL_WIDTH), room = CACHE / (w->units * CPU_PANEL_WIDTH),
                  together = min(nstrip / EACH, room);
    w->nstrip = together > 1 ? together : 1;
    const int64_t nacross = parts_of(nstrip, w->nstrip);
    w->rows = parts_of(parts_of(w->m, parts_of(EACH * nthreads(w), nacross)), GROUP) * GROUP;
    w->rows = w->rows < ROWS ? ROWS : w->rows;
    if (reserve(w, w->nstrip * CPU_PANEL_WIDTH * w->units))
        parallel_for(w, parts_of(w->m, w->rows) * nacross, plain_piece);
}

/* A piece: some rows of a weight, all columns. */
static void transposed_piece(void *ctx, int64_t piece, unsigned worker)
{
    const struct packed *w = ctx;
    const int64_t first = piece * w->rows, end = min(first + w->rows, w->m);
    struct scratch s = split_scratch(w, worker);
    pack_strips(w, s.rest, 0, w->n);
    plain_rows(w, &s, first, end, TRANSPOSED_ROWS, 0, w->n);
}

static void transposed(struct packed *w)
{
    w->rows = parts_of(parts_of(w->m, EACH * nthreads(w)), TRANSPOSED_ROWS) * TRANSPOSED_ROWS;
    if (reserve(w, parts_of(w->n, CPU_PANEL_WIDTH) * CPU_PANEL_WIDTH * w->units))
        parallel_for(w, parts_of(w->m, w->rows), transposed_piece);
}

/* --- A is transposed --- */

/* Computes one group of rows in one strip. */
static void group_strip(const struct packed *w, const struct scratch *s, const float *a, const float *b, int64_t group,
                        int64_t col)
{
    const struct cpu_panel_part part = { (const char *)a, 4, GROUP * 4, b, w->units };
    run(w, s, group * GROUP, min(w->m - group * GROUP, GROUP), col, &part);
}

/* For few rows: a piece is some strips. */
static void thin_piece(void *ctx, int64_t piece, unsigned worker)
{
    const struct packed *w = ctx;
    struct scratch s = split_scratch(w, worker);
    const int64_t ngroup = parts_of(w->m, GROUP), first = piece * w->nstrip * CPU_PANEL_WIDTH,
                  end = min(first + w->nstrip * CPU_PANEL_WIDTH, w->n);
    float *strip = s.rest,
          *groups = s.rest + CPU_PANEL_WIDTH * w->units; /* strips must be aligned, so they come first */
    for (int64_t group = 0; group < ngroup; group++)
        pack_group(w, groups + group * GROUP * w->units, group);
    for (int64_t col = first; col < end; col += CPU_PANEL_WIDTH) {
        pack_strip(w, strip, col);
        for (int64_t group = 0; group < ngroup; group++)
            group_strip(w, &s, groups + group * GROUP * w->units, strip, group, col);
    }
}

static void thin(struct packed *w)
{
    const int64_t nstrip = parts_of(w->n, CPU_PANEL_WIDTH);
    w->nstrip = parts_of(nstrip, EACH * nthreads(w) / 2);
    if (reserve(w, (parts_of(w->m, GROUP) * GROUP + CPU_PANEL_WIDTH) * w->units))
        parallel_for(w, parts_of(nstrip, w->nstrip), thin_piece);
}

static float *strip_at(const struct packed *w, int64_t col)
{
    return w->shared + (col - w->col0) * w->units;
}

/* For many rows: B is packed for all workers, in pieces of UNITS units across all strips, so that its rows are read in
 * order. */
static void pack_cut(void *ctx, int64_t piece, unsigned worker)
{
    const struct packed *w = ctx;
    const int64_t u = piece * UNITS;
    (void)worker;
    for (int64_t col = w->col0; col < w->col0 + w->ncol; col += CPU_PANEL_WIDTH)
        pack_b(w, &w->parts[0], strip_at(w, col), col, u, min(w->units - u, UNITS));
}

/* A piece: a block of rows, for the columns that are packed at present. */
static void block_piece(void *ctx, int64_t piece, unsigned worker)
{
    const struct packed *w = ctx;
    struct scratch s = split_scratch(w, worker);
    const int64_t first = piece * (BLOCK / GROUP), ngroup = min(BLOCK / GROUP, parts_of(w->m, GROUP) - first);
    for (int64_t i = 0; i < ngroup; i++)
        pack_group(w, s.rest + i * w->units * GROUP, first + i);
    for (int64_t col = w->col0; col < w->col0 + w->ncol; col += CPU_PANEL_WIDTH)
        for (int64_t i = 0; i < ngroup; i++)
            group_strip(w, &s, s.rest + i * w->units * GROUP, strip_at(w, col), first + i, col);
}

static void blocks(struct packed *w)
{
    const int64_t most = SHARED / (w->units * CPU_PANEL_WIDTH), each = (most > 0 ? most : 1) * CPU_PANEL_WIDTH;
    w->shared = cpu_reserve_shared(
        w->stream, (size_t)(min(each, parts_of(w->n, CPU_PANEL_WIDTH) * CPU_PANEL_WIDTH) * w->units) * sizeof(float));
    if (!w->shared || !reserve(w, BLOCK * w->units))
        return;
    for (w->col0 = 0; w->col0 < w->n; w->col0 += each) {
        w->ncol = min(w->n - w->col0, each);
        parallel_for(w, parts_of(w->units, UNITS), pack_cut);
        parallel_for(w, parts_of(w->m, BLOCK), block_piece);
    }
}

/* oneDNN is faster if A is transposed and fp32 (measured: it splits K), so those products are refused. */
bool cpu_packed_product(struct kern_stream *stream, const struct cpu_product *p)
{
    struct packed w = {
        .stream = stream, .panels = stream->panels[p->g.a.dtype], .g = &p->g, .m = p->g.m, .n = p->g.n
    };
    if (!w.panels || (p->g.trans_a && p->g.a.dtype == KERN_F32) || !collect(&w, p))
        return false;
    if (should_transpose(&w))
        transpose_product(&w);
    if (!fits(&w))
        return false;
    if (!w.parts[0].trans_a && w.transposed)
        transposed(&w);
    else if (!w.parts[0].trans_a)
        plain(&w);
    else if (w.m <= THIN)
        thin(&w);
    else
        blocks(&w);
    return true;
}
