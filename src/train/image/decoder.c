/* SPDX-License-Identifier: Apache-2.0 */
#include "image/decoder.h"

#include <stdlib.h>
#include <string.h>

static enum kern_dtype dtype_of(const struct sampler_options *opt)
{
    return opt->dtype && strcmp(opt->dtype, "fp32") == 0 ? KERN_F32 : KERN_BF16;
}

static int check(const struct image_decoder *d, const struct pipeline *p, int64_t nchannel, struct fsdpck_error *err)
{
    if (vae_unit(d->vae) == IMAGE_UNIT && 4 * d->vae->config.nlatent == nchannel)
        return 0;
    return fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, p->folder,
                            "the vae makes %lld pixels of %lld channels, not %d of the transformer's %lld",
                            (long long)vae_unit(d->vae), (long long)(4 * d->vae->config.nlatent), IMAGE_UNIT,
                            (long long)nchannel);
}

static int start(struct image_decoder *d, const struct sampler_options *opt, struct fsdpck_error *err)
{
    char message[KERN_MESSAGE_BYTES] = "no threads";
    d->device = kern_device_find("cpu", message);
    d->pool = kern_pool_new(opt->nthreads ? opt->nthreads : fsdpck_processors());
    if (d->pool && d->device->stream_new(0, d->pool, &d->stream, message) == KERN_OK)
        return 0;
    return fsdpck_error_set(err, FSDPCK_ERR_NOMEM, NULL, "the kernels cannot start: %s", message);
}

int image_decoder_open(const struct pipeline *p, const struct sampler_options *opt, int64_t nchannel, int64_t height,
                       int64_t width, struct image_decoder *out, struct fsdpck_error *err)
{
    const size_t nbytes = (size_t)(height * width * 3);
    *out = (struct image_decoder){ .height = height, .width = width, .pixels = malloc(nbytes) };
    int rc = out->pixels ? start(out, opt, err) : fsdpck_error_nomem(err, nbytes);
    if (!rc)
        rc = vae_open(p, false, dtype_of(opt), &opt->fs, &out->vae, err);
    return rc ? rc : check(out, p, nchannel, err);
}

void image_decoder_close(struct image_decoder *d)
{
    vae_close(d->vae);
    if (d->device)
        d->device->stream_free(d->stream);
    kern_pool_free(d->pool);
    free(d->pixels);
    *d = (struct image_decoder){ 0 };
}

int image_decoder_run(struct image_decoder *d, const float *latents, struct image *image, struct fsdpck_error *err)
{
    image->height = d->height;
    image->width = d->width;
    image->pixels = d->pixels;
    return vae_decode(d->vae, d->device, d->stream, latents, d->height / IMAGE_UNIT, d->width / IMAGE_UNIT, d->pixels,
                      err);
}

int image_decoder_count(const struct pipeline *p, const struct sampler_options *opt, int64_t height, int64_t width,
                        uint64_t *nbytes, struct fsdpck_error *err)
{
    int rc = vae_count_decoding(p, dtype_of(opt), &opt->fs, height / IMAGE_UNIT, width / IMAGE_UNIT, nbytes, err);
    *nbytes += rc ? 0 : (uint64_t)(height * width * 3);
    return rc;
}
