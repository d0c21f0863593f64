/* SPDX-License-Identifier: Apache-2.0 */
/* Of the tiles that are done, only the strips that others overlap are kept. */
#include "image/tiles.h"

#include <stdlib.h>
#include <string.h>

struct work {
    const struct tiles *t;
    int64_t extent;        /* pixels of the output that two tiles share */
    int64_t height, width; /* of the tile, in the output */
    float *tile;           /* (height, width, nchannel) */
    float *above;          /* for each column of tiles (extent, tile_out, nchannel): the lowest rows of the one above */
    float *left;           /* (tile_out, extent, nchannel): the last columns of the one on the left */
    int64_t nabove, nleft; /* rows and columns of these */
};

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static float *at(const struct work *w, float *values, int64_t pitch, int64_t row, int64_t col)
{
    return values + (row * pitch + col) * w->t->nchannel;
}

/* y = from·(1 - part) + y·part */
static void blend(float *y, const float *from, double part, int64_t n)
{
    const float mine = (float)part, theirs = (float)(1 - part);
    for (int64_t i = 0; i < n; i++)
        y[i] = from[i] * theirs + y[i] * mine;
}

static int64_t strip_nelem(const struct tiles *t)
{
    return t->tile_out / 4 * t->tile_out * t->nchannel;
}

static float *above_of(const struct work *w, int64_t number)
{
    return w->above + number * strip_nelem(w->t);
}

static void blend_above(struct work *w, int64_t number)
{
    const int64_t n = least(w->nabove, w->height);
    float *above = above_of(w, number);
    for (int64_t y = 0; y < n; y++)
        blend(at(w, w->tile, w->width, y, 0), at(w, above, w->t->tile_out, w->nabove - n + y, 0), (double)y / (double)n,
              w->width * w->t->nchannel);
}

static void blend_left(struct work *w)
{
    const int64_t n = least(w->nleft, w->width);
    for (int64_t y = 0; y < w->height; y++)
        for (int64_t x = 0; x < n; x++)
            blend(at(w, w->tile, w->width, y, x), at(w, w->left, w->extent, y, w->nleft - n + x), (double)x / (double)n,
                  w->t->nchannel);
}

static void keep_strips(struct work *w, int64_t number)
{
    const int64_t nrow = least(w->height, w->extent), pixel = w->t->nchannel * (int64_t)sizeof(float);
    float *above = above_of(w, number);
    for (int64_t y = 0; y < nrow; y++)
        memcpy(at(w, above, w->t->tile_out, y, 0), at(w, w->tile, w->width, w->height - nrow + y, 0),
               (size_t)(w->width * pixel));
    w->nleft = least(w->width, w->extent);
    for (int64_t y = 0; y < w->height; y++)
        memcpy(at(w, w->left, w->extent, y, 0), at(w, w->tile, w->width, y, w->width - w->nleft),
               (size_t)(w->nleft * pixel));
}

static void put(const struct work *w, int64_t i, int64_t j)
{
    const int64_t limit = w->t->tile_out - w->extent;
    for (int64_t y = 0; y < least(w->height, limit); y++)
        w->t->put(w->t->ctx, i * limit + y, j * limit, least(w->width, limit), at(w, w->tile, w->width, y, 0));
}

static int run_row(struct work *w, int64_t i, struct fsdpck_error *err)
{
    const struct tiles *t = w->t;
    const int64_t step = t->tile_in - t->tile_in / 4, row = i * step, height = least(t->tile_in, t->height - row);
    int rc = 0;
    w->height = height * t->tile_out / t->tile_in;
    w->nleft = 0;
    for (int64_t j = 0, col = 0; col < t->width && !rc; j++, col += step) {
        const int64_t width = least(t->tile_in, t->width - col);
        w->width = width * t->tile_out / t->tile_in;
        rc = t->compute(t->ctx, row, col, height, width, w->tile, err);
        if (rc)
            return rc;
        blend_above(w, j);
        blend_left(w);
        keep_strips(w, j);
        put(w, i, j);
    }
    w->nabove = least(w->height, w->extent);
    return rc;
}

static int64_t columns_of(const struct tiles *t)
{
    const int64_t step = t->tile_in - t->tile_in / 4;
    return (t->width + step - 1) / step;
}

uint64_t tiles_nbytes(const struct tiles *t)
{
    const int64_t tile = t->tile_out * t->tile_out * t->nchannel;
    return (uint64_t)(tile + (columns_of(t) + 1) * strip_nelem(t)) * sizeof(float);
}

int tiles_run(const struct tiles *t, struct fsdpck_error *err)
{
    struct work w = { .t = t, .extent = t->tile_out / 4 };
    const int64_t step = t->tile_in - t->tile_in / 4;
    float *memory = malloc(tiles_nbytes(t));
    int rc = memory ? 0 : fsdpck_error_nomem(err, tiles_nbytes(t));
    if (rc)
        return rc;
    w.left = memory;
    w.above = memory + strip_nelem(t);
    w.tile = w.above + columns_of(t) * strip_nelem(t);
    for (int64_t i = 0; i * step < t->height && !rc; i++)
        rc = run_row(&w, i, err);
    free(memory);
    return rc;
}
