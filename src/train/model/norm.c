/* SPDX-License-Identifier: Apache-2.0 */
/* RMSNorm forward and backward over the kernel table. */
#include "model/compute_impl.h"

void norm_forward(struct compute *c, int32_t gamma, int64_t ngroup, int64_t ncol, const void *x, void *y, float *rstd)
{
    struct kern_rmsnorm norm = { .nrow = c->batch.ntok,
                                 .ngroup = ngroup,
                                 .ncol = ncol,
                                 .x = cmat(c, x, ngroup * ncol),
                                 .gamma = value_of(c, gamma),
                                 .eps = c->m->eps,
                                 .y = mat(c, y, ngroup * ncol),
                                 .rstd = rstd };
    c->device->ops->rmsnorm(c->stream, &norm);
}

void norm_backward(struct compute *c, int32_t gamma, int64_t ngroup, int64_t ncol, const void *x, const float *rstd,
                   const void *dy, const void *add, void *dx)
{
    struct kern_rmsnorm_grad norm = { .nrow = c->batch.ntok,
                                      .ngroup = ngroup,
                                      .ncol = ncol,
                                      .x = cmat(c, x, ngroup * ncol),
                                      .dy = cmat(c, dy, ngroup * ncol),
                                      .gamma = value_of(c, gamma),
                                      .rstd = rstd,
                                      .add = add ? cmat(c, add, ngroup * ncol) : no_cmat,
                                      .dx = mat(c, dx, ngroup * ncol),
                                      .dgamma = grad_of(c, gamma),
                                      .scratch = c->sums };
    c->device->ops->rmsnorm_grad(c->stream, &norm);
}
