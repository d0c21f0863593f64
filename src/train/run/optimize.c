/* SPDX-License-Identifier: Apache-2.0 */
/* Global norm, clipping and AdamW, on this rank's rows. */
#include "run/optimize.h"

#include <math.h>

/* Computes the sum of squares of each of this rank's trained rows, parameter by parameter, and copies the sums to
 * r->row_sums_back. */
static int sum_rows(struct rank *r, int64_t *count, struct fsdpck_error *err)
{
    const struct layout *l = &r->job->layout;
    const struct compute *c = r->compute;
    size_t n = 0;
    *count = 0;
    for (size_t i = 0; i < l->nparams; i++) {
        const struct param *p = &l->params[i];
        int64_t first, nrow = param_rows(p, r->comm->rank, &first);
        if (!p->trainable || nrow <= 0)
            continue;
        r->rows[n++] = (struct kern_rows){ { r->own + p->own_at, p->ncol, KERN_F32 }, nrow, p->ncol };
        *count += nrow;
    }
    c->device->ops->sum_squares(c->stream, r->row_sums, r->rows, n);
    return rank_download(r, r->row_sums_back.data, r->row_sums, (size_t)*count * sizeof(double), err);
}

int rank_norm(struct rank *r, double *norm, struct asked *asked, struct fsdpck_error *err)
{
    struct {
        struct kern_exact sum;
        uint64_t stop, save, sample;
    } all = { .stop = asked->stop, .save = asked->save, .sample = asked->sample };
    _Static_assert(sizeof all == (KERN_EXACT_LIMBS + 4) * sizeof(uint64_t) && KERN_EXACT_LIMBS + 4 <= COMM_MAX_SUM,
                   "one sum over ranks");
    int64_t nrow;
    int rc = sum_rows(r, &nrow, err);
    if (!rc) {
        kern_exact_add(&all.sum, r->row_sums_back.data, nrow);
        rc = r->comm->ops->sum_u64(r->comm, (uint64_t *)&all, KERN_EXACT_LIMBS + 4, err);
    }
    *norm = rc ? 0 : sqrt(kern_exact_value(&all.sum));
    *asked = (struct asked){ all.stop > 0, all.save > 0, all.sample > 0 };
    return rc;
}

/* The first parameter with a non-finite row on this rank, or nparams. */
static size_t first_nonfinite(const struct rank *r)
{
    const struct layout *l = &r->job->layout;
    const double *row = r->row_sums_back.data;
    for (size_t i = 0; i < l->nparams; i++) {
        int64_t first, nrow = l->params[i].trainable ? param_rows(&l->params[i], r->comm->rank, &first) : 0;
        for (; nrow > 0; nrow--, row++) {
            if (!isfinite(*row))
                return i;
        }
    }
    return l->nparams;
}

int rank_find_nonfinite(struct rank *r, const char **name, struct fsdpck_error *err)
{
    const struct layout *l = &r->job->layout;
    uint64_t first[COMM_MAX_SUM] = { 0 }, best = l->nparams;
    int64_t nrow;
    int rc = sum_rows(r, &nrow, err);
    first[r->comm->rank] = first_nonfinite(r);
    if (!rc)
        rc = r->comm->ops->sum_u64(r->comm, first, r->comm->nranks, err);
    for (uint32_t q = 0; q < r->comm->nranks; q++)
        best = first[q] < best ? first[q] : best;
    *name = best < l->nparams ? l->params[best].name : "loss";
    return rc;
}

/* Lists this rank's trained rows. */
static size_t list_ranges(const struct rank *r, struct kern_adamw_range *ranges)
{
    const struct layout *l = &r->job->layout;
    size_t n = 0;
    for (size_t i = 0; i < l->nparams; i++) {
        const struct param *p = &l->params[i];
        int64_t first, nrow = param_rows(p, r->comm->rank, &first);
        if (p->trainable && nrow > 0)
            ranges[n++] = (struct kern_adamw_range){ .nelem = nrow * p->ncol,
                                                     .p = rank_master(r, p),
                                                     .m = r->m + p->own_at,
                                                     .v = r->v + p->own_at,
                                                     .grad = r->own + p->own_at,
                                                     .weight_decay = p->decay ? r->job->config->train.weight_decay : 0,
                                                     .rounded = p->dtype != KERN_F32 ? rank_rows(r, p) : NULL };
    }
    return n;
}

int rank_update(struct rank *r, double norm, double lr, struct fsdpck_error *err)
{
    const struct train_config *config = r->job->config;
    double limit = config->train.max_grad_norm, scale = limit > 0 ? limit / (norm + 1e-6) : 1;
    struct compute *c = r->compute;
    comm_at(r->comm, r->step + 1, "optimizer");
    r->updates++;
    if (r->copied)
        c->device->event_wait(r->copied, c->stream);
    const struct kern_adamw adamw = { .ranges = r->ranges,
                                      .nranges = list_ranges(r, r->ranges),
                                      .grad_scale = scale < 1 ? scale : 1,
                                      .lr = lr,
                                      .beta1 = config->train.beta1,
                                      .beta2 = config->train.beta2,
                                      .eps = config->train.epsilon,
                                      .t = (int64_t)r->updates };
    c->device->ops->adamw(c->stream, &adamw);
    int rc = rank_spread(r, false, err);
    return rc ? rc : r->comm->ops->barrier(r->comm, "update of parameters", err);
}
