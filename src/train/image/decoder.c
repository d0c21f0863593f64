/* SPDX-License-Identifier: Apache-2.0 */
#include "image/decoder.h"

#include <stdlib.h>

int image_decoder_open(const struct pipeline *p, const struct sampler_options *opt, int64_t nchannel, int64_t height,
                       int64_t width, struct image_decoder *out, struct fsdpck_error *err)
{
    const size_t nbytes = (size_t)(height * width * 3);
    *out = (struct image_decoder){ .height = height, .width = width, .pixels = malloc(nbytes) };
    return out->pixels ? vae_work_open(p, false, opt, 0, nchannel, &out->work, err) : fsdpck_error_nomem(err, nbytes);
}

void image_decoder_close(struct image_decoder *d)
{
    vae_work_close(&d->work);
    free(d->pixels);
    *d = (struct image_decoder){ 0 };
}

int image_decoder_run(struct image_decoder *d, const float *latents, struct image *image, struct fsdpck_error *err)
{
    image->height = d->height;
    image->width = d->width;
    image->pixels = d->pixels;
    return vae_decode(d->work.vae, d->work.device, d->work.stream, latents, d->height / IMAGE_UNIT,
                      d->width / IMAGE_UNIT, d->pixels, err);
}

int image_decoder_count(const struct pipeline *p, const struct sampler_options *opt, int64_t height, int64_t width,
                        uint64_t *nbytes, struct fsdpck_error *err)
{
    int rc = vae_count(p, false, vae_work_dtype(opt), opt->vae_tiling, &opt->fs, height / IMAGE_UNIT,
                       width / IMAGE_UNIT, nbytes, err);
    *nbytes += rc ? 0 : (uint64_t)(height * width * 3);
    return rc;
}
