/* SPDX-License-Identifier: Apache-2.0 */
/* Encodes and decodes a random picture with the autoencoder of a pipeline: vae PIPELINE SIDE fp32|bf16 THREADS. Prints
 * the seconds of the best of three as one JSON object. */
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

static double measure(const struct pipeline *p, struct job *j, bool encoder, enum kern_dtype dtype)
{
    const struct fsdpck_options opt = { 0 };
    struct fsdpck_error err = { 0 };
    struct vae *vae;
    must(vae_open(p, encoder, dtype, false, &opt, &vae, &err), &err);
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
    const double decode = measure(&p, &j, false, dtype), encode = measure(&p, &j, true, dtype);
    printf("{\"decode\": %.6g, \"encode\": %.6g}\n", decode, encode);
    j.device->stream_free(j.stream);
    kern_pool_free(pool);
    free(j.pixels);
    free(j.latents);
    return 0;
}
