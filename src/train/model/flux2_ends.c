/* SPDX-License-Identifier: Apache-2.0 */
/* The ends of FLUX.2's transformer, forward and backward: both sequences at the width of the blocks, the tables of RoPE
 * on four axes, and the velocity (the facts: diffusers' transformer_flux2.py). */
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
    flux2_time_alloc(r, v, backward);
    r->positions = bump_ints(v, n);
    r->raw = bump_floats(v, input);
    r->rows = bump_acts(v, c->dtype, r->nimage * m->flux2.nchannel);
    r->context = bump_acts(v, c->dtype, r->ntext * m->flux2.text_width);
    r->velocity = bump_floats(v, r->nimage * m->flux2.nchannel);
    r->h = bump_acts(v, c->dtype, n * d);
    r->act = bump_acts(v, c->dtype, n * m->inner);
    r->s_context = bump_acts(v, c->dtype, r->ntext * c->l->flux2->context.r);
    r->s_rows = bump_acts(v, c->dtype, r->nimage * c->l->embed.r);
    r->s_head = bump_acts(v, c->dtype, r->nimage * c->l->head.r);
    c->sums = bump_floats(v, backward ? kern_sum_rows_scratch(n, most(3 * d + 2 * m->inner, 6 * d)) : 0);
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
    const int64_t half = m->head_dim / 2, bounds[2] = { 0, r->n };
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
        r->c->batch.ntok = r->n;
        compute_send_documents(r->c, bounds, 1);
        rc = compute_sync(r->c, err);
    }
    free(cosines);
    free(sines);
    free(positions);
    return rc;
}

void flux2_send_text(struct flux2_run *r, const float *text)
{
    const int64_t width = r->c->m->flux2.text_width;
    r->c->device->memory->copy(r->c->stream, r->raw, text, (size_t)(r->ntext * width) * sizeof *text);
    r->c->device->ops->cast(r->c->stream, mat(r->c, r->context, width), (struct kern_cmat){ r->raw, width, KERN_F32 },
                            r->ntext, width);
}

static struct bundle context_of(const struct flux2_run *r)
{
    const struct linear *context = &r->c->l->flux2->context;
    return bundle_of(r->c, &context, 1);
}

static struct bundle embed_of(const struct flux2_run *r)
{
    const struct linear *embed = &r->c->l->embed;
    return bundle_of(r->c, &embed, 1);
}

void flux2_first(struct flux2_run *r, const float *x, float sigma, float guidance, void *z)
{
    const int64_t d = r->c->m->hidden, nchannel = r->c->m->flux2.nchannel;
    const struct bundle text = context_of(r), image = embed_of(r);
    const struct kern_mat of_text = mat(r->c, z, d), of_image = flux2_rows(r, z, r->ntext, d);
    flux2_modulations(r, sigma, guidance);
    r->c->device->memory->copy(r->c->stream, r->raw, x, (size_t)(r->nimage * nchannel) * sizeof *x);
    r->c->device->ops->cast(r->c->stream, mat(r->c, r->rows, nchannel),
                            (struct kern_cmat){ r->raw, nchannel, KERN_F32 }, r->nimage, nchannel);
    r->c->batch.ntok = r->ntext;
    bundle_forward(r->c, &text, r->context, r->s_context, NULL, &of_text);
    r->c->batch.ntok = r->nimage;
    bundle_forward(r->c, &image, r->rows, r->s_rows, NULL, &of_image);
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
    flux2_last_modulation(r);
    r->c->batch.ntok = r->nimage;
    flux2_modulate(r, &r->of_last, 0, r->last, r->ntext, r->nimage);
    bundle_forward(r->c, &head, flux2_row(r, r->h, r->ntext, d), r->s_head, NULL, &velocity);
}

/* The text has no part in the velocity. */
void flux2_end_backward(struct flux2_run *r, const void *dvelocity)
{
    const int64_t d = r->c->m->hidden;
    const struct bundle head = head_of(r);
    const struct kern_cmat dv = cmat(r->c, dvelocity, r->c->m->flux2.nchannel);
    flux2_time_begin_backward(r);
    r->c->device->memory->zero(r->c->stream, r->dz, (size_t)(r->n * d * kern_dtype_bytes(r->c->dtype)));
    r->c->batch.ntok = r->nimage;
    bundle_backward(r->c, &head, r->s_head, &dv, NULL, flux2_row(r, r->dh, r->ntext, d));
    bundle_backward_rest(r->c, &head, flux2_row(r, r->h, r->ntext, d), r->s_head, &dv);
    flux2_modulate_backward(r, &r->of_last, 0, r->last, r->ntext, r->nimage);
    flux2_last_modulation_backward(r);
}

void flux2_first_backward(struct flux2_run *r)
{
    const struct bundle text = context_of(r), image = embed_of(r);
    const struct kern_cmat of_text = cmat(r->c, r->dz, r->c->m->hidden),
                           of_image = kern_const(flux2_rows(r, r->dz, r->ntext, r->c->m->hidden));
    r->c->batch.ntok = r->ntext;
    bundle_backward(r->c, &text, r->s_context, &of_text, NULL, NULL);
    bundle_backward_rest(r->c, &text, r->context, r->s_context, &of_text);
    r->c->batch.ntok = r->nimage;
    bundle_backward(r->c, &image, r->s_rows, &of_image, NULL, NULL);
    bundle_backward_rest(r->c, &image, r->rows, r->s_rows, &of_image);
    flux2_modulations_backward(r);
}
