/* SPDX-License-Identifier: Apache-2.0 */
/* One half of the autoencoder with threads or a device of its own. */
#ifndef TRAIN_VAE_WORK_H
#define TRAIN_VAE_WORK_H

#include <train/sample.h>

#include "image/vae.h"

struct vae_work {
    struct vae *vae; /* NULL: not open */
    const struct kern_device *device;
    struct kern_pool *pool;
    struct kern_stream *stream;
};

/* opt: dtype ("fp32", else bf16), threads, device, vae_tiling. local: the number of the rank on its host, which has a
 * device of its own where there are enough; 0 without ranks. nchannel: of the transformer's latents, which must fit.
 * *out needs vae_work_close() also after a failure. */
int vae_work_open(const struct pipeline *p, bool encoder, const struct sampler_options *opt, uint32_t local,
                  int64_t nchannel, struct vae_work *out, struct fsdpck_error *err);
/* Of opt. */
enum kern_dtype vae_work_dtype(const struct sampler_options *opt);
void vae_work_close(struct vae_work *w); /* does nothing if all zeros */

#endif
