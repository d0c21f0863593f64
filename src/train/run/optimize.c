/* Global norm, clipping, AdamW and the schedule of learning rates, on this rank's rows. */
#include <math.h>
#include <string.h>

#include "run/rank.h"

double schedule_lr(const struct train_config *config, uint64_t step, uint64_t nsteps)
{
    const char *name = config->train.scheduler;
    double base = config->train.learning_rate, min = config->train.min_lr_ratio, warmup = (double)config->train.warmup_steps, at = (double)step;
    if (at < warmup)
        return base * (at / warmup);
    if (strncmp(name, "constant", 8) == 0)
        return base;
    double left = (double)nsteps - warmup, progress = (at - warmup) / (left > 1 ? left : 1), factor;
    if (strncmp(name, "cosine", 6) == 0)
        factor = 0.5 * (1 + cos(M_PI * 2 * 0.5 * progress));
    else
        factor = ((double)nsteps - at) / (left > 1 ? left : 1);
    factor = factor * (1 - min) + min;
    return base * (factor > 0 ? factor : 0);
}

/* Sums of squares of this rank's rows of a parameter, in r->row_sums; returns how many. */
static int64_t sum_rows(struct rank *r, const struct param *p)
{
    int64_t first, nrow = param_rows(p, r->comm->rank, &first);
    struct kern_cmat own = { r->own + p->own_at, p->ncol, KERN_F32 };
    struct compute *c = r->compute;
    c->device->ops->sum_squares(c->stream, r->row_sums, own, nrow, p->ncol);
    return nrow;
}

int rank_norm(struct rank *r, double *norm, struct asked *asked, struct fsdpck_error *err)
{
    const struct layout *l = &r->job->layout;
    struct { struct kern_exact sum; uint64_t stop, save, sample; } all = { .stop = asked->stop, .save = asked->save, .sample = asked->sample };
    _Static_assert(sizeof all == (KERN_EXACT_LIMBS + 4) * sizeof(uint64_t) && KERN_EXACT_LIMBS + 4 <= COMM_MAX_SUM, "one sum over ranks");
    for (size_t i = 0; i < l->nparams; i++) {
        if (l->params[i].trainable)
            kern_exact_add(&all.sum, r->row_sums, sum_rows(r, &l->params[i]));
    }
    int rc = r->comm->ops->sum_u64(r->comm, (uint64_t *)&all, KERN_EXACT_LIMBS + 4, err);
    *norm = rc ? 0 : sqrt(kern_exact_value(&all.sum));
    *asked = (struct asked){ all.stop > 0, all.save > 0, all.sample > 0 };
    return rc;
}

int rank_find_nonfinite(struct rank *r, const char **name, struct fsdpck_error *err)
{
    const struct layout *l = &r->job->layout;
    uint64_t first[COMM_MAX_SUM] = { 0 }, best = l->nparams;
    first[r->comm->rank] = l->nparams;
    for (size_t i = l->nparams; i-- > 0;) {
        int64_t nrow = l->params[i].trainable ? sum_rows(r, &l->params[i]) : 0;
        for (int64_t row = 0; row < nrow; row++) {
            if (!isfinite(r->row_sums[row]))
                first[r->comm->rank] = i;
        }
    }
    int rc = r->comm->ops->sum_u64(r->comm, first, r->comm->nranks, err);
    for (uint32_t q = 0; q < r->comm->nranks; q++)
        best = first[q] < best ? first[q] : best;
    *name = best < l->nparams ? l->params[best].name : "loss";
    return rc;
}

int rank_update(struct rank *r, double norm, double lr, struct fsdpck_error *err)
{
    const struct train_config *config = r->job->config;
    const struct layout *l = &r->job->layout;
    double limit = config->train.max_grad_norm, scale = limit > 0 ? limit / (norm + 1e-6) : 1;
    struct compute *c = r->compute;
    comm_at(r->comm, r->step + 1, "optimizer");
    r->updates++;
    for (size_t i = 0; i < l->nparams; i++) {
        const struct param *p = &l->params[i];
        int64_t first, nrow = param_rows(p, r->comm->rank, &first);
        if (!p->trainable || nrow <= 0)
            continue;
        struct kern_adamw adamw = { .nelem = nrow * p->ncol, .p = rank_master(r, p), .m = r->m + p->own_at, .v = r->v + p->own_at,
                                    .grad = r->own + p->own_at, .grad_scale = scale < 1 ? scale : 1, .lr = lr, .beta1 = config->train.beta1,
                                    .beta2 = config->train.beta2, .eps = config->train.epsilon, .weight_decay = p->decay ? config->train.weight_decay : 0,
                                    .t = (int64_t)r->updates };
        c->device->ops->adamw(c->stream, &adamw);
    }
    rank_publish(r);
    return r->comm->ops->barrier(r->comm, "update of parameters", err);
}
