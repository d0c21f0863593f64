/* SPDX-License-Identifier: Apache-2.0 */
/* A piece is some rows of some strips of C. Its worker packs B for itself, block after block along K, and keeps the
 * sums of unfinished blocks in fp32. It shares no packed panels with other workers, because waiting for them and
 * reading what another core has just written cost more than packing twice. */
#include "cpu/packed_run.h"

#include "cpu/stream.h"
#include "cpu/work.h"

#include <string.h>

enum {
    GROUP = CPU_PANEL_GROUP,
    TRANSPOSED_ROWS = 64, /* rows that all strips take in turn in a transposed product with A in place: whole cache
                             lines of C */
    LITTLE = 1 << 18 /* products of units; for fewer, waking a thread does not pay: it takes about 2 µs, as long as
                        waiting for the others */
};

/* Units u … u+n-1 of K. */
struct block {
    int64_t u, n;
    bool first, last;
};

/* A piece's rows and columns, and its worker's scratch. */
struct piece {
    int64_t row0, row1, col0, col1;
    float *bias; /* (CPU_PANEL_WIDTH) */
    float *tile; /* (TRANSPOSED_ROWS, CPU_PANEL_WIDTH): part of a transposed product */
    float *b;    /* packed strips of the columns */
    float *a;    /* the packed rows that all strips take in turn */
    float *sums; /* (rows, pitch): sums over the blocks so far */
    int64_t pitch;
};

static int64_t min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static struct kern_cmat from(struct kern_cmat m, int64_t row, int64_t col)
{
    m.data = (const char *)m.data + (row * m.pitch + col) * kern_dtype_bytes(m.dtype);
    return m;
}

static int64_t strip_width(const struct cpu_packed *w)
{
    return w->plan.nvec * CPU_PANEL_LANES;
}

/* Vectors of the strip at col. */
static int vectors(const struct cpu_packed *w, int64_t col)
{
    return (int)cpu_packed_cut(min(w->n - col, strip_width(w)), CPU_PANEL_LANES);
}

/* The share of a block that lies in one part: elements l … l+k-1 of the part, `at` units from the block's start. */
struct share {
    int64_t l, k, at, n;
};

static bool share_of(const struct cpu_packed *w, const struct cpu_packed_part *o, const struct block *block,
                     struct share *s)
{
    const int64_t u0 = max(o->at, block->u), u1 = min(o->at + cpu_packed_units(w, o->k), block->u + block->n);
    if (u0 >= u1)
        return false;
    s->l = (u0 - o->at) * w->panels->elements;
    s->k = min(o->k - s->l, (u1 - u0) * w->panels->elements);
    s->at = u0 - block->u;
    s->n = u1 - u0;
    return true;
}

/* Returns true if the strip of a part at col is read in place. */
static bool in_place(const struct cpu_packed *w, const struct cpu_packed_part *o, int64_t col)
{
    return !w->plan.pack_b && !o->trans_b && w->n - col >= strip_width(w);
}

static void pack_strip(const struct cpu_packed *w, float *strip, int64_t col, const struct block *block)
{
    const int64_t ncol = min(w->n - col, strip_width(w)), width = vectors(w, col) * CPU_PANEL_LANES;
    struct share s;
    for (const struct cpu_packed_part *o = w->parts; o < w->parts + w->nparts; o++) {
        if (!share_of(w, o, block, &s) || in_place(w, o, col))
            continue;
        const int64_t nunit = cpu_packed_cut(s.k, w->panels->elements);
        if (o->trans_b)
            w->panels->pack_rows(strip + s.at * width, width, from(o->b, col, s.l), ncol, s.k);
        else
            w->panels->pack_cols(strip + s.at * width, width, from(o->b, s.l, col), ncol, s.k);
        memset(strip + (s.at + nunit) * width, 0, (size_t)((s.n - nunit) * width) * sizeof(*strip));
    }
}

/* Floats from one copied row to the next: not a multiple of 4096 bytes, so that rows do not share cache sets. */
static int64_t row_pitch(const struct block *block)
{
    return cpu_packed_cut(block->n, CPU_PANEL_LANES) * CPU_PANEL_LANES + CPU_PANEL_LANES;
}

/* Packs rows of a transposed A: its columns. */
static void pack_transposed(const struct cpu_packed *w, float *dst, int64_t row, int64_t nrow,
                            const struct block *block)
{
    const struct cpu_panels *panels = w->panels;
    const struct cpu_packed_part *o = &w->parts[0];
    const int64_t l = block->u * panels->elements, k = min(o->k - l, block->n * panels->elements);
    if (panels->pack_transposed) {
        panels->pack_transposed(dst, row_pitch(block), from(o->a, l, row), nrow, k);
        return;
    }
    for (int64_t i = 0; i < nrow; i += GROUP)
        panels->pack_cols(dst + i * block->n, GROUP, from(o->a, l, row + i), min(w->m - row - i, GROUP), k);
}

/* Copies a part of a row of A, widened if the panels are fp32; the last grain is filled up with 0. */
static void copy_row(const struct cpu_packed *w, float *dst, const struct cpu_packed_part *o, int64_t row,
                     const struct share *s)
{
    if (w->panels->elements == 1) {
        cpu_load_copy(w->stream->simd, dst, o->a, row, s->l, s->k);
        return;
    }
    memset(dst + s->n - w->panels->grain, 0, (size_t)w->panels->grain * sizeof(*dst));
    memcpy(dst, from(o->a, row, s->l).data, (size_t)(s->k * kern_dtype_bytes(o->a.dtype)));
}

/* Returns true if A of a part is packed. */
static bool packs_a(const struct cpu_packed *w, const struct cpu_packed_part *o)
{
    return w->plan.pack_a || !cpu_packed_row_fits(w, o);
}

static void pack_a(const struct cpu_packed *w, const struct piece *p, int64_t row, int64_t nrow,
                   const struct block *block)
{
    struct share s;
    if (w->parts[0].trans_a)
        pack_transposed(w, p->a, row, nrow, block);
    for (const struct cpu_packed_part *o = w->parts; o < w->parts + w->nparts; o++)
        for (int64_t i = 0; !o->trans_a && packs_a(w, o) && share_of(w, o, block, &s) && i < nrow; i++)
            copy_row(w, p->a + i * row_pitch(block) + s.at, o, row + i, &s);
}

/* Returns true if A of a part is packed in groups of rows. */
static bool in_groups(const struct cpu_packed *w, const struct cpu_packed_part *o)
{
    return o->trans_a && !w->panels->pack_transposed;
}

/* Lists the operands of a strip's rows; row i is at a, if A is packed. */
static int list_parts(const struct cpu_packed *w, struct cpu_panel_part *parts, const float *a, const float *strip,
                      int64_t row, int64_t col, const struct block *block)
{
    const int64_t width = vectors(w, col) * CPU_PANEL_LANES;
    int n = 0;
    struct share s;
    for (const struct cpu_packed_part *o = w->parts; o < w->parts + w->nparts; o++) {
        if (!share_of(w, o, block, &s))
            continue;
        struct cpu_panel_part *part = &parts[n++];
        *part = (struct cpu_panel_part){ .unit = 4, .nunit = s.n };
        if (!o->trans_a && !packs_a(w, o)) {
            part->a = from(o->a, row, s.l).data;
            part->row = o->a.pitch * kern_dtype_bytes(o->a.dtype);
        } else if (in_groups(w, o)) {
            part->a = (const char *)a;
            part->row = 4;
            part->unit = GROUP * 4;
        } else {
            part->a = (const char *)(a + s.at);
            part->row = row_pitch(block) * 4;
        }
        part->b = in_place(w, o, col) ? from(o->b, s.l, col).data : strip + s.at * width;
        part->pitch = in_place(w, o, col) ? o->b.pitch : width;
    }
    return n;
}

/* Where rows and columns of the product as kern_gemm has it go. */
static struct cpu_panel_out out_of(const struct cpu_packed *w, const struct piece *p, int64_t row, int64_t col,
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
        cpu_load_copy(w->stream->simd, p->bias, g->bias, 0, col, ncol);
        out.bias = p->bias;
    }
    return out;
}

/* Where the sums of a strip's rows go: to C, or to scratch if more is to come or C is transposed. */
static struct cpu_panel_out sums_of(const struct cpu_packed *w, const struct piece *p, int64_t row, int64_t col,
                                    bool last)
{
    const int64_t whole = vectors(w, col) * CPU_PANEL_LANES;
    if (!last)
        return (struct cpu_panel_out){
            .c = { p->sums + (row - p->row0) * p->pitch + col - p->col0, p->pitch, KERN_F32 }, .alpha = 1, .ncol = whole
        };
    if (w->plan.transposed)
        return (struct cpu_panel_out){ .c = { p->tile, CPU_PANEL_WIDTH, KERN_F32 }, .alpha = 1, .ncol = whole };
    return out_of(w, p, row, col, min(w->n - col, strip_width(w)));
}

/* Computes rows row … row+nrow-1 of one strip over one block. They are packed in p->a, or read in place. */
static void run_strip(const struct cpu_packed *w, const struct piece *p, int64_t row, int64_t nrow, int64_t col,
                      const struct block *block)
{
    const int nvec = vectors(w, col);
    const int64_t each = in_groups(w, &w->parts[0]) ? GROUP : nrow;
    struct cpu_panel_out out = sums_of(w, p, row, col, block->last);
    for (int64_t i = 0; i < nrow; i += each) {
        struct cpu_panel_part parts[CPU_PACKED_PARTS];
        const int nparts =
            list_parts(w, parts, p->a + i * block->n, p->b + (col - p->col0) * block->n, row + i, col, block);
        if (!block->first) {
            out.start = p->sums + (row + i - p->row0) * p->pitch + col - p->col0;
            out.start_pitch = p->pitch;
        }
        w->panels->strip(min(nrow - i, each), nvec, parts, nparts, &out);
        out.c.data = (char *)out.c.data + each * out.c.pitch * kern_dtype_bytes(out.c.dtype);
        if (out.add.data)
            out.add = from(out.add, each, 0);
    }
    if (block->last && w->plan.transposed) {
        const struct cpu_panel_out c = out_of(w, p, col, row, nrow);
        w->panels->store_transposed(min(w->n - col, strip_width(w)), p->tile, &c);
    }
}

static int64_t rows_at_once(const struct cpu_packed *w)
{
    return w->plan.transposed && !w->parts[0].trans_a ? TRANSPOSED_ROWS : w->panels->rows;
}

static void run_block(const struct cpu_packed *w, const struct piece *p, const struct block *block)
{
    const int64_t width = strip_width(w), step = rows_at_once(w);
    for (int64_t col = p->col0; col < p->col1; col += width)
        pack_strip(w, p->b + (col - p->col0) * block->n, col, block);
    for (int64_t row = p->row0; row < p->row1; row += step) {
        const int64_t nrow = min(p->row1 - row, step);
        pack_a(w, p, row, nrow, block);
        for (int64_t col = p->col0; col < p->col1; col += width)
            run_strip(w, p, row, nrow, col, block);
    }
}

/* Elements of scratch that a worker needs. data NULL: only counts. */
static int64_t lay_out(const struct cpu_packed *w, struct piece *p, float *data)
{
    const int64_t units = min(w->plan.units, w->units), nblock = cpu_packed_cut(w->units, units);
    const struct block longest = { .n = units };
    int64_t at = 0;
    p->pitch = w->plan.cols;
    float **const place[] = { &p->bias, &p->tile, &p->b, &p->sums, &p->a };
    const int64_t nelem[] = { CPU_PANEL_WIDTH, TRANSPOSED_ROWS * CPU_PANEL_WIDTH, w->plan.cols * units,
                              nblock > 1 ? w->plan.rows * p->pitch : 0, rows_at_once(w) * row_pitch(&longest) };
    for (int i = 0; i < 5; i++) {
        *place[i] = data ? data + at : NULL;
        at += cpu_packed_cut(nelem[i], CPU_PANEL_LANES) * CPU_PANEL_LANES; /* strips are aligned */
    }
    return at;
}

static void run_piece(void *ctx, int64_t number, unsigned worker)
{
    const struct cpu_packed *w = ctx;
    const int64_t nacross = cpu_packed_cut(w->n, w->plan.cols);
    struct piece p = { .row0 = number / nacross * w->plan.rows, .col0 = number % nacross * w->plan.cols };
    p.row1 = min(p.row0 + w->plan.rows, w->m);
    p.col1 = min(p.col0 + w->plan.cols, w->n);
    lay_out(w, &p, w->stream->scratch[worker].data);
    if (w->panels->enter)
        w->panels->enter();
    for (int64_t u = 0; u < w->units; u += w->plan.units) {
        const struct block block = { u, min(w->plan.units, w->units - u), u == 0, u + w->plan.units >= w->units };
        run_block(w, &p, &block);
    }
    if (w->panels->leave)
        w->panels->leave();
}

static void transpose_product(struct cpu_packed *w)
{
    w->m = w->g->n;
    w->n = w->g->m;
    for (struct cpu_packed_part *o = w->parts; o < w->parts + w->nparts; o++)
        *o = (struct cpu_packed_part){ o->b, o->a, o->k, !o->trans_b, !o->trans_a, o->at };
}

void cpu_packed_run(const struct cpu_packed *product, const struct cpu_packed_plan *plan)
{
    struct cpu_packed w = *product;
    struct piece p;
    w.plan = *plan;
    w.plan.units = cpu_packed_cut(plan->units, w.panels->grain) * w.panels->grain;
    if (plan->transposed)
        transpose_product(&w);
    if (!cpu_reserve(w.stream, (size_t)lay_out(&w, &p, NULL) * sizeof(float)))
        return;
    const int64_t npieces = cpu_packed_cut(w.m, plan->rows) * cpu_packed_cut(w.n, plan->cols);
    kern_pool_run(w.m * w.n * w.units > LITTLE ? w.stream->pool : NULL, npieces, run_piece, &w);
}
