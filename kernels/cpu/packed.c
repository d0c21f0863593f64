/* Three ways to cut a product, which differ in what is packed; an element of C has the same bits in all of them. B's panels always are packed (or A's, where
 * the product is turned); the other operand is read as it lies, but for one that is transposed. */
#include "cpu/packed.h"

#include "cpu/panels.h"
#include "cpu/stream.h"
#include "cpu/work.h"

enum {
    MOST_PARTS = 8,
    ROWS = 512,          /* rows of a piece: what packing its strip of B is worth it for */
    LEAST_ROWS = 128,
    WANTED = 16,         /* pieces that a product should have, for threads to share */
    FEW = 384,           /* rows of A below which it is better packed itself, and W read as it lies */
    BLOCK = 2 * CPU_PANEL_GROUP, /* rows of a piece where A is packed, or of W where the product is turned */
    THIN = 2 * BLOCK,    /* rows of a transposed A below which B is not packed for all pieces together */
    UNITS = 128,         /* of K in a piece of packing */
    MOST_UNITS = 1 << 16 /* of K: a worker's packed strip stays below 16 MiB */
};

/* C += a · b; as in kern_gemm. */
struct operands {
    struct kern_cmat a, b;
    int64_t k;
    bool trans_a, trans_b;
    int64_t at; /* units of K of the operands before */
};

struct packed {
    struct kern_stream *stream;
    const struct cpu_panels *panels;
    const struct kern_gemm *g;
    struct operands parts[MOST_PARTS];
    int nparts;
    int64_t units;         /* of K, of all parts */
    int64_t rows, nstrip;  /* of a piece; of B */
    float *shared;         /* what was packed for all pieces */
};

static int64_t min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static struct kern_cmat from(struct kern_cmat m, int64_t row, int64_t col)
{
    m.data = (const char *)m.data + (row * m.pitch + col) * kern_dtype_bytes(m.dtype);
    return m;
}

static int64_t units(const struct packed *w, int64_t k)
{
    return (k + w->panels->elements - 1) / w->panels->elements;
}

static int vectors(int64_t n)
{
    return (int)((min(n, CPU_PANEL_WIDTH) + CPU_PANEL_LANES - 1) / CPU_PANEL_LANES);
}

/* Whether the parts are of one type, and rows that are read as they lie end with a whole unit. */
static bool fits(const struct packed *w, const struct operands *o)
{
    bool whole = o->k % w->panels->elements == 0;
    return o->a.dtype == w->g->a.dtype && o->b.dtype == w->g->a.dtype && (whole || o->trans_a);
}

static bool add_part(struct packed *w, struct operands o)
{
    if (o.k == 0)
        return true;
    if (w->nparts == MOST_PARTS || !fits(w, &o))
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

/* A worker's scratch: a strip of B, a bias, and what else a way needs. */
struct scratch {
    float *strip, *bias, *rest;
};

static struct scratch carve(const struct packed *w, unsigned worker)
{
    float *data = w->stream->scratch[worker].data;
    return (struct scratch){data + CPU_PANEL_WIDTH, data, data + CPU_PANEL_WIDTH * (1 + w->units)};
}

static bool reserve(const struct packed *w, int64_t rest)
{
    return cpu_reserve(w->stream, (size_t)(CPU_PANEL_WIDTH * (1 + w->units) + rest) * sizeof(float));
}

/* Units u … u+n-1 of a part's columns of B from col on, at their place in a strip. */
static void pack_b(const struct packed *w, const struct operands *o, float *strip, int64_t col, int64_t u, int64_t n)
{
    const int64_t ncol = min(w->g->n - col, CPU_PANEL_WIDTH), width = vectors(ncol) * CPU_PANEL_LANES, l = u * w->panels->elements;
    const int64_t k = min(o->k - l, n * w->panels->elements);
    if (o->trans_b)
        w->panels->pack_rows(strip + (o->at + u) * width, width, from(o->b, col, l), ncol, k);
    else
        w->panels->pack_cols(strip + (o->at + u) * width, width, from(o->b, l, col), ncol, k);
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

/* --- rows of A as they lie, a strip of B packed by who works at it ---------------------------------------------------------------- */

static void plain_piece(void *ctx, int64_t piece, unsigned worker)
{
    const struct packed *w = ctx;
    const int64_t col = piece % w->nstrip * CPU_PANEL_WIDTH, row = piece / w->nstrip * w->rows, ncol = min(w->g->n - col, CPU_PANEL_WIDTH);
    const int nvec = vectors(ncol);
    struct scratch s = carve(w, worker);
    struct cpu_panel_part parts[MOST_PARTS];
    for (int i = 0; i < w->nparts; i++) {
        const struct operands *o = &w->parts[i];
        pack_b(w, o, s.strip, col, 0, units(w, o->k));
        parts[i] = (struct cpu_panel_part){from(o->a, row, 0).data, o->a.pitch * kern_dtype_bytes(o->a.dtype), 4, s.strip + o->at * nvec * CPU_PANEL_LANES,
                                           units(w, o->k)};
    }
    const struct cpu_panel_out out = out_of(w, &s, row, col, ncol);
    w->panels->strip(min(w->rows, w->g->m - row), nvec, parts, w->nparts, &out);
}

static void plain(struct packed *w)
{
    w->rows = ROWS;
    while (w->rows > LEAST_ROWS && (w->g->m + w->rows - 1) / w->rows * w->nstrip < WANTED)
        w->rows /= 2;
    if (reserve(w, 0))
        kern_pool_run(w->stream->pool, (w->g->m + w->rows - 1) / w->rows * w->nstrip, plain_piece, w);
}

/* --- few rows of A, packed; rows of W as they lie; C comes out turned ------------------------------------------------------------ */

static void pack_turned(void *ctx, int64_t piece, unsigned worker)
{
    const struct packed *w = ctx;
    const int64_t row = piece * CPU_PANEL_WIDTH, nrow = min(w->g->m - row, CPU_PANEL_WIDTH), width = vectors(nrow) * CPU_PANEL_LANES;
    (void)worker;
    for (int i = 0; i < w->nparts; i++)
        w->panels->pack_rows(w->shared + row * w->units + w->parts[i].at * width, width, from(w->parts[i].a, row, 0), nrow, w->parts[i].k);
}

static void turned_piece(void *ctx, int64_t piece, unsigned worker)
{
    const struct packed *w = ctx;
    const int64_t col = piece * BLOCK, ncol = min(w->g->n - col, BLOCK);
    struct scratch s = carve(w, worker);
    struct cpu_panel_part parts[MOST_PARTS];
    for (int64_t row = 0; row < w->g->m; row += CPU_PANEL_WIDTH) {
        const int64_t nrow = min(w->g->m - row, CPU_PANEL_WIDTH), width = vectors(nrow) * CPU_PANEL_LANES;
        const struct cpu_panel_out sums = {.c = {s.rest, CPU_PANEL_WIDTH, KERN_F32}, .alpha = 1, .ncol = width}, out = out_of(w, &s, row, col, ncol);
        for (int i = 0; i < w->nparts; i++) {
            const struct operands *o = &w->parts[i];
            parts[i] = (struct cpu_panel_part){from(o->b, col, 0).data, o->b.pitch * kern_dtype_bytes(o->b.dtype), 4,
                                               w->shared + row * w->units + o->at * width, units(w, o->k)};
        }
        w->panels->strip(ncol, vectors(nrow), parts, w->nparts, &sums);
        w->panels->turn(nrow, s.rest, &out);
    }
}

static void turned(struct packed *w)
{
    const int64_t nstrip = (w->g->m + CPU_PANEL_WIDTH - 1) / CPU_PANEL_WIDTH;
    w->shared = cpu_reserve_shared(w->stream, (size_t)(nstrip * CPU_PANEL_WIDTH * w->units) * sizeof(float));
    if (!w->shared || !reserve(w, CPU_PANEL_WIDTH * CPU_PANEL_WIDTH))
        return;
    kern_pool_run(w->stream->pool, nstrip, pack_turned, w);
    kern_pool_run(w->stream->pool, (w->g->n + BLOCK - 1) / BLOCK, turned_piece, w);
}

/* --- A transposed: packed by groups of its columns ------------------------------------------------------------------------------- */

/* Group `group` of A's columns, its units from u on. */
static void pack_group(const struct packed *w, float *dst, int64_t group, int64_t u, int64_t n)
{
    const struct operands *o = &w->parts[0];
    const int64_t col = group * CPU_PANEL_GROUP, l = u * w->panels->elements;
    w->panels->pack_cols(dst + u * CPU_PANEL_GROUP, CPU_PANEL_GROUP, from(o->a, l, col), min(w->g->m - col, CPU_PANEL_GROUP),
                         min(o->k - l, n * w->panels->elements));
}

/* One strip and one group. */
static void group_strip(const struct packed *w, const struct scratch *s, const float *a, const float *b, int64_t group, int64_t col)
{
    const int64_t row = group * CPU_PANEL_GROUP, ncol = min(w->g->n - col, CPU_PANEL_WIDTH);
    const struct cpu_panel_part part = {(const char *)a, 4, CPU_PANEL_GROUP * 4, b, w->units};
    const struct cpu_panel_out out = out_of(w, s, row, col, ncol);
    w->panels->strip(min(w->g->m - row, CPU_PANEL_GROUP), vectors(ncol), &part, 1, &out);
}

static int64_t cuts_of(const struct packed *w)
{
    return (w->units + UNITS - 1) / UNITS;
}

/* Few rows: all groups are packed for all, a piece is a strip. */
static void pack_groups_piece(void *ctx, int64_t piece, unsigned worker)
{
    const struct packed *w = ctx;
    const int64_t group = piece / cuts_of(w);
    (void)worker;
    pack_group(w, w->shared + group * w->units * CPU_PANEL_GROUP, group, piece % cuts_of(w) * UNITS, UNITS);
}

static void thin_piece(void *ctx, int64_t piece, unsigned worker)
{
    const struct packed *w = ctx;
    struct scratch s = carve(w, worker);
    pack_b(w, &w->parts[0], s.strip, piece * CPU_PANEL_WIDTH, 0, w->units);
    for (int64_t group = 0; group * CPU_PANEL_GROUP < w->g->m; group++)
        group_strip(w, &s, w->shared + group * w->units * CPU_PANEL_GROUP, s.strip, group, piece * CPU_PANEL_WIDTH);
}

static void thin(struct packed *w)
{
    const int64_t ngroup = (w->g->m + CPU_PANEL_GROUP - 1) / CPU_PANEL_GROUP;
    w->shared = cpu_reserve_shared(w->stream, (size_t)(ngroup * CPU_PANEL_GROUP * w->units) * sizeof(float));
    if (!w->shared || !reserve(w, 0))
        return;
    kern_pool_run(w->stream->pool, ngroup * cuts_of(w), pack_groups_piece, w);
    kern_pool_run(w->stream->pool, w->nstrip, thin_piece, w);
}

/* Many rows: B is packed for all, a piece is a block of rows. */
static void pack_strips_piece(void *ctx, int64_t piece, unsigned worker)
{
    const struct packed *w = ctx;
    const int64_t col = piece / cuts_of(w) * CPU_PANEL_WIDTH;
    (void)worker;
    pack_b(w, &w->parts[0], w->shared + col * w->units, col, piece % cuts_of(w) * UNITS, UNITS);
}

static void block_piece(void *ctx, int64_t piece, unsigned worker)
{
    const struct packed *w = ctx;
    struct scratch s = carve(w, worker);
    const int64_t first = piece * (BLOCK / CPU_PANEL_GROUP), end = min(first + BLOCK / CPU_PANEL_GROUP, (w->g->m + CPU_PANEL_GROUP - 1) / CPU_PANEL_GROUP);
    for (int64_t group = first; group < end; group++)
        pack_group(w, s.rest + (group - first) * w->units * CPU_PANEL_GROUP, group, 0, w->units);
    for (int64_t col = 0; col < w->g->n; col += CPU_PANEL_WIDTH)
        for (int64_t group = first; group < end; group++)
            group_strip(w, &s, s.rest + (group - first) * w->units * CPU_PANEL_GROUP, w->shared + col * w->units, group, col);
}

static void blocks(struct packed *w)
{
    w->shared = cpu_reserve_shared(w->stream, (size_t)(w->nstrip * CPU_PANEL_WIDTH * w->units) * sizeof(float));
    if (!w->shared || !reserve(w, BLOCK * w->units))
        return;
    kern_pool_run(w->stream->pool, w->nstrip * cuts_of(w), pack_strips_piece, w);
    kern_pool_run(w->stream->pool, (w->g->m + BLOCK - 1) / BLOCK, block_piece, w);
}

/* --------------------------------------------------------------------------------------------------------------------------------- */

static bool is_turned(const struct packed *w)
{
    bool good = w->g->m <= FEW && w->g->n > w->g->m;
    for (int i = 0; i < w->nparts; i++)
        good = good && w->parts[i].trans_b;
    return good;
}

bool cpu_packed_product(struct kern_stream *stream, const struct cpu_product *p)
{
    struct packed w = {.stream = stream, .panels = stream->panels[p->g.a.dtype], .g = &p->g, .nstrip = (p->g.n + CPU_PANEL_WIDTH - 1) / CPU_PANEL_WIDTH};
    if (!w.panels || !collect(&w, p))
        return false;
    if (p->g.trans_a && p->g.m <= THIN)
        thin(&w);
    else if (p->g.trans_a)
        blocks(&w);
    else if (is_turned(&w))
        turned(&w);
    else
        plain(&w);
    return true;
}
