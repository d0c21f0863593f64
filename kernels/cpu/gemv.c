/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix-vector products. The rows of all matrices of a call form one list of pieces. One thread sums a row from its
 * first element to its last. A piece is taken for all products of a call in turn, while it is in the cache. */
#include "cpu/ops.h"
#include "cpu/work.h"

#include <string.h>

enum {
    PIECE = 32 * 1024, /* elements per piece: enough to read from memory at full speed, few enough that threads can
                          share a small matrix */
    ALONE = 32 * 1024, /* elements of a whole call; for fewer, waking threads does not pay */
    ROWS = 512,        /* most rows per piece */
};

struct gemv_work {
    const struct cpu_simd *simd;
    const struct kern_gemv *g;
    const float *x; /* (1 + nalso, k) widened */
    int64_t rows;   /* rows per piece */
};

/* y (nrow) = rows row … of w, times x. */
static void dot_rows(const struct cpu_simd *simd, float *y, struct kern_cmat w, int64_t row, int64_t nrow,
                     const float *x, int64_t n)
{
    if (w.dtype == KERN_BF16) {
        simd->dot_rows(y, (const uint16_t *)w.data + row * w.pitch, w.pitch, x, nrow, n);
        return;
    }
    for (int64_t i = 0; i < nrow; i++)
        y[i] = simd->dot((const float *)w.data + (row + i) * w.pitch, x, n);
}

static void run_rows(const struct gemv_work *w, const struct kern_gemv_part *p, const float *x, int64_t row,
                     int64_t nrow)
{
    const struct cpu_simd *simd = w->simd;
    float y[ROWS], part[ROWS];
    dot_rows(simd, y, p->w, row, nrow, x, w->g->k);
    if (p->alpha != 1)
        simd->scale(y, y, p->alpha, nrow);
    if (p->r) {
        dot_rows(simd, part, p->b, row, nrow, p->s, p->r);
        simd->add(y, y, part, nrow);
    }
    if (p->bias.data)
        simd->add(y, y, cpu_load(simd, p->bias, 0, row, nrow, part), nrow);
    if (p->add.data)
        simd->add(y, y, cpu_load(simd, p->add, 0, row, nrow, part), nrow);
    cpu_store(simd, p->y, 0, row, nrow, y);
}

static int64_t pieces_of(const struct gemv_work *w, const struct kern_gemv_part *p)
{
    return (p->n + w->rows - 1) / w->rows;
}

static void run_piece(void *ctx, int64_t piece, unsigned worker)
{
    const struct gemv_work *w = ctx;
    const struct kern_gemv_part *p = w->g->parts;
    (void)worker;
    for (; piece >= pieces_of(w, p); p++)
        piece -= pieces_of(w, p);
    const int64_t row = piece * w->rows, nrow = p->n - row < w->rows ? p->n - row : w->rows, part = p - w->g->parts;
    run_rows(w, p, w->x, row, nrow);
    for (int i = 0; i < w->g->nalso; i++)
        run_rows(w, &w->g->also[i].parts[part], w->x + (i + 1) * w->g->k, row, nrow);
}

void cpu_gemv(struct kern_stream *stream, const struct kern_gemv *g)
{
    struct gemv_work w = { .simd = stream->simd, .g = g, .rows = g->k > 0 ? PIECE / g->k : ROWS };
    int64_t npieces = 0, nrow = 0;
    w.rows = w.rows < 1 ? 1 : w.rows > ROWS ? ROWS : w.rows;
    for (int i = 0; i < g->nparts; i++) {
        npieces += pieces_of(&w, &g->parts[i]);
        nrow += g->parts[i].n;
    }
    if (!cpu_check(stream, g->k >= 0, "gemv: negative shape") ||
        !cpu_reserve(stream, (size_t)(g->k * (g->nalso + 1) + 1) * sizeof(float)))
        return;
    float *x = stream->scratch[0].data; /* scratch of worker 0; the others only read it */
    cpu_load_copy(w.simd, x, g->x, 0, 0, g->k);
    for (int i = 0; i < g->nalso; i++)
        cpu_load_copy(w.simd, x + (i + 1) * g->k, g->also[i].x, 0, 0, g->k);
    w.x = x;
    kern_pool_run(nrow * g->k * (g->nalso + 1) <= ALONE ? NULL : stream->pool, npieces, run_piece, &w);
}
