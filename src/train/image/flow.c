/* SPDX-License-Identifier: Apache-2.0 */
#include "image/flow.h"

static int predict(const struct flow *f, const float *text, const float *x, float sigma, float *v,
                   struct fsdpck_error *err)
{
    int rc = f->before ? f->before(f->ctx, err) : 0;
    if (!rc)
        rc = flux2_forward_text(f->forward, text, err);
    return rc ? rc : flux2_forward_run(f->forward, f->hook, x, sigma, f->guidance, v, err);
}

/* With guidance, away from the velocity of the negative text. */
static int velocity(const struct flow *f, const float *x, float sigma, float *v, float *away, struct fsdpck_error *err)
{
    int rc = predict(f, f->text, x, sigma, v, err);
    if (rc || !f->negative)
        return rc;
    rc = predict(f, f->negative, x, sigma, away, err);
    for (int64_t i = 0; i < f->nelem && !rc; i++)
        v[i] = away[i] + f->guidance * (v[i] - away[i]);
    return rc;
}

int flow_run(const struct flow *f, float *x, float *velocities, struct fsdpck_error *err)
{
    int rc = 0;
    for (int64_t step = 0; step < f->nstep && !rc; step++) {
        rc = velocity(f, x, f->sigmas[step], velocities, velocities + f->nelem, err);
        for (int64_t i = 0; i < f->nelem && !rc; i++)
            x[i] += (f->sigmas[step + 1] - f->sigmas[step]) * velocities[i];
        if (!rc && f->after)
            rc = f->after(f->ctx, step + 1, err);
    }
    return rc;
}
