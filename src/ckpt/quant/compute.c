/* SPDX-License-Identifier: Apache-2.0 */
/* Boxes of logical weights from boxes of stored codes. */
#include "quant/compute.h"

#include <string.h>

enum { TILE_ROWS = 16, TILE_COLS = 512 };

struct job {
    struct fsdpck_quant_inputs *in;
    struct fsdpck_fetch *f;
    const struct fsdpck_quant_weight *w;
    uint64_t item, stride;
    struct fsdpck_error *err;
};

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* ---- writing what is loaded ---- */

static void write_rows(const struct job *j, const struct fsdpck_quant_box *b, uint8_t *dst)
{
    for (uint64_t i = 0; i < b->nrows; i++)
        fsdpck_quant_row(j->in, b->row + i, b->col, b->ncols, dst + i * j->stride);
}

typedef uint16_t lanes __attribute__((vector_size(16)));
#define LOW(a, b)  __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define HIGH(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)

/* Transposes 8 x 8 elements of 2 bytes: three rounds that interleave row i with row i + 4. */
static void turn_8x8(const uint8_t *in, uint64_t in_stride, uint8_t *out, uint64_t out_stride)
{
    lanes a[8], b[8];
    for (int i = 0; i < 8; i++)
        memcpy(&a[i], in + (uint64_t)i * in_stride, sizeof a[i]);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 4; i++) {
            b[2 * i] = LOW(a[i], a[i + 4]);
            b[2 * i + 1] = HIGH(a[i], a[i + 4]);
        }
        memcpy(a, b, sizeof a);
    }
    for (int i = 0; i < 8; i++)
        memcpy(out + (uint64_t)i * out_stride, &a[i], sizeof a[i]);
}

static void turn_some(const uint8_t *tile, uint64_t nrows, uint64_t ncols, size_t item, uint8_t *dst, uint64_t stride)
{
    for (uint64_t k = 0; k < ncols; k++)
        for (uint64_t i = 0; i < nrows; i++)
            memcpy(dst + k * stride + i * item, tile + (i * TILE_COLS + k) * item, item);
}

/* Writes a tile's columns as rows of dst. */
static void turn(const uint8_t *tile, uint64_t nrows, uint64_t ncols, size_t item, uint8_t *dst, uint64_t stride)
{
    const uint64_t pitch = TILE_COLS * item, whole = item == 2 ? ncols / 8 * 8 : 0;
    if (item != 2 || nrows % 8 != 0) {
        turn_some(tile, nrows, ncols, item, dst, stride);
        return;
    }
    for (uint64_t k = 0; k < whole; k += 8)
        for (uint64_t i = 0; i < nrows; i += 8)
            turn_8x8(tile + i * pitch + k * 2, pitch, dst + k * stride + i * 2, stride);
    turn_some(tile + whole * 2, nrows, ncols - whole, 2, dst + whole * stride, stride);
}

/* Stored rows become columns, a tile at a time. */
static void write_turned(const struct job *j, const struct fsdpck_quant_box *b, uint8_t *dst)
{
    uint8_t tile[TILE_ROWS * TILE_COLS * sizeof(float)];
    for (uint64_t i = 0; i < b->nrows; i += TILE_ROWS)
        for (uint64_t k = 0; k < b->ncols; k += TILE_COLS) {
            uint64_t nr = least(TILE_ROWS, b->nrows - i), nc = least(TILE_COLS, b->ncols - k);
            for (uint64_t r = TILE_ROWS; r < 2 * TILE_ROWS && i + r < b->nrows; r++)
                fsdpck_quant_prefetch(j->in, b->row + i + r, b->col + k, nc);
            for (uint64_t r = 0; r < nr; r++)
                fsdpck_quant_row(j->in, b->row + i + r, b->col + k, nc, tile + r * TILE_COLS * j->item);
            turn(tile, nr, nc, j->item, dst + k * j->stride + i * j->item, j->stride);
        }
}

/* ---- boxes that fit ---- */

static int run_piece(const struct job *j, const struct fsdpck_quant_box *b, uint8_t *dst)
{
    int rc = fsdpck_quant_load(j->in, j->f, j->w, b, j->err);
    if (rc || j->f->dry)
        return rc;
    (j->w->transposed ? write_turned : write_rows)(j, b, dst);
    return 0;
}

/* A box of one stored matrix. dst: of its first element. */
static int run_box(const struct job *j, const struct fsdpck_quant_box *b, uint8_t *dst)
{
    const struct fsdpck_quant_weight *w = j->w;
    uint64_t most = w->group_cols < FSDPCK_QUANT_PIECE ? (FSDPCK_QUANT_GRID - 2) * w->group_cols : FSDPCK_QUANT_PIECE;
    uint64_t ncols = least(b->ncols, least(most, FSDPCK_QUANT_PIECE));
    uint64_t per_row = fsdpck_quant_has_whole_grid_rows(w) ? w->grid_cols : ncols / w->group_cols + 2;
    uint64_t by_codes = FSDPCK_QUANT_PIECE / ncols, by_grid = FSDPCK_QUANT_GRID / per_row * w->group_rows;
    uint64_t nrows = least(by_codes, by_grid);
    int rc = 0;
    if (fsdpck_quant_is_whole(w))
        return run_piece(j, b, dst);
    if (nrows == 0)
        nrows = 1;
    for (uint64_t i = 0; i < b->nrows && !rc; i += nrows)
        for (uint64_t k = 0; k < b->ncols && !rc; k += ncols) {
            struct fsdpck_quant_box piece = { b->mat, b->row + i, least(nrows, b->nrows - i), b->col + k,
                                              least(ncols, b->ncols - k) };
            uint64_t down = w->transposed ? k : i, along = w->transposed ? i : k;
            rc = run_piece(j, &piece, dst + down * j->stride + along * j->item);
        }
    return rc;
}

/* bitsandbytes: the box is runs of the flattened weight. */
static int run_flat(const struct job *j, const struct fsdpck_matrix_box *box, uint64_t cols, uint8_t *dst)
{
    const bool one = box->ncols == cols && j->stride == cols * j->item;
    int rc = 0;
    for (uint64_t i = 0; i < (one ? 1 : box->nrows) && !rc; i++) {
        struct fsdpck_quant_box run = { 0, 0, 1, (box->row + i) * cols + box->col,
                                        one ? box->nrows * cols : box->ncols };
        rc = run_box(j, &run, dst + i * j->stride);
    }
    return rc;
}

int fsdpck_quant_compute(struct fsdpck_quant_inputs *in, struct fsdpck_fetch *f, const struct fsdpck_quant_weight *w,
                         const struct fsdpck_matrix_box *box, void *dst, uint64_t stride, struct fsdpck_error *err)
{
    const struct job j = { in, f, w, fsdpck_dtype_info(in->decode.to)->nbytes, stride, err };
    if (w->flat)
        return run_flat(&j, box, w->shape[w->ndim - 1], dst);
    const uint64_t height = w->transposed ? w->cols : w->rows;
    int rc = 0;
    for (uint64_t at = 0, n; at < box->nrows && !rc; at += n) { /* one matrix after another */
        uint64_t mat = (box->row + at) / height, row = (box->row + at) % height;
        n = least(height - row, box->nrows - at);
        struct fsdpck_quant_box b = w->transposed ? (struct fsdpck_quant_box){ mat, box->col, box->ncols, row, n }
                                                  : (struct fsdpck_quant_box){ mat, row, n, box->col, box->ncols };
        rc = run_box(&j, &b, (uint8_t *)dst + at * stride);
    }
    return rc;
}
