/* SPDX-License-Identifier: Apache-2.0 */
/* From noise to latents: Euler's steps along the velocity that a transformer predicts (Lipman et al. 2022, "Flow
 * matching"; Ho and Salimans 2022 for the guidance). */
#ifndef TRAIN_FLOW_H
#define TRAIN_FLOW_H

#include "model/flux2_forward.h"

struct flow {
    struct flux2_forward *forward;
    const float *text;               /* embeddings, as flux2_forward_text() wants them */
    const float *negative;           /* those that guidance leads away from; NULL: no guidance */
    float guidance;                  /* v = v⁻ + guidance·(v⁺ - v⁻) */
    const float *sigmas;             /* (nstep + 1) */
    int64_t nstep, nelem;            /* nelem: of the latents */
    const struct compute_hook *hook; /* of each prediction; may be NULL */
    /* Before each prediction; after each step, counted from 1. Nonzero ends the work with that code. Each may be NULL.
     */
    int (*before)(void *ctx, struct fsdpck_error *err);
    int (*after)(void *ctx, int64_t step, struct fsdpck_error *err);
    void *ctx;
};

/* x: (nelem) in: noise; out: latents. velocities: (2, nelem) scratch. */
int flow_run(const struct flow *flow, float *x, float *velocities, struct fsdpck_error *err);

#endif
