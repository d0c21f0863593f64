/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of packed products. A is read in place, or packed where it is transposed or pays for it; so is B, but bf16
 * cannot be read in place, because a unit is two rows of it. A weight may give the rows instead of the columns (Cᵀ =
 * Bᵀ·Aᵀ): then the small A is packed, and each weight is read once, in place. */
#include "cpu/packed_plan.h"

enum {
    EACH = 8,    /* pieces per thread if A is in place */
    ROWS = 128,  /* least rows per piece if A is in place, so that packing B costs little beside the work */
    FEW = 512,   /* most rows of A for which a product with W may be computed transposed */
    THIN = 96,   /* most columns of a product of two transposed operands that is computed transposed */
    LINES = 64,  /* rows of a transposed product are cut at whole cache lines of C */
    UNITS = 512, /* most units of K per block: a strip of B stays in the cache that is next to the first */
};

/* How by_block cuts a product. */
struct limits {
    int64_t each;  /* pieces per thread: each packs for itself */
    int64_t rows;  /* least rows per piece, unless there are fewer */
    int64_t units; /* most units of K per block */
    int64_t cache; /* units of B, packed or not, that stay in a worker's cache beside some rows of A */
};

/* For kernels that multiply vectors; the second for processors with 2 MiB of L2 a core. */
static const struct limits with_vectors = { 4, 0, 384, 1 << 17 };
static const struct limits with_large_cache = { 1, 256, 768, 1 << 18 };
static const struct limits gradients_with_large_cache = { 1, 256, 256, 1 << 18 };
/* For kernels that multiply tiles, measured on an Intel Xeon with 48 KiB of L1 and 2 MiB of L2 a core: 320 units of
 * the rows that strips take in turn stay in its L1 while strips of B stream by. */
static const struct limits with_tiles[] = {
    { 1, 256, 320, 1 << 18 },
    { 2, 256, 320, 1 << 18 },
    { 1, 256, 1024, 1 << 18 },
};
static const struct limits gradients_with_tiles[] = {
    { 1, 256, 256, 1 << 18 },
    { 2, 256, 256, 1 << 18 },
    { 1, 256, 512, 1 << 18 },
};
enum { NWITH_TILES = sizeof(with_tiles) / sizeof(with_tiles[0]) };

static int64_t min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Cuts n into parts of about `each`, as even as multiples of `unit` allow. Returns the size of a part. */
static int64_t even(int64_t n, int64_t each, int64_t unit)
{
    const int64_t ncut = cpu_packed_cut(n, max(each, 1));
    return cpu_packed_cut(cpu_packed_cut(n, ncut), unit) * unit;
}

/* The product that a plan is for, as it is computed: it may be transposed. */
struct view {
    int64_t m, n, units;
    bool trans_a, trans_b; /* of the first part */
    int64_t nthreads, rows;
};

/* A piece is many rows of one strip. */
static struct cpu_packed_plan by_strip(const struct view *v, int nvec)
{
    const int64_t width = nvec * CPU_PANEL_LANES, nacross = cpu_packed_cut(v->n, width);
    const int64_t each = cpu_packed_cut(v->m, cpu_packed_cut(EACH * v->nthreads, nacross));
    return (struct cpu_packed_plan){ .pack_b = true,
                                     .nvec = nvec,
                                     .rows = cpu_packed_cut(max(each, ROWS), CPU_PANEL_GROUP) * CPU_PANEL_GROUP,
                                     .cols = width,
                                     .units = even(v->units, UNITS, CPU_PANEL_LANES) };
}

/* A piece is a block of rows, and as many strips as fit a worker's cache. */
static struct cpu_packed_plan by_block(const struct view *v, int nvec, bool pack_a, bool pack_b,
                                       const struct limits *most)
{
    const int64_t width = nvec * CPU_PANEL_LANES, nstrip = cpu_packed_cut(v->n, width),
                  units = even(v->units, most->units, CPU_PANEL_LANES);
    const int64_t wanted = most->each * v->nthreads, block = v->rows,
                  rows = even(v->m, max(max(v->m / wanted, block), most->rows), block),
                  nacross = cpu_packed_cut(wanted, cpu_packed_cut(v->m, rows));
    const int64_t room = max(most->cache / (units * width), 1),
                  together = even(nstrip, min(room, cpu_packed_cut(nstrip, nacross)), 1);
    return (struct cpu_packed_plan){
        .pack_a = pack_a, .pack_b = pack_b, .nvec = nvec, .rows = rows, .cols = together * width, .units = units
    };
}

/* A piece is some rows of a weight in place, and all columns. */
static struct cpu_packed_plan by_weight(const struct view *v, int nvec)
{
    return (struct cpu_packed_plan){ .transposed = true,
                                     .pack_b = true,
                                     .nvec = nvec,
                                     .rows = even(v->m, cpu_packed_cut(v->m, EACH * v->nthreads), LINES),
                                     .cols = cpu_packed_cut(v->n, nvec * CPU_PANEL_LANES) * nvec * CPU_PANEL_LANES,
                                     .units = even(v->units, UNITS, CPU_PANEL_LANES) };
}

static struct view view_of(const struct cpu_packed *w, unsigned nthreads, bool transposed)
{
    const struct cpu_packed_part *o = &w->parts[0];
    const int64_t rows = w->panels->rows;
    return transposed ? (struct view){ w->n, w->m, w->units, !o->trans_b, !o->trans_a, nthreads, rows }
                      : (struct view){ w->m, w->n, w->units, o->trans_a, o->trans_b, nthreads, rows };
}

/* Returns true if the kernels can read this product's type in place. */
static bool same_type(const struct cpu_packed *w)
{
    return w->g->a.dtype == (w->panels->elements == 2 ? KERN_BF16 : KERN_F32);
}

static bool weights_fit(const struct cpu_packed *w)
{
    bool good = w->m <= FEW && w->n > w->m;
    for (int i = 0; i < w->nparts; i++)
        good = good && w->parts[i].trans_b;
    return good;
}

/* Both operands are transposed: the narrow one gives the rows. */
static int plans_of_gradients(const struct view *v, bool transposed, bool pack_b, struct cpu_packed_plan *plans)
{
    int n = 0;
    for (int nvec = CPU_PANEL_VECTORS; nvec > 1; nvec--)
        plans[n++] = by_block(v, nvec, true, pack_b, &with_vectors);
    plans[n++] = by_block(v, CPU_PANEL_VECTORS, true, true, &gradients_with_large_cache);
    for (int i = 0; i < n; i++)
        plans[i].transposed = transposed;
    return n;
}

static int plans_with_tiles(const struct cpu_packed *w, const struct view *plain, const struct view *transposed,
                            struct cpu_packed_plan *plans)
{
    const bool fits = cpu_packed_row_fits(w, &w->parts[0]);
    for (int i = 0; i < NWITH_TILES; i++)
        plans[i] = by_block(plain, CPU_PANEL_VECTORS, !fits, true, &with_tiles[i]);
    if (!fits || !weights_fit(w))
        return NWITH_TILES;
    plans[NWITH_TILES] = by_weight(transposed, CPU_PANEL_VECTORS);
    return NWITH_TILES + 1;
}

static int gradients_by_tiles(const struct view *v, bool transposed, struct cpu_packed_plan *plans)
{
    for (int i = 0; i < NWITH_TILES; i++) {
        plans[i] = by_block(v, CPU_PANEL_VECTORS, true, true, &gradients_with_tiles[i]);
        plans[i].transposed = transposed;
    }
    return NWITH_TILES;
}

int cpu_packed_plans(const struct cpu_packed *w, unsigned nthreads, struct cpu_packed_plan plans[CPU_PACKED_PLANS])
{
    const struct view plain = view_of(w, nthreads, false), transposed = view_of(w, nthreads, true);
    const bool tiles = w->panels->grain > 1, pack_b = plain.trans_b || w->panels->elements == 2 || !same_type(w);
    int n = 0;
    if (plain.trans_a) {
        const bool thin = w->n < w->m && w->n <= THIN;
        const struct view *v = thin ? &transposed : &plain;
        return tiles ? gradients_by_tiles(v, thin, plans) : plans_of_gradients(v, thin, pack_b, plans);
    }
    if (tiles)
        return plans_with_tiles(w, &plain, &transposed, plans);
    const bool fits = cpu_packed_row_fits(w, &w->parts[0]);
    if (fits) {
        plans[n++] = by_strip(&plain, CPU_PANEL_VECTORS);
        plans[n++] = by_strip(&plain, CPU_PANEL_VECTORS - 1);
        plans[n++] = by_block(&plain, CPU_PANEL_VECTORS, false, true, &with_large_cache);
        if (weights_fit(w))
            plans[n++] = by_weight(&transposed, CPU_PANEL_VECTORS);
    }
    plans[n++] = by_block(&plain, CPU_PANEL_VECTORS, true, pack_b, &with_vectors);
    plans[n++] = by_block(&plain, CPU_PANEL_VECTORS - 1, true, pack_b, &with_vectors);
    if (!fits) {
        plans[n] = by_strip(&plain, CPU_PANEL_VECTORS);
        plans[n++].pack_a = true;
    }
    return n;
}
