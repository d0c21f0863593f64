/* SPDX-License-Identifier: Apache-2.0 */
/* A picture in overlapping tiles, each computed alone, which are blended where they overlap: diffusers' enable_tiling()
 * of autoencoders (autoencoder_kl_flux2.py), with a quarter of overlap. Takes the memory of one tile. */
#ifndef TRAIN_TILES_H
#define TRAIN_TILES_H

#include <fsdpck/error.h>
#include <stdint.h>

struct tiles {
    int64_t height, width;     /* of the input */
    int64_t tile_in, tile_out; /* sides of a tile in the input and in the output: multiples of 4 */
    int64_t nchannel;          /* of the output */
    /* Computes the output of a rectangle of the input: (height · tile_out / tile_in, …, nchannel). */
    int (*compute)(void *ctx, int64_t row, int64_t col, int64_t height, int64_t width, float *out,
                   struct fsdpck_error *err);
    /* Takes n pixels of a row of the output, from (row, col) on. */
    void (*put)(void *ctx, int64_t row, int64_t col, int64_t n, const float *values);
    void *ctx;
};

uint64_t tiles_nbytes(const struct tiles *t); /* the memory that tiles_run() takes, besides that of compute */
int tiles_run(const struct tiles *t, struct fsdpck_error *err);

#endif
