/* SPDX-License-Identifier: Apache-2.0 */
/* What comes before FLUX.2's first block: both sequences, the embedding of the time, all modulations, the tables of
 * RoPE on four axes (the facts: diffusers' transformer_flux2.py). */
#include "model/flux2_impl.h"

#include <math.h>
#include <stdlib.h>

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

void flux2_alloc(struct flux2_run *r, struct bump *v, bool backward)
{
    struct compute *c = r->c;
    const struct model *m = c->m;
    const int64_t d = m->hidden, n = r->n, rank = compute_largest_rank(c->l), bounds[2] = { 0, n },
                  input = most(r->ntext * m->flux2.text_width, r->nimage * m->flux2.nchannel);
    const struct kern_attention_shape shape = { .ntok = n,
                                                .nhead = m->nhead,
                                                .nkv = m->nkv,
                                                .head_dim = m->head_dim,
                                                .cu_seqlens = bounds,
                                                .ndoc = 1,
                                                .scale = 1 };
    const size_t forward = c->device->ops->attention_scratch(c->stream, &shape),
                 gradient = backward ? c->device->ops->attention_grad_scratch(c->stream, &shape) : 0;
    float **const of_time[] = { &r->hidden,  &r->temb,    &r->guidance, &r->of_single,
                                &r->of_last, &r->of_text, &r->of_image };
    static const int64_t widths[] = { 1, 1, 1, 3, 4, 6, 6 }; /* times D */
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++)
        *of_time[i] = bump_floats(v, widths[i] * d);
    r->features = bump_floats(v, 2 * FLUX2_FREQUENCIES);
    r->positions = bump_ints(v, n);
    r->raw = bump_floats(v, input);
    r->rows = bump_acts(v, c->dtype, r->nimage * m->flux2.nchannel);
    r->context = bump_acts(v, c->dtype, r->ntext * m->flux2.text_width);
    r->velocity = bump_floats(v, r->nimage * m->flux2.nchannel);
    r->h = bump_acts(v, c->dtype, n * d);
    r->act = bump_acts(v, c->dtype, n * m->inner);
    r->s_head = bump_acts(v, KERN_F32, n * rank);
    r->dz = bump_acts(v, c->dtype, backward ? n * d : 0);
    r->dh = bump_acts(v, c->dtype, backward ? n * d : 0);
    r->dwide = bump_acts(v, c->dtype, backward ? n * (3 * d + 2 * m->inner) : 0);
    r->dboth = bump_acts(v, c->dtype, backward ? n * (d + m->inner) : 0);
    c->ds = bump_acts(v, c->dtype, backward ? n * rank : 0);
    c->a_joint = bump_acts(v, KERN_F32, rank * most(d, m->flux2.text_width));
    c->da_joint = bump_floats(v, backward ? rank * d : 0);
    compute_alloc_weights(c, v);
    compute_alloc_dora(c, v, n, backward);
    c->cosines = bump_floats(v, n * m->head_dim / 2);
    c->sines = bump_floats(v, n * m->head_dim / 2);
    c->attention = bump_alloc(v, forward > gradient ? forward : gradient);
    c->batch.documents.data = bump_alloc(v, c->device->ops->attention_table_bytes(c->stream, &shape));
}

/* Where a token is on each axis: a token of the text has its place, one of the image its row and column. */
static void place_of(const struct flux2_run *r, int64_t token, double at[FLUX2_AXES])
{
    const int64_t pixel = token - r->ntext;
    at[0] = 0;
    at[1] = pixel < 0 ? 0 : (double)(pixel / r->width);
    at[2] = pixel < 0 ? 0 : (double)(pixel % r->width);
    at[3] = pixel < 0 ? (double)token : 0;
}

int flux2_send_tables(struct flux2_run *r, struct fsdpck_error *err)
{
    const struct model *m = r->c->m;
    const struct kern_memory *memory = r->c->device->memory;
    const int64_t half = m->head_dim / 2;
    const size_t nbytes = (size_t)(r->n * half) * sizeof(float);
    float *cosines = malloc(nbytes), *sines = malloc(nbytes);
    int32_t *positions = calloc((size_t)r->n, sizeof *positions);
    int rc = cosines && sines && positions ? 0 : fsdpck_error_nomem(err, 2 * nbytes);
    for (int64_t i = 0; i < r->n && !rc; i++) {
        double at[FLUX2_AXES];
        int64_t j = i * half;
        place_of(r, i, at);
        positions[i] = (int32_t)i;
        for (int a = 0; a < FLUX2_AXES; a++)
            for (int64_t k = 0; k < m->flux2.axes[a] / 2; k++, j++) {
                const double angle = at[a] * pow(m->flux2.theta, -2.0 * (double)k / (double)m->flux2.axes[a]);
                cosines[j] = (float)cos(angle);
                sines[j] = (float)sin(angle);
            }
    }
    if (!rc) {
        memory->copy(r->c->stream, r->c->cosines, cosines, nbytes);
        memory->copy(r->c->stream, r->c->sines, sines, nbytes);
        memory->copy(r->c->stream, r->positions, positions, (size_t)r->n * sizeof *positions);
        rc = compute_sync(r->c, err);
    }
    free(cosines);
    free(sines);
    free(positions);
    return rc;
}

/* y = x·Wᵀ of the row of the time, in fp32, with the layer's adapter. */
static void apply_to_time(struct flux2_run *r, const struct linear *x, const float *in, float *out)
{
    const enum kern_dtype dtype = r->c->dtype;
    const struct bundle b = bundle_of(r->c, &x, 1);
    const struct kern_mat y = { out, x->nout, KERN_F32 };
    r->c->dtype = KERN_F32;
    r->c->batch.ntok = 1;
    bundle_forward(r->c, &b, in, r->s_head, NULL, &y);
    r->c->dtype = dtype;
}

static void silu(struct flux2_run *r, float *y, const float *x)
{
    const int64_t d = r->c->m->hidden;
    r->c->device->images->silu(r->c->stream, (struct kern_mat){ y, d, KERN_F32 }, (struct kern_cmat){ x, d, KERN_F32 },
                               1, d);
}

/* The embedding of a number from 0 to 1, as PyTorch computes it: angles are products of fp32. */
static void embed_number(struct flux2_run *r, const struct linear layers[2], float number, float *out)
{
    float features[2 * FLUX2_FREQUENCIES];
    for (int i = 0; i < FLUX2_FREQUENCIES; i++) {
        const float exponent = -(float)log(10000.0) * (float)i / (float)FLUX2_FREQUENCIES,
                    angle = number * 1000.0f * expf(exponent);
        features[i] = cosf(angle);
        features[FLUX2_FREQUENCIES + i] = sinf(angle);
    }
    r->c->device->memory->copy(r->c->stream, r->features, features, sizeof features);
    apply_to_time(r, &layers[0], r->features, r->hidden);
    silu(r, r->hidden, r->hidden);
    apply_to_time(r, &layers[1], r->hidden, out);
}

/* Leaves SiLU of the embedding of the time in r->hidden, of which all modulations are made. */
static void modulations(struct flux2_run *r, float sigma, float guidance)
{
    const struct flux2_layers *l = r->c->l->flux2;
    const int64_t d = r->c->m->hidden;
    embed_number(r, l->time, sigma, r->temb);
    if (r->c->m->flux2.guided) {
        const struct kern_mat temb = { r->temb, d, KERN_F32 };
        embed_number(r, l->guidance, guidance, r->guidance);
        r->c->device->ops->add(r->c->stream, temb, kern_const(temb), (struct kern_cmat){ r->guidance, d, KERN_F32 }, 1,
                               d);
    }
    silu(r, r->hidden, r->temb);
    apply_to_time(r, &l->modulation_text, r->hidden, r->of_text);
    apply_to_time(r, &l->modulation_image, r->hidden, r->of_image);
    apply_to_time(r, &l->modulation_single, r->hidden, r->of_single);
}

void flux2_send_text(struct flux2_run *r, const float *text)
{
    const int64_t width = r->c->m->flux2.text_width;
    r->c->device->memory->copy(r->c->stream, r->raw, text, (size_t)(r->ntext * width) * sizeof *text);
    r->c->device->ops->cast(r->c->stream, mat(r->c, r->context, width), (struct kern_cmat){ r->raw, width, KERN_F32 },
                            r->ntext, width);
}

void flux2_first(struct flux2_run *r, const float *x, float sigma, float guidance, void *z)
{
    const int64_t d = r->c->m->hidden, nchannel = r->c->m->flux2.nchannel;
    const struct linear *layers[FLUX2_STREAMS] = { &r->c->l->flux2->context, &r->c->l->embed };
    const struct bundle text = bundle_of(r->c, &layers[FLUX2_TEXT], 1),
                        image = bundle_of(r->c, &layers[FLUX2_IMAGE], 1);
    const struct kern_mat of_text = mat(r->c, z, d), of_image = flux2_rows(r, z, r->ntext, d);
    modulations(r, sigma, guidance);
    r->c->device->memory->copy(r->c->stream, r->raw, x, (size_t)(r->nimage * nchannel) * sizeof *x);
    r->c->device->ops->cast(r->c->stream, mat(r->c, r->rows, nchannel),
                            (struct kern_cmat){ r->raw, nchannel, KERN_F32 }, r->nimage, nchannel);
    r->c->batch.ntok = r->ntext;
    bundle_forward(r->c, &text, r->context, r->s_head, NULL, &of_text);
    r->c->batch.ntok = r->nimage;
    bundle_forward(r->c, &image, r->rows, r->s_head, NULL, &of_image);
}

/* norm_out.linear gives the scale before the shift, all others the shift before the scale. */
static void last_modulation(struct flux2_run *r)
{
    const int64_t d = r->c->m->hidden;
    const struct kern_memory *memory = r->c->device->memory;
    float *given = r->of_last + 2 * d;
    apply_to_time(r, &r->c->l->flux2->last, r->hidden, given);
    memory->copy(r->c->stream, r->of_last, given + d, (size_t)d * sizeof(float));
    memory->copy(r->c->stream, r->of_last + d, given, (size_t)d * sizeof(float));
}

static struct bundle head_of(const struct flux2_run *r)
{
    const struct linear *head = &r->c->l->head;
    return bundle_of(r->c, &head, 1);
}

void flux2_end(struct flux2_run *r)
{
    const int64_t d = r->c->m->hidden, nchannel = r->c->m->flux2.nchannel;
    const struct bundle head = head_of(r);
    const struct kern_mat velocity = { r->velocity, nchannel, KERN_F32 };
    last_modulation(r);
    r->c->batch.ntok = r->nimage;
    flux2_modulate(r, r->of_last, r->last, r->ntext, r->nimage);
    bundle_forward(r->c, &head, flux2_row(r, r->h, r->ntext, d), r->s_head, NULL, &velocity);
}

/* The text has no part in the velocity. */
void flux2_end_backward(struct flux2_run *r, const void *dvelocity)
{
    const int64_t d = r->c->m->hidden;
    const struct bundle head = head_of(r);
    const struct kern_cmat dv = cmat(r->c, dvelocity, r->c->m->flux2.nchannel);
    r->c->device->memory->zero(r->c->stream, r->dz, (size_t)(r->n * d * kern_dtype_bytes(r->c->dtype)));
    r->c->batch.ntok = r->nimage;
    bundle_backward(r->c, &head, r->s_head, &dv, NULL, flux2_row(r, r->dh, r->ntext, d));
    bundle_backward_rest(r->c, &head, flux2_row(r, r->h, r->ntext, d), r->s_head, &dv);
    flux2_modulate_backward(r, r->of_last, r->last, r->ntext, r->nimage);
}
