/* SPDX-License-Identifier: Apache-2.0 */
/* The blocks of FLUX.2's transformer, forward and backward. Outputs of norms are computed anew in the backward pass.
 * Modulations are constants there unless a layer trains that they come from. */
#include "model/flux2_impl.h"

#include <math.h>

/* Column `col` of a matrix. */
static struct kern_mat column(const struct flux2_run *r, void *data, int64_t col, int64_t pitch)
{
    return mat(r->c, (char *)data + col * kern_dtype_bytes(r->c->dtype), pitch);
}

static struct bundle one_of(const struct flux2_run *r, const struct linear *x)
{
    return bundle_of(r->c, &x, 1);
}

static struct bundle qkv_of(const struct flux2_run *r, const struct flux2_stream *s)
{
    return bundle_of(r->c, (const struct linear *[]){ &s->q, &s->k, &s->v }, 3);
}

void flux2_modulate(struct flux2_run *r, const struct flux2_modulation *modulation, int64_t at, void *z, int64_t first,
                    int64_t n)
{
    const int64_t d = r->c->m->hidden;
    const struct kern_modulate m = { .nrow = n,
                                     .ncol = d,
                                     .x = kern_const(flux2_rows(r, z, first, d)),
                                     .shift = modulation->value + at * d,
                                     .scale = modulation->value + (at + 1) * d,
                                     .eps = r->c->m->eps,
                                     .y = flux2_rows(r, r->h, first, d) };
    r->c->device->images->modulate(r->c->stream, &m);
}

/* sum += Σ over n rows from `first` on of the products of a and b, (n, D). */
static void sum_products(struct flux2_run *r, void *a, void *b, int64_t first, int64_t n, float *sum)
{
    const int64_t d = r->c->m->hidden;
    const struct kern_dora_grad g = { .nrow = n,
                                      .ncol = d,
                                      .dy = kern_const(flux2_rows(r, a, first, d)),
                                      .u = kern_const(flux2_rows(r, b, first, d)),
                                      .norm = r->ones,
                                      .dm = sum,
                                      .scratch = r->c->sums };
    r->c->device->ops->dora_grad(r->c->stream, &g);
}

/* The gradients of shift and scale; leaves the norm without them in r->h. */
static void shift_scale_backward(struct flux2_run *r, const struct flux2_modulation *m, int64_t at, void *z,
                                 int64_t first, int64_t n)
{
    const int64_t d = r->c->m->hidden;
    const struct kern_modulate norm = { .nrow = n,
                                        .ncol = d,
                                        .x = kern_const(flux2_rows(r, z, first, d)),
                                        .shift = r->zeros,
                                        .scale = r->zeros,
                                        .eps = r->c->m->eps,
                                        .y = flux2_rows(r, r->h, first, d) };
    r->c->device->images->modulate(r->c->stream, &norm);
    r->c->device->ops->sum_rows(r->c->stream, m->grad + at * d, kern_const(flux2_rows(r, r->dh, first, d)), n, d,
                                r->c->sums);
    sum_products(r, r->dh, r->h, first, n, m->grad + (at + 1) * d);
}

void flux2_modulate_backward(struct flux2_run *r, const struct flux2_modulation *modulation, int64_t at, void *z,
                             int64_t first, int64_t n)
{
    const int64_t d = r->c->m->hidden;
    const struct kern_mat dz = flux2_rows(r, r->dz, first, d);
    const struct kern_modulate_grad g = { .nrow = n,
                                          .ncol = d,
                                          .x = kern_const(flux2_rows(r, z, first, d)),
                                          .dy = kern_const(flux2_rows(r, r->dh, first, d)),
                                          .scale = modulation->value + (at + 1) * d,
                                          .eps = r->c->m->eps,
                                          .add = kern_const(dz),
                                          .dx = dz };
    if (modulation->grad)
        shift_scale_backward(r, modulation, at, z, first, n);
    r->c->device->images->modulate_grad(r->c->stream, &g);
}

/* out = z + gate·h; the gate is at D·`at` of m. */
static void gate(struct flux2_run *r, const struct flux2_modulation *m, int64_t at, void *z, int64_t first, int64_t n,
                 void *out)
{
    const int64_t d = r->c->m->hidden;
    const struct kern_gate g = { .nrow = n,
                                 .ncol = d,
                                 .gate = m->value + at * d,
                                 .x = kern_const(flux2_rows(r, r->h, first, d)),
                                 .add = kern_const(flux2_rows(r, z, first, d)),
                                 .y = flux2_rows(r, out, first, d) };
    r->c->device->images->gate(r->c->stream, &g);
}

/* dh = gate·dz */
static void gate_backward(struct flux2_run *r, const struct flux2_modulation *m, int64_t at, int64_t first, int64_t n)
{
    const int64_t d = r->c->m->hidden;
    const struct kern_gate g = { .nrow = n,
                                 .ncol = d,
                                 .gate = m->value + at * d,
                                 .x = kern_const(flux2_rows(r, r->dz, first, d)),
                                 .y = flux2_rows(r, r->dh, first, d) };
    r->c->device->images->gate(r->c->stream, &g);
}

/* The gradient of the gate, if it is wanted. The gate multiplies the output of `layer`, which is computed anew from its
 * input, into r->h. */
static void gates_backward(struct flux2_run *r, const struct flux2_modulation *m, int64_t at,
                           const struct bundle *layer, const void *x, void *s, int64_t first, int64_t n)
{
    const int64_t d = r->c->m->hidden;
    const struct kern_mat h = flux2_rows(r, r->h, first, d);
    if (!m->grad)
        return;
    bundle_forward(r->c, layer, x, s, NULL, &h);
    sum_products(r, r->dz, r->h, first, n, m->grad + at * d);
}

/* The norm of q's or k's heads in n rows from `first` on. */
static void norm_heads(struct flux2_run *r, int32_t gamma, struct kern_mat x, struct kern_mat y, float *rstd,
                       int64_t first, int64_t n)
{
    const struct kern_rmsnorm norm = { .nrow = n,
                                       .ngroup = r->c->m->nhead,
                                       .ncol = r->c->m->head_dim,
                                       .x = kern_const(x),
                                       .gamma = value_of(r->c, gamma),
                                       .eps = r->c->m->eps,
                                       .y = y,
                                       .rstd = rstd ? rstd + first * r->c->m->nhead : NULL };
    r->c->device->ops->rmsnorm(r->c->stream, &norm);
}

/* In place. */
static void norm_heads_backward(struct flux2_run *r, int32_t gamma, struct kern_mat x, struct kern_mat dx,
                                const float *rstd, int64_t first, int64_t n)
{
    const struct kern_rmsnorm_grad norm = { .nrow = n,
                                            .ngroup = r->c->m->nhead,
                                            .ncol = r->c->m->head_dim,
                                            .x = kern_const(x),
                                            .dy = kern_const(dx),
                                            .gamma = value_of(r->c, gamma),
                                            .rstd = rstd + first * r->c->m->nhead,
                                            .dx = dx };
    r->c->device->ops->rmsnorm_grad(r->c->stream, &norm);
}

static void turn(struct flux2_run *r, struct kern_mat x, bool inverse)
{
    const struct kern_rope_apply rope = { .nrow = r->n,
                                          .nhead = r->c->m->nhead,
                                          .dim = r->c->m->head_dim,
                                          .rotary = r->c->m->head_dim,
                                          .x = x,
                                          .cosines = r->c->cosines,
                                          .sines = r->c->sines,
                                          .positions = r->positions,
                                          .inverse = inverse,
                                          .adjacent = true };
    r->c->device->ops->rope(r->c->stream, &rope);
}

/* One document that every token sees whole. bounds: {0, n} */
static struct kern_attention_shape shape_of(const struct flux2_run *r, const int64_t bounds[2])
{
    const struct model *m = r->c->m;
    return (struct kern_attention_shape){ .ntok = r->n,
                                          .nhead = m->nhead,
                                          .nkv = m->nkv,
                                          .head_dim = m->head_dim,
                                          .cu_seqlens = bounds,
                                          .ndoc = 1,
                                          .scale = (float)(1 / sqrt((double)m->head_dim)),
                                          .table = r->c->batch.documents,
                                          .full = true };
}

/* Turns q and k, and computes o. */
static void attend(struct flux2_run *r, struct kern_mat q, struct kern_mat k, struct kern_mat v, struct kern_mat o,
                   float *lse)
{
    const int64_t bounds[2] = { 0, r->n };
    turn(r, q, false);
    turn(r, k, false);
    const struct kern_attention a = { .shape = shape_of(r, bounds),
                                      .q = kern_const(q),
                                      .k = kern_const(k),
                                      .v = kern_const(v),
                                      .o = o,
                                      .lse = lse,
                                      .scratch = r->c->attention };
    r->c->device->ops->attention(r->c->stream, &a);
}

/* The operands of a block's attention, and where their gradients go. */
struct attention_views {
    struct kern_mat q, k, v, o, d_o, dq, dk, dv;
};

/* Turns dq and dk back. */
static void attend_backward(struct flux2_run *r, const struct attention_views *a, const float *lse)
{
    const int64_t bounds[2] = { 0, r->n };
    const struct kern_attention_grad g = { .shape = shape_of(r, bounds),
                                           .q = kern_const(a->q),
                                           .k = kern_const(a->k),
                                           .v = kern_const(a->v),
                                           .o = kern_const(a->o),
                                           .d_o = kern_const(a->d_o),
                                           .lse = lse,
                                           .dq = a->dq,
                                           .dk = a->dk,
                                           .dv = a->dv,
                                           .scratch = r->c->attention };
    r->c->device->ops->attention_grad(r->c->stream, &g);
    turn(r, a->dq, true);
    turn(r, a->dk, true);
}

/* A stream's rows, and its modulation: shift, scale and gate of the attention, then of the MLP. */
struct stream {
    const struct flux2_stream *layers;
    const struct flux2_modulation *modulation;
    int64_t number, first, n;
};

static struct stream stream_of(const struct flux2_run *r, const struct flux2_double *b, int number)
{
    return number == FLUX2_TEXT ? (struct stream){ &b->text, &r->of_text, number, 0, r->ntext }
                                : (struct stream){ &b->image, &r->of_image, number, r->ntext, r->nimage };
}

static void stream_qkv(struct flux2_run *r, const struct stream *s, const struct flux2_kept *k)
{
    const int64_t d = r->c->m->hidden;
    const struct bundle qkv = qkv_of(r, s->layers);
    const struct kern_mat y[BUNDLE] = { flux2_rows(r, k->q_raw, s->first, d), flux2_rows(r, k->k_raw, s->first, d),
                                        flux2_rows(r, k->v, s->first, d) };
    r->c->batch.ntok = s->n;
    flux2_modulate(r, s->modulation, 0, k->z, s->first, s->n);
    bundle_forward(r->c, &qkv, flux2_row(r, r->h, s->first, d), k->s_qkv[s->number], NULL, y);
    norm_heads(r, s->layers->q_norm, y[0], flux2_rows(r, k->q, s->first, d), k->rstd_q, s->first, s->n);
    norm_heads(r, s->layers->k_norm, y[1], flux2_rows(r, k->k, s->first, d), k->rstd_k, s->first, s->n);
}

/* y = silu(gate)·up */
static void activate(struct flux2_run *r, struct kern_mat gates, struct kern_mat up, int64_t n, struct kern_mat y)
{
    r->c->device->ops->swiglu(r->c->stream, y, kern_const(gates), kern_const(up), n, r->c->m->inner);
}

/* Replaces gate and up by their gradients from that of the activation, dy, which takes the activation's value if
 * `anew`. */
static void activate_backward(struct flux2_run *r, struct kern_mat gates, struct kern_mat up, int64_t n,
                              struct kern_mat dy, bool anew)
{
    const struct kern_swiglu_grad g = { .nrow = n,
                                        .ncol = r->c->m->inner,
                                        .gate = kern_const(gates),
                                        .up = kern_const(up),
                                        .dy = kern_const(dy),
                                        .dgate = gates,
                                        .dup = up,
                                        .y = anew ? dy : (struct kern_mat){ 0 } };
    r->c->device->ops->swiglu_grad(r->c->stream, &g);
}

/* After the attention. */
static void stream_rest(struct flux2_run *r, const struct stream *s, const struct flux2_kept *k, void *out)
{
    const int64_t d = r->c->m->hidden, inner = r->c->m->inner;
    const struct bundle b[] = { one_of(r, &s->layers->out), one_of(r, &s->layers->mlp_in),
                                one_of(r, &s->layers->mlp_out) };
    const struct kern_mat h = flux2_rows(r, r->h, s->first, d), wide = flux2_rows(r, k->wide, s->first, 2 * inner),
                          act = mat(r->c, r->act, inner);
    r->c->batch.ntok = s->n;
    bundle_forward(r->c, &b[0], flux2_row(r, k->o, s->first, d), k->s_out[s->number], NULL, &h);
    gate(r, s->modulation, 2, k->z, s->first, s->n, k->z2);
    flux2_modulate(r, s->modulation, 3, k->z2, s->first, s->n);
    bundle_forward(r->c, &b[1], h.data, k->s_mlp_in[s->number], NULL, &wide);
    activate(r, wide, column(r, wide.data, inner, 2 * inner), s->n, act);
    if (!out) {
        bundle_down(r->c, &b[2], act.data, k->s_mlp_out[s->number]);
        return;
    }
    bundle_forward(r->c, &b[2], act.data, k->s_mlp_out[s->number], NULL, &h);
    gate(r, s->modulation, 5, k->z2, s->first, s->n, out);
}

static void double_block(struct flux2_run *r, const struct flux2_double *b, const struct flux2_kept *k, void *out)
{
    const int64_t d = r->c->m->hidden;
    struct stream s[FLUX2_STREAMS];
    for (int i = 0; i < FLUX2_STREAMS; i++) {
        s[i] = stream_of(r, b, i);
        stream_qkv(r, &s[i], k);
    }
    attend(r, mat(r->c, k->q, d), mat(r->c, k->k, d), mat(r->c, k->v, d), mat(r->c, k->o, d), k->lse);
    for (int i = 0; i < FLUX2_STREAMS; i++)
        stream_rest(r, &s[i], k, out);
}

static void single_block(struct flux2_run *r, const struct flux2_single *b, const struct flux2_kept *k, void *out)
{
    const int64_t d = r->c->m->hidden, inner = r->c->m->inner, pitch = b->in.nout;
    const struct bundle in = one_of(r, &b->in), last = one_of(r, &b->out);
    const struct kern_mat wide = mat(r->c, k->wide, pitch), v = column(r, k->wide, 2 * d, pitch),
                          h = mat(r->c, r->h, d);
    const bool in_place = !k->rstd_q;
    const struct kern_mat q_raw = wide, k_raw = column(r, k->wide, d, pitch), q = in_place ? q_raw : mat(r->c, k->q, d),
                          keys = in_place ? k_raw : mat(r->c, k->k, d);
    r->c->batch.ntok = r->n;
    flux2_modulate(r, &r->of_single, 0, k->z, 0, r->n);
    bundle_forward(r->c, &in, r->h, k->s_qkv[0], NULL, &wide);
    norm_heads(r, b->q_norm, q_raw, q, k->rstd_q, 0, r->n);
    norm_heads(r, b->k_norm, k_raw, keys, k->rstd_k, 0, r->n);
    attend(r, q, keys, v, mat(r->c, k->both, b->out.nin), k->lse);
    activate(r, column(r, k->wide, 3 * d, pitch), column(r, k->wide, 3 * d + inner, pitch), r->n,
             column(r, k->both, d, b->out.nin));
    if (!out) {
        bundle_down(r->c, &last, k->both, k->s_out[0]);
        return;
    }
    bundle_forward(r->c, &last, k->both, k->s_out[0], NULL, &h);
    gate(r, &r->of_single, 2, k->z, 0, r->n, out);
}

void flux2_block(struct flux2_run *r, int64_t number, const struct flux2_kept *k, void *out)
{
    const struct flux2_layers *l = r->c->l->flux2;
    if (number < l->ndouble)
        double_block(r, &l->doubles[number], k, out);
    else
        single_block(r, &l->singles[number - l->ndouble], k, out);
}

/* Up to the gradient of the attention's output, in dboth. */
static void stream_rest_backward(struct flux2_run *r, const struct stream *s, const struct flux2_kept *k)
{
    const int64_t d = r->c->m->hidden, inner = r->c->m->inner;
    const struct linear *mlp_in = &s->layers->mlp_in, *mlp_out = &s->layers->mlp_out;
    const struct bundle b[] = { one_of(r, &s->layers->out), one_of(r, mlp_in), one_of(r, mlp_out) };
    const struct kern_cmat dh = kern_const(flux2_rows(r, r->dh, s->first, d));
    const struct kern_mat wide = flux2_rows(r, k->wide, s->first, 2 * inner), act = mat(r->c, r->act, inner);
    const struct kern_cmat dwide = kern_const(wide);
    r->c->batch.ntok = s->n;
    gate_backward(r, s->modulation, 5, s->first, s->n);
    bundle_backward(r->c, &b[2], k->s_mlp_out[s->number], &dh, NULL, act.data);
    activate_backward(r, wide, column(r, wide.data, inner, 2 * inner), s->n, act,
                      linear_trains(r->c, mlp_out) || s->modulation->grad);
    bundle_backward_rest(r->c, &b[2], act.data, k->s_mlp_out[s->number], &dh);
    gates_backward(r, s->modulation, 5, &b[2], act.data, k->s_mlp_out[s->number], s->first, s->n);
    bundle_backward(r->c, &b[1], k->s_mlp_in[s->number], &dwide, NULL, flux2_row(r, r->dh, s->first, d));
    if (linear_trains(r->c, mlp_in))
        flux2_modulate(r, s->modulation, 3, k->z2, s->first, s->n);
    bundle_backward_rest(r->c, &b[1], flux2_row(r, r->h, s->first, d), k->s_mlp_in[s->number], &dwide);
    flux2_modulate_backward(r, s->modulation, 3, k->z2, s->first, s->n);
    gate_backward(r, s->modulation, 2, s->first, s->n);
    bundle_backward(r->c, &b[0], k->s_out[s->number], &dh, NULL, flux2_row(r, r->dboth, s->first, d));
    bundle_backward_rest(r->c, &b[0], flux2_row(r, k->o, s->first, d), k->s_out[s->number], &dh);
    gates_backward(r, s->modulation, 2, &b[0], flux2_row(r, k->o, s->first, d), k->s_out[s->number], s->first, s->n);
}

static void stream_qkv_backward(struct flux2_run *r, const struct stream *s, const struct flux2_kept *k,
                                const struct attention_views *a, bool wants_dz)
{
    const int64_t d = r->c->m->hidden;
    const struct flux2_stream *l = s->layers;
    const struct bundle qkv = qkv_of(r, l);
    const struct kern_mat dq = flux2_rows(r, a->dq.data, s->first, d), dk = flux2_rows(r, a->dk.data, s->first, d),
                          dv = flux2_rows(r, a->dv.data, s->first, d);
    const struct kern_cmat dy[BUNDLE] = { kern_const(dq), kern_const(dk), kern_const(dv) };
    r->c->batch.ntok = s->n;
    norm_heads_backward(r, l->q_norm, flux2_rows(r, k->q_raw, s->first, d), dq, k->rstd_q, s->first, s->n);
    norm_heads_backward(r, l->k_norm, flux2_rows(r, k->k_raw, s->first, d), dk, k->rstd_k, s->first, s->n);
    bundle_backward(r->c, &qkv, k->s_qkv[s->number], dy, NULL, wants_dz ? flux2_row(r, r->dh, s->first, d) : NULL);
    if (linear_trains(r->c, &l->q) || linear_trains(r->c, &l->k) || linear_trains(r->c, &l->v))
        flux2_modulate(r, s->modulation, 0, k->z, s->first, s->n);
    bundle_backward_rest(r->c, &qkv, flux2_row(r, r->h, s->first, d), k->s_qkv[s->number], dy);
    if (wants_dz)
        flux2_modulate_backward(r, s->modulation, 0, k->z, s->first, s->n);
}

/* The gradients of q, k and v are three matrices in dwide. */
static void double_backward(struct flux2_run *r, const struct flux2_double *b, const struct flux2_kept *k,
                            bool wants_dz)
{
    const int64_t d = r->c->m->hidden;
    const struct attention_views a = { mat(r->c, k->q, d),
                                       mat(r->c, k->k, d),
                                       mat(r->c, k->v, d),
                                       mat(r->c, k->o, d),
                                       mat(r->c, r->dboth, d),
                                       flux2_rows(r, r->dwide, 0, d),
                                       flux2_rows(r, r->dwide, r->n, d),
                                       flux2_rows(r, r->dwide, 2 * r->n, d) };
    for (int i = 0; i < FLUX2_STREAMS; i++) {
        const struct stream s = stream_of(r, b, i);
        stream_rest_backward(r, &s, k);
    }
    attend_backward(r, &a, k->lse);
    for (int i = 0; i < FLUX2_STREAMS; i++) {
        const struct stream s = stream_of(r, b, i);
        stream_qkv_backward(r, &s, k, &a, wants_dz);
    }
}

/* The gradients of q, k, v, gate and up are columns of dwide, as their values are of wide. */
static void single_backward(struct flux2_run *r, const struct flux2_single *b, const struct flux2_kept *k,
                            bool wants_dz)
{
    const int64_t d = r->c->m->hidden, inner = r->c->m->inner, pitch = b->in.nout, nboth = b->out.nin;
    const struct bundle in = one_of(r, &b->in), last = one_of(r, &b->out);
    const struct kern_cmat dh = cmat(r->c, r->dh, d), dwide = cmat(r->c, r->dwide, pitch);
    const struct attention_views a = { mat(r->c, k->q, d),
                                       mat(r->c, k->k, d),
                                       column(r, k->wide, 2 * d, pitch),
                                       mat(r->c, k->both, nboth),
                                       mat(r->c, r->dboth, nboth),
                                       mat(r->c, r->dwide, pitch),
                                       column(r, r->dwide, d, pitch),
                                       column(r, r->dwide, 2 * d, pitch) };
    const struct kern_swiglu_grad act = { .nrow = r->n,
                                          .ncol = inner,
                                          .gate = kern_const(column(r, k->wide, 3 * d, pitch)),
                                          .up = kern_const(column(r, k->wide, 3 * d + inner, pitch)),
                                          .dy = kern_const(column(r, r->dboth, d, nboth)),
                                          .dgate = column(r, r->dwide, 3 * d, pitch),
                                          .dup = column(r, r->dwide, 3 * d + inner, pitch) };
    r->c->batch.ntok = r->n;
    gate_backward(r, &r->of_single, 2, 0, r->n);
    bundle_backward(r->c, &last, k->s_out[0], &dh, NULL, r->dboth);
    bundle_backward_rest(r->c, &last, k->both, k->s_out[0], &dh);
    gates_backward(r, &r->of_single, 2, &last, k->both, k->s_out[0], 0, r->n);
    r->c->device->ops->swiglu_grad(r->c->stream, &act);
    attend_backward(r, &a, k->lse);
    norm_heads_backward(r, b->q_norm, mat(r->c, k->wide, pitch), a.dq, k->rstd_q, 0, r->n);
    norm_heads_backward(r, b->k_norm, column(r, k->wide, d, pitch), a.dk, k->rstd_k, 0, r->n);
    bundle_backward(r->c, &in, k->s_qkv[0], &dwide, NULL, wants_dz ? r->dh : NULL);
    if (linear_trains(r->c, &b->in))
        flux2_modulate(r, &r->of_single, 0, k->z, 0, r->n);
    bundle_backward_rest(r->c, &in, r->h, k->s_qkv[0], &dwide);
    if (wants_dz)
        flux2_modulate_backward(r, &r->of_single, 0, k->z, 0, r->n);
}

void flux2_block_backward(struct flux2_run *r, int64_t number, const struct flux2_kept *k, bool wants_dz)
{
    const struct flux2_layers *l = r->c->l->flux2;
    if (number < l->ndouble)
        double_backward(r, &l->doubles[number], k, wants_dz);
    else
        single_backward(r, &l->singles[number - l->ndouble], k, wants_dz);
}
