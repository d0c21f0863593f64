/* SPDX-License-Identifier: Apache-2.0 */
/* How much noise the latents have at each step of sampling. */
#ifndef TRAIN_IMAGE_SCHEDULE_H
#define TRAIN_IMAGE_SCHEDULE_H

#include "image/pipeline.h"

/* Refuses a scheduler that would go another way. */
int schedule_check(const struct pipeline *p, struct fsdpck_error *err);
/* sigmas: (nstep + 1), from 1 to 0, for pictures of ntok latent pixels. As FLUX.2 is sampled: the shift depends on both
 * numbers (compute_empirical_mu of flux2). */
void schedule_sigmas(int64_t ntok, int64_t nstep, float *sigmas);

#endif
