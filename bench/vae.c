/* SPDX-License-Identifier: Apache-2.0 */
/* Encodes and decodes a random picture with the autoencoder of a pipeline: vae PIPELINE SIDE fp32|bf16 THREADS. Prints
 * the seconds of the best of three as one JSON object. Of a side larger than sample_size, the decoder in tiles too: its
 * seconds, and the seam: the largest mean step that it puts between two neighbouring rows or columns of pixels, beyond
 * that of the whole picture, of 255. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "image/vae.h"

enum { TRIES = 3 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void must(int rc, const struct fsdpck_error *err)
{
    char text[2048];
    if (!rc)
        return;
    fprintf(stderr, "vae: %s\n", fsdpck_error_format(err, text, sizeof text));
    exit(1);
}

struct job {
    const struct vae *vae;
    const struct kern_device *device;
    struct kern_stream *stream;
    int64_t side;
    uint8_t *pixels; /* (side, side, 3) */
    float *latents;
};

/* Half of the autoencoder, once. */
static void run(struct job *j, bool encoder)
{
    struct fsdpck_error err = { 0 };
    const int64_t unit = vae_unit(j->vae);
    must(encoder
             ? vae_encode(j->vae, j->device, j->stream, j->pixels, j->side, j->side, j->latents, &err)
             : vae_decode(j->vae, j->device, j->stream, j->latents, j->side / unit, j->side / unit, j->pixels, &err),
         &err);
}

static double best_of(struct job *j, bool encoder)
{
    double best = 1e30;
    for (int i = 0; i < TRIES; i++) {
        const double started = now();
        run(j, encoder);
        const double seconds = now() - started;
        best = seconds < best ? seconds : best;
    }
    return best;
}

static double measure(const struct pipeline *p, struct job *j, bool encoder, bool tiled, enum kern_dtype dtype)
{
    const struct fsdpck_options opt = { 0 };
    struct fsdpck_error err = { 0 };
    struct vae *vae;
    must(vae_open(p, encoder, dtype, tiled, &opt, &vae, &err), &err);
    j->vae = vae;
    if (!j->latents) {
        const int64_t n = j->side / vae_unit(vae) * (j->side / vae_unit(vae)) * 4 * vae->config.nlatent;
        j->latents = calloc((size_t)n, sizeof *j->latents);
        for (int64_t i = 0; i < n && j->latents; i++)
            j->latents[i] = (float)rand() / (float)RAND_MAX - 0.5f;
    }
    const double seconds = best_of(j, encoder);
    vae_close(vae);
    return seconds;
}

/* From pixel `at`-1 to `at` of rows or columns, on the average. */
static double step_at(const struct job *j, const uint8_t *pixels, bool rows, int64_t at, int channel)
{
    const int64_t along = rows ? 3 : 3 * j->side, across = rows ? 3 * j->side : 3;
    double sum = 0;
    for (int64_t i = 0; i < j->side; i++) {
        const uint8_t *p = pixels + at * across + i * along + channel;
        sum += (double)p[0] - (double)p[-across];
    }
    return sum / (double)j->side;
}

static double largest_seam(const struct job *j, const uint8_t *whole)
{
    double most = 0;
    for (int64_t at = 1; at < j->side; at++)
        for (int i = 0; i < 6; i++) {
            const double seam = fabs(step_at(j, j->pixels, i / 3, at, i % 3) - step_at(j, whole, i / 3, at, i % 3));
            most = seam > most ? seam : most;
        }
    return most;
}

static void measure_tiles(const struct pipeline *p, struct job *j, enum kern_dtype dtype)
{
    const size_t nbytes = (size_t)(3 * j->side * j->side);
    uint8_t *whole = malloc(nbytes);
    if (!whole)
        exit(1);
    memcpy(whole, j->pixels, nbytes);
    const double seconds = measure(p, j, false, true, dtype);
    if (memcmp(whole, j->pixels, nbytes) != 0)
        printf(", \"decode_tiled\": %.6g, \"seam\": %.4g", seconds, largest_seam(j, whole));
    free(whole);
}

int main(int argc, char **argv)
{
    struct fsdpck_error err = { 0 };
    struct pipeline p;
    struct job j = { 0 };
    char message[KERN_MESSAGE_BYTES];
    if (argc != 5)
        return 2;
    const enum kern_dtype dtype = strcmp(argv[3], "fp32") == 0 ? KERN_F32 : KERN_BF16;
    must(pipeline_read(argv[1], &p, &err), &err);
    j.side = atoi(argv[2]);
    j.device = kern_device_find("cpu", message);
    struct kern_pool *pool = kern_pool_new((unsigned)atoi(argv[4]));
    j.pixels = malloc((size_t)(3 * j.side * j.side));
    if (!pool || !j.pixels || j.device->stream_new(0, pool, &j.stream, message) != KERN_OK)
        return 1;
    for (int64_t i = 0; i < 3 * j.side * j.side; i++)
        j.pixels[i] = (uint8_t)rand();
    printf("{\"decode\": %.6g", measure(&p, &j, false, false, dtype));
    measure_tiles(&p, &j, dtype);
    printf(", \"encode\": %.6g}\n", measure(&p, &j, true, false, dtype));
    j.device->stream_free(j.stream);
    kern_pool_free(pool);
    free(j.pixels);
    free(j.latents);
    return 0;
}
