/* SPDX-License-Identifier: Apache-2.0 */
/* From latents to pictures, with the decoder of a pipeline. */
#ifndef TRAIN_IMAGE_DECODER_H
#define TRAIN_IMAGE_DECODER_H

#include <train/image.h>

#include "image/vae_work.h"

struct image_decoder {
    struct vae_work work;
    int64_t height, width; /* pixels */
    uint8_t *pixels;       /* (height, width, 3) */
};

/* opt: as in vae_work.h. nchannel: of the transformer's latents. *out needs image_decoder_close()
 * also after a failure. */
int image_decoder_open(const struct pipeline *p, const struct sampler_options *opt, int64_t nchannel, int64_t height,
                       int64_t width, struct image_decoder *out, struct fsdpck_error *err);
void image_decoder_close(struct image_decoder *d);
/* latents: (height / unit, width / unit, nchannel). Sets size and pixels of the image; borrowed until the next call. */
int image_decoder_run(struct image_decoder *d, const float *latents, struct image *image, struct fsdpck_error *err);
/* The bytes that both take. */
int image_decoder_count(const struct pipeline *p, const struct sampler_options *opt, int64_t height, int64_t width,
                        uint64_t *nbytes, struct fsdpck_error *err);

#endif
