/* Products through panels.h. B always is packed, strip by strip; A is read as it lies, or packed by groups where it is transposed. A product whose A has fewer
 * rows than B has columns can be turned round (Cᵀ = Bᵀ·Aᵀ): then A is what is packed, and a weight is read once, as it lies. An element of C has the same bits
 * in all of these. */
#include "cpu/packed.h"

#include "cpu/panels.h"
#include "cpu/stream.h"
#include "cpu/work.h"

enum {
    MOST_PARTS = 8,
    GROUP = CPU_PANEL_GROUP,
    BLOCK = 2 * GROUP,    /* rows of the smallest piece */
    ROWS = 8 * GROUP,     /* and of the largest */
    EACH = 16,            /* pieces that a thread should have */
    WANTED = 24,          /* that a product should have, where that is too many */
    FEW = 512,            /* rows of A below which a product with W is turned round */
    THIN = 2 * BLOCK,     /* rows of a transposed A below which it is packed for all pieces, and a piece is a strip */
    UNITS = 32,           /* of K in a piece of packing */
    MOST_UNITS = 1 << 16, /* of K: a worker's scratch stays below some MiB */
    SHARED = 1 << 21,     /* units of B that are packed at once: they should not fill a cache */
    PACKING = 16,         /* products of units that packing one is worth */
    LITTLE = 1 << 18      /* of these, what is not worth waking anybody for */
};

/* C += a · b; as in kern_gemm. */
struct operands {
    struct kern_cmat a, b;
    int64_t k;
    bool trans_a, trans_b;
    int64_t at; /* units of K of the parts before */
};

struct packed {
    struct kern_stream *stream;
    const struct cpu_panels *panels;
    const struct kern_gemm *g;
    bool turned;
    int64_t m, n; /* of the product as it is computed */
    struct operands parts[MOST_PARTS];
    int nparts;
    int64_t units;        /* of K, of all parts */
    int64_t rows, nblock; /* of a piece; how many of them C has */
    int64_t col0, ncol;   /* columns at hand */
    float *shared;        /* what is packed for all pieces: strips, or groups */
};

static int64_t min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* How many parts of at most `each` n makes. */
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
    bool good = p->drop_a.p == 0 && p->drop_b.p == 0 && g->alpha != 0 && (g->nlowrank == 0 || (g->alpha == 1 && !g->trans_a));
    good = good && add_part(w, (struct operands){g->a, g->b, g->k, g->trans_a, g->trans_b, 0});
    for (int i = 0; i < g->nlowrank && good; i++) {
        const struct kern_lowrank *r = &g->lowrank[i];
        good = r->alpha == 1 && r->dropout.p == 0 && r->row0 == 0 && r->nrow == g->m && add_part(w, (struct operands){r->s, r->b, r->r, false, r->trans_b, 0});
    }
    return good && w->nparts > 0 && w->units <= MOST_UNITS;
}

/* A weight's rows can be read as they lie, and the few of A are what is packed; or of two that are transposed the narrow one makes the groups. */
static bool is_turned(const struct packed *w)
{
    const struct kern_gemm *g = w->g;
    if (g->trans_a)
        return g->n < g->m && g->n <= THIN;
    bool good = g->m <= FEW && g->n > g->m;
    for (int i = 0; i < w->nparts; i++)
        good = good && w->parts[i].trans_b;
    return good;
}

static void turn_round(struct packed *w)
{
    w->turned = true;
    w->m = w->g->n;
    w->n = w->g->m;
    for (int i = 0; i < w->nparts; i++) {
        struct operands o = w->parts[i];
        w->parts[i] = (struct operands){o.b, o.a, o.k, !o.trans_b, !o.trans_a, o.at};
    }
}

/* Rows that are read as they lie end with a whole unit. */
static bool fits(const struct packed *w)
{
    for (int i = 0; i < w->nparts; i++)
        if (!w->parts[i].trans_a && w->parts[i].k % w->panels->elements)
            return false;
    return true;
}

/* A worker's scratch: a bias, the sums of a piece that is turned, and what the way of cutting needs. */
struct scratch {
    float *bias, *sums, *rest;
};

static struct scratch carve(const struct packed *w, unsigned worker)
{
    float *data = w->stream->scratch[worker].data;
    return (struct scratch){data, data + CPU_PANEL_WIDTH, data + CPU_PANEL_WIDTH * (1 + BLOCK)};
}

static bool reserve(struct packed *w, int64_t rest, int64_t shared)
{
    w->shared = cpu_reserve_shared(w->stream, (size_t)shared * sizeof(float));
    return w->shared && cpu_reserve(w->stream, (size_t)(CPU_PANEL_WIDTH * (1 + BLOCK) + rest) * sizeof(float));
}

/* Units u … u+n-1 of a part's columns of B from col on, at their place in a strip. */
static void pack_b(const struct packed *w, const struct operands *o, float *strip, int64_t col, int64_t u, int64_t n)
{
    const int64_t ncol = min(w->n - col, CPU_PANEL_WIDTH), width = vectors(ncol) * CPU_PANEL_LANES, l = u * w->panels->elements;
    const int64_t k = min(o->k - l, n * w->panels->elements);
    if (o->trans_b)
        w->panels->pack_rows(strip + (o->at + u) * width, width, from(o->b, col, l), ncol, k);
    else
        w->panels->pack_cols(strip + (o->at + u) * width, width, from(o->b, l, col), ncol, k);
}

/* Group `group` of a transposed A's columns, its units from u on. */
static void pack_group(const struct packed *w, float *dst, int64_t group, int64_t u, int64_t n)
{
    const struct operands *o = &w->parts[0];
    const int64_t col = group * GROUP, l = u * w->panels->elements;
    w->panels->pack_cols(dst + u * GROUP, GROUP, from(o->a, l, col), min(w->m - col, GROUP), min(o->k - l, n * w->panels->elements));
}

static struct cpu_panel_out out_of(const struct packed *w, const struct scratch *s, int64_t row, int64_t col, int64_t ncol)
{
    const struct kern_gemm *g = w->g;
    const int64_t at = (row * g->c.pitch + col) * kern_dtype_bytes(g->c.dtype);
    struct cpu_panel_out out = {.c = {(char *)g->c.data + at, g->c.pitch, g->c.dtype}, .alpha = g->alpha, .ncol = ncol};
    if (g->add.data)
        out.add = from(g->add, row, col);
    if (g->bias.data) {
        cpu_load_copy(w->stream->simd, s->bias, g->bias, 0, col, ncol);
        out.bias = s->bias;
    }
    return out;
}

/* At most BLOCK rows of a strip, whose C lies turned. */
static void run_turned(const struct packed *w, const struct scratch *s, int64_t row, int64_t nrow, int64_t col, const struct cpu_panel_part *parts)
{
    const int64_t ncol = min(w->n - col, CPU_PANEL_WIDTH);
    const struct cpu_panel_out sums = {.c = {s->sums, CPU_PANEL_WIDTH, KERN_F32}, .alpha = 1, .ncol = CPU_PANEL_WIDTH}, out = out_of(w, s, col, row, nrow);
    w->panels->strip(nrow, vectors(ncol), parts, w->nparts, &sums);
    w->panels->turn(ncol, s->sums, &out);
}

/* Rows row … row+nrow-1 of a strip; parts begin there. */
static void run(const struct packed *w, const struct scratch *s, int64_t row, int64_t nrow, int64_t col, struct cpu_panel_part *parts)
{
    const int64_t ncol = min(w->n - col, CPU_PANEL_WIDTH);
    if (!w->turned) {
        const struct cpu_panel_out out = out_of(w, s, row, col, ncol);
        w->panels->strip(nrow, vectors(ncol), parts, w->nparts, &out);
        return;
    }
    for (int64_t i = 0; i < nrow; i += BLOCK) {
        run_turned(w, s, row + i, min(nrow - i, BLOCK), col, parts);
        for (int j = 0; j < w->nparts; j++)
            parts[j].a += BLOCK * parts[j].row;
    }
}

/* Nobody else where there is little to do: the work is some 2 µs, as waiting for others is. */
static void share_out(struct packed *w, int64_t work, int64_t npieces, kern_pool_fn fn)
{
    kern_pool_run(work > LITTLE ? w->stream->pool : NULL, npieces, fn, w);
}

/* --- strips packed for all pieces ------------------------------------------------------------------------------------------------ */

static int64_t cuts_of(const struct packed *w)
{
    return parts_of(w->units, UNITS);
}

static float *strip_at(const struct packed *w, int64_t col)
{
    return w->shared + (col - w->col0) * w->units;
}

/* Units first … end-1 of a strip, of all parts. */
static void pack_strip(const struct packed *w, int64_t col, int64_t first, int64_t end)
{
    for (int i = 0; i < w->nparts; i++) {
        const struct operands *o = &w->parts[i];
        const int64_t u = first > o->at ? first - o->at : 0, to = min(end - o->at, units(w, o->k));
        if (u < to)
            pack_b(w, o, strip_at(w, col), col, u, to - u);
    }
}

/* A piece reads memory as it comes: a strip where its columns are rows, else some rows, of all strips. */
static void pack_strips(void *ctx, int64_t piece, unsigned worker)
{
    const struct packed *w = ctx;
    (void)worker;
    if (w->parts[0].trans_b)
        pack_strip(w, w->col0 + piece * CPU_PANEL_WIDTH, 0, w->units);
    for (int64_t col = w->col0; col < w->col0 + w->ncol && !w->parts[0].trans_b; col += CPU_PANEL_WIDTH)
        pack_strip(w, col, piece * UNITS, (piece + 1) * UNITS);
}

/* The columns of C, as many at a time as are packed at once. A piece is a block of rows, of all those columns or of a strip. */
static void by_columns(struct packed *w, int64_t rest, kern_pool_fn piece, bool one_block)
{
    const int64_t most = SHARED / (w->units * CPU_PANEL_WIDTH) * CPU_PANEL_WIDTH, each = most > 0 ? most : CPU_PANEL_WIDTH;
    const int64_t width = parts_of(min(each, w->n), CPU_PANEL_WIDTH) * CPU_PANEL_WIDTH;
    if (!reserve(w, rest, width * w->units))
        return;
    for (w->col0 = 0; w->col0 < w->n; w->col0 += each) {
        w->ncol = min(w->n - w->col0, each);
        const int64_t nstrip = parts_of(w->ncol, CPU_PANEL_WIDTH);
        share_out(w, nstrip * w->units * CPU_PANEL_WIDTH * PACKING, w->parts[0].trans_b ? nstrip : cuts_of(w), pack_strips);
        share_out(w, w->m * w->ncol * w->units, w->nblock * (one_block ? 1 : nstrip), piece);
    }
}

/* --- A as it lies ---------------------------------------------------------------------------------------------------------------- */

static void plain_strip(const struct packed *w, unsigned worker, int64_t row, int64_t col)
{
    struct scratch s = carve(w, worker);
    struct cpu_panel_part parts[MOST_PARTS];
    for (int i = 0; i < w->nparts; i++) {
        const struct operands *o = &w->parts[i];
        parts[i] = (struct cpu_panel_part){from(o->a, row, 0).data, o->a.pitch * kern_dtype_bytes(o->a.dtype), 4,
                                           strip_at(w, col) + o->at * vectors(w->n - col) * CPU_PANEL_LANES, units(w, o->k)};
    }
    run(w, &s, row, min(w->rows, w->m - row), col, parts);
}

static void plain_piece(void *ctx, int64_t piece, unsigned worker)
{
    const struct packed *w = ctx;
    const int64_t nstrip = parts_of(w->ncol, CPU_PANEL_WIDTH);
    plain_strip(w, worker, piece / nstrip * w->rows, w->col0 + piece % nstrip * CPU_PANEL_WIDTH);
}

/* All strips, while the rows are in the cache; C's rows are one worker's. */
static void rows_piece(void *ctx, int64_t piece, unsigned worker)
{
    const struct packed *w = ctx;
    for (int64_t col = w->col0; col < w->col0 + w->ncol; col += CPU_PANEL_WIDTH)
        plain_strip(w, worker, piece * w->rows, col);
}

static void plain(struct packed *w)
{
    const int64_t fair = w->m / (kern_pool_nthreads(w->stream->pool) * EACH);
    const bool whole = w->turned || fair >= GROUP;
    w->rows = w->turned ? BLOCK : whole ? min(parts_of(fair, GROUP / 2) * (GROUP / 2), ROWS) : ROWS;
    while (!whole && w->rows > BLOCK && parts_of(w->m, w->rows) * parts_of(w->n, CPU_PANEL_WIDTH) < WANTED)
        w->rows /= 2;
    w->nblock = parts_of(w->m, w->rows);
    by_columns(w, 0, whole ? rows_piece : plain_piece, whole);
}

/* --- A transposed ---------------------------------------------------------------------------------------------------------------- */

/* One strip and one group. */
static void group_strip(const struct packed *w, const struct scratch *s, const float *a, const float *b, int64_t group, int64_t col)
{
    struct cpu_panel_part part = {(const char *)a, 4, GROUP * 4, b, w->units};
    run(w, s, group * GROUP, min(w->m - group * GROUP, GROUP), col, &part);
}

/* Many rows: a piece is a block of them, which is packed by who works at it. */
static void block_piece(void *ctx, int64_t piece, unsigned worker)
{
    const struct packed *w = ctx;
    struct scratch s = carve(w, worker);
    const int64_t first = piece * (BLOCK / GROUP), ngroup = min(BLOCK / GROUP, parts_of(w->m, GROUP) - first);
    for (int64_t i = 0; i < ngroup; i++)
        pack_group(w, s.rest + i * w->units * GROUP, first + i, 0, w->units);
    for (int64_t col = w->col0; col < w->col0 + w->ncol; col += CPU_PANEL_WIDTH)
        for (int64_t i = 0; i < ngroup; i++)
            group_strip(w, &s, s.rest + i * w->units * GROUP, strip_at(w, col), first + i, col);
}

static void blocks(struct packed *w)
{
    w->nblock = parts_of(w->m, BLOCK);
    by_columns(w, BLOCK * w->units, block_piece, true);
}

static void pack_groups(void *ctx, int64_t piece, unsigned worker)
{
    const struct packed *w = ctx;
    const int64_t group = piece / cuts_of(w);
    (void)worker;
    pack_group(w, w->shared + group * w->units * GROUP, group, piece % cuts_of(w) * UNITS, UNITS);
}

/* Few rows: a piece is a strip, which is packed by who works at it. */
static void thin_piece(void *ctx, int64_t piece, unsigned worker)
{
    const struct packed *w = ctx;
    struct scratch s = carve(w, worker);
    pack_b(w, &w->parts[0], s.rest, piece * CPU_PANEL_WIDTH, 0, w->units);
    for (int64_t group = 0; group * GROUP < w->m; group++)
        group_strip(w, &s, w->shared + group * w->units * GROUP, s.rest, group, piece * CPU_PANEL_WIDTH);
}

static void thin(struct packed *w)
{
    const int64_t ngroup = parts_of(w->m, GROUP);
    if (!reserve(w, CPU_PANEL_WIDTH * w->units, ngroup * GROUP * w->units))
        return;
    share_out(w, ngroup * GROUP * w->units * PACKING, ngroup * cuts_of(w), pack_groups);
    share_out(w, w->m * w->n * w->units, parts_of(w->n, CPU_PANEL_WIDTH), thin_piece);
}

/* oneDNN is the faster one where A is transposed and fp32 (measured: it takes K in parts). */
bool cpu_packed_product(struct kern_stream *stream, const struct cpu_product *p)
{
    struct packed w = {.stream = stream, .panels = stream->panels[p->g.a.dtype], .g = &p->g, .m = p->g.m, .n = p->g.n};
    if (!w.panels || (p->g.trans_a && p->g.a.dtype == KERN_F32) || !collect(&w, p))
        return false;
    if (is_turned(&w))
        turn_round(&w);
    if (!fits(&w))
        return false;
    if (!w.parts[0].trans_a)
        plain(&w);
    else if (w.m <= THIN)
        thin(&w);
    else
        blocks(&w);
    return true;
}
