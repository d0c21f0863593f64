/* SPDX-License-Identifier: Apache-2.0 */
/* One half of the autoencoder with threads of its own. */
#ifndef TRAIN_VAE_WORK_H
#define TRAIN_VAE_WORK_H

#include "image/vae.h"

struct vae_work {
    struct vae *vae; /* NULL: not open */
    const struct kern_device *device;
    struct kern_pool *pool;
    struct kern_stream *stream;
};

/* nchannel: of the transformer's latents, which must fit. *out needs vae_work_close() also after a failure. */
int vae_work_open(const struct pipeline *p, bool encoder, enum kern_dtype dtype, unsigned nthreads, int64_t nchannel,
                  const struct fsdpck_options *opt, struct vae_work *out, struct fsdpck_error *err);
void vae_work_close(struct vae_work *w); /* does nothing if all zeros */

#endif
