/* SPDX-License-Identifier: Apache-2.0 */
/* One prediction of FLUX.2's transformer, for sampling: nothing is stored for a backward pass. */
#ifndef TRAIN_FLUX2_FORWARD_H
#define TRAIN_FLUX2_FORWARD_H

#include "model/compute.h"

struct flux2_forward;

/* Buffers for pictures of height × width latent pixels and texts of ntext tokens, on the device and with the parameters
 * of `from`, which must outlive them. All groups have one dtype. memory: flux2_forward_nbytes() of device memory,
 * borrowed; NULL: it allocates its own. */
int flux2_forward_new(const struct compute *from, int64_t ntext, int64_t height, int64_t width, void *memory,
                      struct flux2_forward **out, struct fsdpck_error *err);
/* The bytes that it takes on the device; those of a larger picture suffice. */
uint64_t flux2_forward_nbytes(const struct compute *from, int64_t ntext, int64_t height, int64_t width);
void flux2_forward_free(struct flux2_forward *f); /* NULL does nothing */

/* text: (ntext, text_width) embeddings, all of them seen; borrowed in host memory until the next call. */
int flux2_forward_text(struct flux2_forward *f, const float *text, struct fsdpck_error *err);
/* velocity (height · width, nchannel) of the noisy latents x of the same shape, in host memory. sigma: how much of them
 * is noise, from 0 to 1; guidance: read by a model that is guided. hook: as in compute.h, each group once; may be
 * NULL. */
int flux2_forward_run(struct flux2_forward *f, const struct compute_hook *hook, const float *x, float sigma,
                      float guidance, float *velocity, struct fsdpck_error *err);

#endif
