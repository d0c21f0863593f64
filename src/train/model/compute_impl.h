/* Inside of a micro-batch: views, and what its files call of each other. */
#ifndef TRAIN_COMPUTE_IMPL_H
#define TRAIN_COMPUTE_IMPL_H

#include "model/compute.h"

static inline struct kern_mat mat(float *data, int64_t pitch)
{
    return (struct kern_mat){ data, pitch, KERN_F32 };
}

static inline struct kern_cmat cmat(const float *data, int64_t pitch)
{
    return (struct kern_cmat){ data, pitch, KERN_F32 };
}

static const struct kern_cmat no_cmat = { NULL, 0, KERN_F32 };

/* Whole tensors; NULL where there is none, or where it is frozen. */
static inline float *value_of(const struct compute *c, int32_t param)
{
    if (param < 0)
        return NULL;
    const struct param *p = &c->l->params[param];
    const struct compute_place *place = &c->places[p->group];
    return place->data + (p->value_at - place->at);
}

static inline float *grad_of(const struct compute *c, int32_t param)
{
    return param < 0 || !c->l->params[param].trainable ? NULL : c->grads + c->l->params[param].grad_at;
}

/* y = x·Wᵀ + bias + adapter (+ add). s: (T, r) for the backward. */
void linear_forward(struct compute *c, const struct linear *lin, const float *x, float *s, const float *add, float *y);
/* Adds the layer's own gradients; dx = dy·W + adapter's (+ add), NULL: not wanted. dx may be add. */
void linear_backward(struct compute *c, const struct linear *lin, const float *x, const float *s, const float *dy, const float *add, float *dx);

struct kern_dropout linear_dropout(const struct compute *c, const struct linear *lin);

void norm_forward(struct compute *c, int32_t gamma, int64_t ngroup, int64_t ncol, const float *x, float *y, float *rstd);
/* dx = the gradient of x (+ add); may be dy. */
void norm_backward(struct compute *c, int32_t gamma, int64_t ngroup, int64_t ncol, const float *x, const float *rstd, const float *dy, const float *add,
                   float *dx);

/* b->x to out. */
void block_forward(struct compute *c, int64_t number, float *out);
/* c->dx: the gradient of the block's output, replaced by that of b->x; not computed where !wants_dx. */
void block_backward(struct compute *c, int64_t number, bool wants_dx);

void embed_forward(struct compute *c, float *x);
void embed_backward(struct compute *c, const float *dx);

#endif
