/* SPDX-License-Identifier: Apache-2.0 */
/* FLUX.2's embedding of the time and the modulations of all blocks, forward and backward: one row, in fp32 whatever the
 * blocks compute in (the facts: diffusers' transformer_flux2.py). */
#include "model/flux2_impl.h"

#include <math.h>

static void alloc_embedding(struct bump *v, int64_t d, int64_t rank, struct flux2_embedding *e)
{
    e->features = bump_floats(v, 2 * FLUX2_FREQUENCIES);
    e->inner = bump_floats(v, d);
    e->act = bump_floats(v, d);
    e->out = bump_floats(v, d);
    for (int i = 0; i < 2; i++)
        e->s[i] = bump_floats(v, rank);
}

static bool embeddings_train(const struct flux2_run *r)
{
    const struct flux2_layers *l = r->c->l->flux2;
    return l->time[0].r || l->time[1].r || l->guidance[0].r || l->guidance[1].r;
}

/* Width in units of D. */
static void alloc_modulation(struct flux2_run *r, struct bump *v, const struct linear *layer, int64_t width,
                             bool backward, struct flux2_modulation *m)
{
    const int64_t d = r->c->m->hidden;
    m->layer = layer;
    m->width = width;
    m->value = bump_floats(v, width * d);
    m->s = bump_floats(v, compute_largest_rank(r->c->l));
    m->grad = backward && (layer->r || embeddings_train(r)) ? bump_floats(v, width * d) : NULL;
}

void flux2_time_alloc(struct flux2_run *r, struct bump *v, bool backward)
{
    const struct flux2_layers *l = r->c->l->flux2;
    const int64_t d = r->c->m->hidden, rank = compute_largest_rank(r->c->l);
    alloc_embedding(v, d, rank, &r->time);
    alloc_embedding(v, d, rank, &r->guidance);
    r->time_act = bump_floats(v, d);
    alloc_modulation(r, v, &l->modulation_text, 6, backward, &r->of_text);
    alloc_modulation(r, v, &l->modulation_image, 6, backward, &r->of_image);
    alloc_modulation(r, v, &l->modulation_single, 3, backward, &r->of_single);
    alloc_modulation(r, v, &l->last, 2, backward, &r->of_last);
    r->last_given = bump_floats(v, 2 * d);
    r->ones = bump_floats(v, backward ? d : 0);
    r->zeros = bump_floats(v, backward ? d : 0);
    r->d_time = bump_floats(v, backward ? 3 * d : 0);
}

/* y = x·Wᵀ of the row, with the layer's adapter. */
static void apply(struct flux2_run *r, const struct linear *x, const float *in, void *s, float *out)
{
    const enum kern_dtype dtype = r->c->dtype;
    const struct bundle b = bundle_of(r->c, &x, 1);
    const struct kern_mat y = { out, x->nout, KERN_F32 };
    r->c->dtype = KERN_F32;
    r->c->batch.ntok = 1;
    bundle_forward(r->c, &b, in, s, NULL, &y);
    r->c->dtype = dtype;
}

/* From the gradient of the layer's output to those of its adapter, and to that of its input if dx is not NULL, to which
 * it is added if `adds`. */
static void apply_backward(struct flux2_run *r, const struct linear *x, const float *in, void *s, const float *dout,
                           bool adds, float *dx)
{
    const enum kern_dtype dtype = r->c->dtype;
    const struct bundle b = bundle_of(r->c, &x, 1);
    const struct kern_cmat dy = { dout, x->nout, KERN_F32 };
    r->c->dtype = KERN_F32;
    r->c->batch.ntok = 1;
    bundle_backward(r->c, &b, s, &dy, adds ? dx : NULL, dx);
    bundle_backward_rest(r->c, &b, in, s, &dy);
    r->c->dtype = dtype;
}

static void silu(struct flux2_run *r, float *y, const float *x)
{
    const int64_t d = r->c->m->hidden;
    r->c->device->images->silu(r->c->stream, (struct kern_mat){ y, d, KERN_F32 }, (struct kern_cmat){ x, d, KERN_F32 },
                               1, d);
}

/* dx = the gradient of x from dy, that of SiLU(x). */
static void silu_backward(struct flux2_run *r, const float *x, const float *dy, float *dx)
{
    const int64_t d = r->c->m->hidden;
    const struct kern_swiglu_grad g = { .nrow = 1,
                                        .ncol = d,
                                        .gate = { x, d, KERN_F32 },
                                        .up = { r->ones, d, KERN_F32 },
                                        .dy = { dy, d, KERN_F32 },
                                        .dgate = { dx, d, KERN_F32 },
                                        .dup = { r->d_time + 2 * d, d, KERN_F32 } }; /* not wanted */
    r->c->device->ops->swiglu_grad(r->c->stream, &g);
}

/* The embedding of a number from 0 to 1, as PyTorch computes it: angles are products of fp32. */
static void embed_number(struct flux2_run *r, const struct linear layers[2], float number, struct flux2_embedding *e)
{
    float features[2 * FLUX2_FREQUENCIES];
    for (int i = 0; i < FLUX2_FREQUENCIES; i++) {
        const float exponent = -(float)log(10000.0) * (float)i / (float)FLUX2_FREQUENCIES,
                    angle = number * 1000.0f * expf(exponent);
        features[i] = cosf(angle);
        features[FLUX2_FREQUENCIES + i] = sinf(angle);
    }
    r->c->device->memory->copy(r->c->stream, e->features, features, sizeof features);
    apply(r, &layers[0], e->features, e->s[0], e->inner);
    silu(r, e->act, e->inner);
    apply(r, &layers[1], e->act, e->s[1], e->out);
}

/* d_out: the gradient of the embedding. Its second D floats are overwritten. */
static void embed_number_backward(struct flux2_run *r, const struct linear layers[2], const struct flux2_embedding *e,
                                  float *d_out)
{
    float *d_inner = d_out + r->c->m->hidden;
    apply_backward(r, &layers[1], e->act, e->s[1], d_out, false, d_inner);
    silu_backward(r, e->inner, d_inner, d_inner);
    apply_backward(r, &layers[0], e->features, e->s[0], d_inner, false, NULL);
}

static void modulation(struct flux2_run *r, const struct flux2_modulation *m, float *out)
{
    apply(r, m->layer, r->time_act, m->s, out);
}

void flux2_modulations(struct flux2_run *r, float sigma, float guidance)
{
    const struct flux2_layers *l = r->c->l->flux2;
    const int64_t d = r->c->m->hidden;
    embed_number(r, l->time, sigma, &r->time);
    if (r->c->m->flux2.guided) {
        const struct kern_mat sum = { r->time.out, d, KERN_F32 };
        embed_number(r, l->guidance, guidance, &r->guidance);
        r->c->device->ops->add(r->c->stream, sum, kern_const(sum), (struct kern_cmat){ r->guidance.out, d, KERN_F32 },
                               1, d);
    }
    silu(r, r->time_act, r->time.out);
    modulation(r, &r->of_text, r->of_text.value);
    modulation(r, &r->of_image, r->of_image.value);
    modulation(r, &r->of_single, r->of_single.value);
}

/* The halves change places: norm_out.linear gives the scale before the shift, all others the shift before the scale. */
static void swap_halves(struct flux2_run *r, float *to, const float *from)
{
    const struct kern_memory *memory = r->c->device->memory;
    const int64_t d = r->c->m->hidden;
    memory->copy(r->c->stream, to, from + d, (size_t)d * sizeof *to);
    memory->copy(r->c->stream, to + d, from, (size_t)d * sizeof *to);
}

void flux2_last_modulation(struct flux2_run *r)
{
    modulation(r, &r->of_last, r->last_given);
    swap_halves(r, r->of_last.value, r->last_given);
}

void flux2_time_begin_backward(struct flux2_run *r)
{
    const struct flux2_modulation *all[] = { &r->of_text, &r->of_image, &r->of_single, &r->of_last };
    const int64_t d = r->c->m->hidden;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i]->grad)
            r->c->device->memory->zero(r->c->stream, all[i]->grad, (size_t)(all[i]->width * d) * sizeof(float));
    r->c->device->memory->zero(r->c->stream, r->d_time, (size_t)d * sizeof(float));
}

/* grad: of the layer's output. Adds to r->d_time. */
static void modulation_backward(struct flux2_run *r, const struct flux2_modulation *m, const float *grad)
{
    if (m->grad)
        apply_backward(r, m->layer, r->time_act, m->s, grad, true, embeddings_train(r) ? r->d_time : NULL);
}

void flux2_last_modulation_backward(struct flux2_run *r)
{
    if (r->of_last.grad)
        swap_halves(r, r->last_given, r->of_last.grad);
    modulation_backward(r, &r->of_last, r->last_given);
}

void flux2_modulations_backward(struct flux2_run *r)
{
    const struct flux2_layers *l = r->c->l->flux2;
    modulation_backward(r, &r->of_text, r->of_text.grad);
    modulation_backward(r, &r->of_image, r->of_image.grad);
    modulation_backward(r, &r->of_single, r->of_single.grad);
    if (!embeddings_train(r))
        return;
    silu_backward(r, r->time.out, r->d_time, r->d_time);
    embed_number_backward(r, l->time, &r->time, r->d_time);
    if (r->c->m->flux2.guided)
        embed_number_backward(r, l->guidance, &r->guidance, r->d_time);
}
