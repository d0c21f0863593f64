/* SPDX-License-Identifier: Apache-2.0 */
/* Dequantizes rows: computes the scales of a strip, then lets the vector loops multiply group by group. Rows that
 * become columns are dequantized tile by tile. */
#include "cpu/ops.h"
#include "cpu/work.h"

#include <math.h>
#include <string.h>

static float e4m3(uint8_t code)
{
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    float x = exponent == 15 && mantissa == 7 ? NAN
              : exponent                      ? ldexpf((float)(8 + mantissa), exponent - 10)
                                              : ldexpf((float)mantissa, -9);
    return code & 0x80 ? -x : x;
}

struct job {
    const struct kern_dequantize *d;
    const struct cpu_simd *simd; /* of tiles */
    float byte_scale[256];       /* of scales that are bytes: the value before `global` */
};

static float scale_of(const struct job *j, const unsigned char *row, int64_t group)
{
    const struct kern_packed *form = &j->d->form;
    const unsigned char *scales = row + form->scales_at;
    float scale, global;
    if (form->scale == KERN_SCALE_F32) {
        memcpy(&scale, scales + group * (int64_t)sizeof scale, sizeof scale);
        return scale;
    }
    scale = j->byte_scale[scales[group]];
    if (form->scale == KERN_SCALE_E8M0)
        return scale;
    memcpy(&global, row + form->global_at, sizeof global);
    return form->scale == KERN_SCALE_E4M3_TIMES ? scale * global : scale / global;
}

/* Dequantizes columns [col, col + n) of one group. */
static void run_group(const struct cpu_simd *simd, const struct job *j, const unsigned char *row, float scale,
                      int64_t col, int64_t n, uint16_t *out)
{
    const struct kern_packed *form = &j->d->form;
    if (form->code == KERN_CODE_E4M3)
        simd->scale_e4m3(out, row + col, scale, n);
    else
        simd->scale_nibbles(out, row, form->values, scale, col, n);
}

/* Dequantizes columns [col, col + n) of a row. */
static void run_row(const struct cpu_simd *simd, const struct job *j, int64_t row, int64_t col, int64_t n,
                    uint16_t *out)
{
    const struct kern_dequantize *d = j->d;
    const struct kern_packed *form = &d->form;
    const unsigned char *bytes = (const unsigned char *)d->rows + row * form->pitch;
    const int64_t phase = form->flat ? (d->first + row) * d->ncol % form->group : 0;
    for (int64_t i = 0, some; i < n; i += some) {
        const int64_t group = (phase + col + i) / form->group, end = (group + 1) * form->group - phase;
        some = end - col < n ? end - col - i : n - i;
        run_group(simd, j, bytes, scale_of(j, bytes, group), col + i, some, out + i);
    }
}

static void dequantize_strip(const struct cpu_simd *simd, void *ctx, int64_t row, int64_t col, int64_t n)
{
    const struct job *j = ctx;
    const struct kern_mat *to = &j->d->to;
    const int64_t at = row * to->pitch + col;
    uint16_t strip[CPU_STRIP], *out = to->dtype == KERN_BF16 ? (uint16_t *)to->data + at : strip;
    run_row(simd, j, row, col, n, out);
    if (to->dtype == KERN_F32)
        simd->widen((float *)to->data + at, strip, n);
}

enum { TILE_ROWS = 32, TILE_COLS = 256 }; /* a row of the result is written by cache lines */

typedef uint16_t lanes __attribute__((vector_size(16)));
#define LOW(a, b)  __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define HIGH(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)

/* Three rounds that interleave row i with row i + 4. in: of a tile; out: (8, TILE_ROWS) */
static void turn_8x8(const uint16_t *in, uint16_t *out)
{
    lanes a[8], b[8];
    for (int i = 0; i < 8; i++)
        memcpy(&a[i], in + i * TILE_COLS, sizeof a[i]);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 4; i++) {
            b[2 * i] = LOW(a[i], a[i + 4]);
            b[2 * i + 1] = HIGH(a[i], a[i + 4]);
        }
        memcpy(a, b, sizeof a);
    }
    for (int i = 0; i < 8; i++)
        memcpy(out + i * TILE_ROWS, &a[i], sizeof a[i]);
}

static void put_column(const struct cpu_simd *simd, struct kern_mat to, int64_t at, const uint16_t *column, int64_t n)
{
    if (to.dtype == KERN_F32)
        simd->widen((float *)to.data + at, column, n);
    else
        memcpy((uint16_t *)to.data + at, column, (size_t)n * sizeof *column);
}

static void turn_tile(void *ctx, int64_t piece, unsigned worker)
{
    const struct job *j = ctx;
    const struct kern_dequantize *d = j->d;
    const int64_t ncuts = (d->ncol + TILE_COLS - 1) / TILE_COLS, row = piece / ncuts * TILE_ROWS,
                  col = piece % ncuts * TILE_COLS, nrow = d->nrow - row < TILE_ROWS ? d->nrow - row : TILE_ROWS,
                  ncol = d->ncol - col < TILE_COLS ? d->ncol - col : TILE_COLS;
    uint16_t tile[TILE_ROWS][TILE_COLS], columns[8][TILE_ROWS];
    (void)worker;
    if (nrow < TILE_ROWS || ncol < TILE_COLS)
        memset(tile, 0, sizeof tile);
    for (int64_t i = 0; i < nrow; i++)
        run_row(j->simd, j, row + i, col, ncol, tile[i]);
    for (int64_t k = 0; k < ncol; k += 8) {
        for (int i = 0; i < TILE_ROWS; i += 8)
            turn_8x8(&tile[i][k], &columns[0][i]);
        for (int64_t i = k; i < ncol && i < k + 8; i++)
            put_column(j->simd, d->to, (col + i) * d->to.pitch + row, columns[i - k], nrow);
    }
}

static void turn_all(struct kern_stream *stream, struct job *j)
{
    const int64_t down = (j->d->nrow + TILE_ROWS - 1) / TILE_ROWS, along = (j->d->ncol + TILE_COLS - 1) / TILE_COLS;
    j->simd = stream->simd;
    kern_pool_run(stream->pool, down * along, turn_tile, j);
}

void cpu_dequantize(struct kern_stream *stream, const struct kern_dequantize *d)
{
    struct job j = { .d = d };
    if (!cpu_check(stream, d->form.group > 0 && !(d->form.code == KERN_CODE_NIBBLES && d->ncol % 2),
                   "dequantize: nibbles need an even number of columns, and groups at least one"))
        return;
    for (int code = 0; code < 256 && d->form.scale != KERN_SCALE_F32; code++)
        j.byte_scale[code] = d->form.scale != KERN_SCALE_E8M0 ? e4m3((uint8_t)code)
                             : code == 255                    ? NAN
                                                              : ldexpf(1.0f, code - 127);
    if (d->turned)
        turn_all(stream, &j);
    else
        cpu_for_strips(stream, d->nrow, d->ncol, dequantize_strip, &j);
}
