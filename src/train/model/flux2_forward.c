/* SPDX-License-Identifier: Apache-2.0 */
/* The forward pass of FLUX.2's transformer (the facts: diffusers' transformer_flux2.py). Rows are tokens, those of the
 * text before those of the image, so that what takes both needs no copies. What depends on the time alone is one row,
 * in fp32. */
#include "model/flux2_forward.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/bump.h"
#include "model/compute_impl.h"

struct flux2_forward {
    struct compute c; /* a view of the caller's with buffers of its own */
    int64_t ntext, nimage, n, height, width;
    struct kern_buffer memory;
    float *raw;                                      /* (n, widest input) an input, as the host has it */
    void *rows;                                      /* the same in the dtype of the activations */
    float *features, *hidden, *temb, *guidance;      /* (2 · FLUX2_FREQUENCIES), (D) … */
    float *of_text, *of_image, *of_single, *of_last; /* (6D), (6D), (3D), (2D): modulations */
    int32_t *positions;                              /* (n) 0, 1, …: each token has a row in the tables */
    void *context;                                   /* (ntext, text_width) in the dtype of the activations */
    void *z, *h, *q, *k, *v, *wide, *both;           /* (n, D) …; (n, 3D + 2·inner); (n, D + inner) */
    float *velocity;                                 /* (nimage, nchannel) */
    void *s;                                         /* (n, largest r) */
};

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static void alloc_all(struct flux2_forward *f, struct bump *v)
{
    struct compute *c = &f->c;
    const struct model *m = c->m;
    const int64_t d = m->hidden, n = f->n, r = compute_largest_rank(c->l), bounds[2] = { 0, n },
                  input = most(f->ntext * m->flux2.text_width, f->nimage * m->flux2.nchannel);
    const struct kern_attention_shape shape = { .ntok = n,
                                                .nhead = m->nhead,
                                                .nkv = m->nkv,
                                                .head_dim = m->head_dim,
                                                .cu_seqlens = bounds,
                                                .ndoc = 1,
                                                .scale = 1 };
    f->raw = bump_floats(v, input);
    f->rows = bump_acts(v, c->dtype, f->nimage * m->flux2.nchannel);
    f->context = bump_acts(v, c->dtype, f->ntext * m->flux2.text_width);
    f->features = bump_floats(v, 2 * FLUX2_FREQUENCIES);
    f->hidden = bump_floats(v, d);
    f->temb = bump_floats(v, d);
    f->guidance = bump_floats(v, d);
    f->of_text = bump_floats(v, 6 * d);
    f->of_image = bump_floats(v, 6 * d);
    f->of_single = bump_floats(v, 3 * d);
    f->of_last = bump_floats(v, 2 * d);
    f->positions = bump_ints(v, n);
    f->z = bump_acts(v, c->dtype, n * d);
    f->h = bump_acts(v, c->dtype, n * d);
    f->q = bump_acts(v, c->dtype, n * d);
    f->k = bump_acts(v, c->dtype, n * d);
    f->v = bump_acts(v, c->dtype, n * d);
    f->wide = bump_acts(v, c->dtype, n * (3 * d + 2 * m->inner));
    f->both = bump_acts(v, c->dtype, n * (d + m->inner));
    f->velocity = bump_floats(v, f->nimage * m->flux2.nchannel);
    f->s = bump_floats(v, n * r);
    c->a_joint = bump_acts(v, KERN_F32, r * most(d, m->flux2.text_width));
    compute_alloc_weights(c, v);
    compute_alloc_dora(c, v, n, false);
    c->cosines = bump_floats(v, n * m->head_dim / 2);
    c->sines = bump_floats(v, n * m->head_dim / 2);
    c->attention = bump_alloc(v, c->device->ops->attention_scratch(c->stream, &shape));
    c->batch.documents.data = bump_alloc(v, c->device->ops->attention_table_bytes(c->stream, &shape));
}

/* Where a token is on each axis: a token of the text has its place, one of the image its row and column. */
static void place_of(const struct flux2_forward *f, int64_t token, double at[FLUX2_AXES])
{
    const int64_t pixel = token - f->ntext;
    at[0] = 0;
    at[1] = pixel < 0 ? 0 : (double)(pixel / f->width);
    at[2] = pixel < 0 ? 0 : (double)(pixel % f->width);
    at[3] = pixel < 0 ? (double)token : 0;
}

static int send_tables(struct flux2_forward *f, struct fsdpck_error *err)
{
    const struct model *m = f->c.m;
    const struct kern_memory *memory = f->c.device->memory;
    const int64_t half = m->head_dim / 2;
    const size_t nbytes = (size_t)(f->n * half) * sizeof(float);
    float *cosines = malloc(nbytes), *sines = malloc(nbytes);
    int32_t *positions = calloc((size_t)f->n, sizeof *positions);
    int rc = cosines && sines && positions ? 0 : fsdpck_error_nomem(err, 2 * nbytes);
    for (int64_t i = 0; i < f->n && !rc; i++) {
        double at[FLUX2_AXES];
        int64_t j = i * half;
        place_of(f, i, at);
        positions[i] = (int32_t)i;
        for (int a = 0; a < FLUX2_AXES; a++)
            for (int64_t k = 0; k < m->flux2.axes[a] / 2; k++, j++) {
                const double angle = at[a] * pow(m->flux2.theta, -2.0 * (double)k / (double)m->flux2.axes[a]);
                cosines[j] = (float)cos(angle);
                sines[j] = (float)sin(angle);
            }
    }
    if (!rc) {
        memory->copy(f->c.stream, f->c.cosines, cosines, nbytes);
        memory->copy(f->c.stream, f->c.sines, sines, nbytes);
        memory->copy(f->c.stream, f->positions, positions, (size_t)f->n * sizeof *positions);
        rc = compute_sync(&f->c, err);
    }
    free(cosines);
    free(sines);
    free(positions);
    return rc;
}

static int allocate(struct flux2_forward *f, struct fsdpck_error *err)
{
    const struct kern_location where = { .kind = KERN_MEMORY_DEVICE, .index = f->c.index, .huge_pages = true };
    char message[KERN_MESSAGE_BYTES] = "";
    struct bump v = { 0 };
    alloc_all(f, &v);
    if (f->c.device->memory->alloc(where, v.at, &f->memory, message) != KERN_OK)
        return fsdpck_error_set(err, FSDPCK_ERR_NOMEM, NULL,
                                "no memory for a picture of %lld × %lld latent pixels (%zu bytes): %s",
                                (long long)f->height, (long long)f->width, v.at, message);
    v = (struct bump){ .base = f->memory.data };
    alloc_all(f, &v);
    return send_tables(f, err);
}

int flux2_forward_new(const struct compute *from, int64_t ntext, int64_t height, int64_t width,
                      struct flux2_forward **out, struct fsdpck_error *err)
{
    *out = NULL;
    if (!from->device->images)
        return fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, NULL, "device '%s' has no kernels for pictures",
                                from->device->name);
    struct flux2_forward *f = calloc(1, sizeof *f);
    if (!f)
        return fsdpck_error_nomem(err, sizeof *f);
    f->c = *from;
    f->c.dropout = 0;
    f->c.dtype = from->widest;
    f->c.batch = (struct batch){ 0 };
    f->ntext = ntext;
    f->nimage = height * width;
    f->n = ntext + f->nimage;
    f->height = height;
    f->width = width;
    int rc = allocate(f, err);
    if (rc)
        flux2_forward_free(f);
    else
        *out = f;
    return rc;
}

void flux2_forward_free(struct flux2_forward *f)
{
    if (!f)
        return;
    f->c.device->memory->free(&f->memory);
    free(f);
}

static void *row(const struct flux2_forward *f, void *data, int64_t token, int64_t pitch)
{
    return compute_row(&f->c, data, token, pitch);
}

/* y = x·Wᵀ, with the layers' adapters, of n rows. */
static void apply(struct flux2_forward *f, const struct linear *const *layers, int count, int64_t n, const void *x,
                  const struct kern_mat *y)
{
    const struct bundle b = bundle_of(&f->c, layers, count);
    f->c.batch.ntok = n;
    bundle_forward(&f->c, &b, x, f->s, NULL, y);
}

static void apply_one(struct flux2_forward *f, const struct linear *x, int64_t n, const void *in, struct kern_mat y)
{
    apply(f, &x, 1, n, in, &y);
}

/* The same of the row of the time, in fp32. */
static void apply_to_time(struct flux2_forward *f, const struct linear *x, const float *in, float *out)
{
    const enum kern_dtype dtype = f->c.dtype;
    f->c.dtype = KERN_F32;
    apply_one(f, x, 1, in, (struct kern_mat){ out, x->nout, KERN_F32 });
    f->c.dtype = dtype;
}

static void silu(struct flux2_forward *f, float *y, const float *x)
{
    const int64_t d = f->c.m->hidden;
    f->c.device->images->silu(f->c.stream, (struct kern_mat){ y, d, KERN_F32 }, (struct kern_cmat){ x, d, KERN_F32 }, 1,
                              d);
}

/* The embedding of a number from 0 to 1, as PyTorch computes it: angles are products of fp32. */
static void embed_number(struct flux2_forward *f, const struct linear layers[2], float number, float *out)
{
    float features[2 * FLUX2_FREQUENCIES];
    for (int i = 0; i < FLUX2_FREQUENCIES; i++) {
        const float exponent = -(float)log(10000.0) * (float)i / (float)FLUX2_FREQUENCIES,
                    angle = number * 1000.0f * expf(exponent);
        features[i] = cosf(angle);
        features[FLUX2_FREQUENCIES + i] = sinf(angle);
    }
    f->c.device->memory->copy(f->c.stream, f->features, features, sizeof features);
    apply_to_time(f, &layers[0], f->features, f->hidden);
    silu(f, f->hidden, f->hidden);
    apply_to_time(f, &layers[1], f->hidden, out);
}

/* Leaves SiLU of the embedding of the time in f->hidden, of which all modulations are made. */
static void modulations(struct flux2_forward *f, float sigma, float guidance)
{
    const struct flux2_layers *l = f->c.l->flux2;
    const int64_t d = f->c.m->hidden;
    embed_number(f, l->time, sigma, f->temb);
    if (f->c.m->flux2.guided) {
        const struct kern_mat temb = { f->temb, d, KERN_F32 };
        embed_number(f, l->guidance, guidance, f->guidance);
        f->c.device->ops->add(f->c.stream, temb, kern_const(temb), (struct kern_cmat){ f->guidance, d, KERN_F32 }, 1,
                              d);
    }
    silu(f, f->hidden, f->temb);
    apply_to_time(f, &l->modulation_text, f->hidden, f->of_text);
    apply_to_time(f, &l->modulation_image, f->hidden, f->of_image);
    apply_to_time(f, &l->modulation_single, f->hidden, f->of_single);
}

/* h = LN(z)·(1 + scale) + shift, of n rows from `first` on. */
static void modulate(struct flux2_forward *f, const float *shift, const float *scale, int64_t first, int64_t n)
{
    const int64_t d = f->c.m->hidden;
    const struct kern_modulate m = { .nrow = n,
                                     .ncol = d,
                                     .x = cmat(&f->c, row(f, f->z, first, d), d),
                                     .shift = shift,
                                     .scale = scale,
                                     .eps = f->c.m->eps,
                                     .y = mat(&f->c, row(f, f->h, first, d), d) };
    f->c.device->images->modulate(f->c.stream, &m);
}

/* z += gate·h */
static void gate(struct flux2_forward *f, const float *gate, int64_t first, int64_t n)
{
    const int64_t d = f->c.m->hidden;
    const struct kern_mat z = mat(&f->c, row(f, f->z, first, d), d);
    const struct kern_gate g = {
        .nrow = n, .ncol = d, .gate = gate, .x = cmat(&f->c, row(f, f->h, first, d), d), .add = kern_const(z), .y = z
    };
    f->c.device->images->gate(f->c.stream, &g);
}

/* The norm of q's or k's heads, in place. */
static void norm_heads(struct flux2_forward *f, int32_t gamma, struct kern_mat x, int64_t n)
{
    const struct kern_rmsnorm norm = { .nrow = n,
                                       .ngroup = f->c.m->nhead,
                                       .ncol = f->c.m->head_dim,
                                       .x = kern_const(x),
                                       .gamma = value_of(&f->c, gamma),
                                       .eps = f->c.m->eps,
                                       .y = x };
    f->c.device->ops->rmsnorm(f->c.stream, &norm);
}

static void turn(struct flux2_forward *f, struct kern_mat x)
{
    const struct kern_rope_apply rope = { .nrow = f->n,
                                          .nhead = f->c.m->nhead,
                                          .dim = f->c.m->head_dim,
                                          .rotary = f->c.m->head_dim,
                                          .x = x,
                                          .cosines = f->c.cosines,
                                          .sines = f->c.sines,
                                          .positions = f->positions,
                                          .adjacent = true };
    f->c.device->ops->rope(f->c.stream, &rope);
}

/* o = attention of all tokens to all. */
static void attend(struct flux2_forward *f, struct kern_mat q, struct kern_mat k, struct kern_mat v, struct kern_mat o)
{
    const struct model *m = f->c.m;
    const int64_t bounds[2] = { 0, f->n };
    turn(f, q);
    turn(f, k);
    const struct kern_attention a = { .shape = { .ntok = f->n,
                                                 .nhead = m->nhead,
                                                 .nkv = m->nkv,
                                                 .head_dim = m->head_dim,
                                                 .cu_seqlens = bounds,
                                                 .ndoc = 1,
                                                 .scale = (float)(1 / sqrt((double)m->head_dim)),
                                                 .table = f->c.batch.documents,
                                                 .full = true },
                                      .q = kern_const(q),
                                      .k = kern_const(k),
                                      .v = kern_const(v),
                                      .o = o,
                                      .scratch = f->c.attention };
    f->c.device->ops->attention(f->c.stream, &a);
}

/* A stream's rows and modulation: shift, scale and gate of the attention, then of the MLP. */
struct stream {
    const struct flux2_stream *layers;
    const float *modulation;
    int64_t first, n;
};

static void stream_qkv(struct flux2_forward *f, const struct stream *s)
{
    const int64_t d = f->c.m->hidden;
    const struct kern_mat y[BUNDLE] = { mat(&f->c, row(f, f->q, s->first, d), d),
                                        mat(&f->c, row(f, f->k, s->first, d), d),
                                        mat(&f->c, row(f, f->v, s->first, d), d) };
    modulate(f, s->modulation, s->modulation + d, s->first, s->n);
    apply(f, (const struct linear *[]){ &s->layers->q, &s->layers->k, &s->layers->v }, 3, s->n,
          row(f, f->h, s->first, d), y);
    norm_heads(f, s->layers->q_norm, y[0], s->n);
    norm_heads(f, s->layers->k_norm, y[1], s->n);
}

/* y = silu(gate)·up of rows with gate and up from column `col` on. */
static void activate(struct flux2_forward *f, const void *x, int64_t col, int64_t pitch, int64_t n, struct kern_mat y)
{
    const int64_t inner = f->c.m->inner, width = kern_dtype_bytes(f->c.dtype);
    const char *at = (const char *)x + col * width;
    f->c.device->ops->swiglu(f->c.stream, y, cmat(&f->c, at, pitch), cmat(&f->c, at + inner * width, pitch), n, inner);
}

static void stream_rest(struct flux2_forward *f, const struct stream *s)
{
    const int64_t d = f->c.m->hidden, inner = f->c.m->inner;
    const struct kern_mat h = mat(&f->c, row(f, f->h, s->first, d), d), wide = mat(&f->c, f->wide, 2 * inner),
                          act = mat(&f->c, f->both, inner);
    apply_one(f, &s->layers->out, s->n, row(f, f->q, s->first, d), h);
    gate(f, s->modulation + 2 * d, s->first, s->n);
    modulate(f, s->modulation + 3 * d, s->modulation + 4 * d, s->first, s->n);
    apply_one(f, &s->layers->mlp_in, s->n, h.data, wide);
    activate(f, f->wide, 0, 2 * inner, s->n, act);
    apply_one(f, &s->layers->mlp_out, s->n, act.data, h);
    gate(f, s->modulation + 5 * d, s->first, s->n);
}

/* The attention's output takes the place of q. */
static void double_block(struct flux2_forward *f, const struct flux2_double *b)
{
    const int64_t d = f->c.m->hidden;
    const struct stream streams[] = { { &b->text, f->of_text, 0, f->ntext },
                                      { &b->image, f->of_image, f->ntext, f->nimage } };
    const struct kern_mat q = mat(&f->c, f->q, d);
    for (int i = 0; i < 2; i++)
        stream_qkv(f, &streams[i]);
    attend(f, q, mat(&f->c, f->k, d), mat(&f->c, f->v, d), q);
    for (int i = 0; i < 2; i++)
        stream_rest(f, &streams[i]);
}

/* q, k, v, gate and up are columns of one matrix; so are the attention's output and the MLP's, of another. */
static void single_block(struct flux2_forward *f, const struct flux2_single *b)
{
    const int64_t d = f->c.m->hidden, pitch = b->in.nout, width = kern_dtype_bytes(f->c.dtype);
    char *wide = f->wide, *both = f->both;
    const struct kern_mat q = mat(&f->c, wide, pitch), k = mat(&f->c, wide + d * width, pitch),
                          v = mat(&f->c, wide + 2 * d * width, pitch), h = mat(&f->c, f->h, d);
    modulate(f, f->of_single, f->of_single + d, 0, f->n);
    apply_one(f, &b->in, f->n, f->h, q);
    norm_heads(f, b->q_norm, q, f->n);
    norm_heads(f, b->k_norm, k, f->n);
    attend(f, q, k, v, mat(&f->c, both, b->out.nin));
    activate(f, wide, 3 * d, pitch, f->n, mat(&f->c, both + d * width, b->out.nin));
    apply_one(f, &b->out, f->n, both, h);
    gate(f, f->of_single + 2 * d, 0, f->n);
}

int flux2_forward_text(struct flux2_forward *f, const float *text, struct fsdpck_error *err)
{
    const int64_t width = f->c.m->flux2.text_width;
    f->c.device->memory->copy(f->c.stream, f->raw, text, (size_t)(f->ntext * width) * sizeof *text);
    f->c.device->ops->cast(f->c.stream, mat(&f->c, f->context, width), (struct kern_cmat){ f->raw, width, KERN_F32 },
                           f->ntext, width);
    return compute_sync(&f->c, err);
}

/* Both sequences at the width of the blocks, and all modulations. */
static void first_group(struct flux2_forward *f, const float *x, float sigma, float guidance)
{
    const int64_t d = f->c.m->hidden, nchannel = f->c.m->flux2.nchannel;
    modulations(f, sigma, guidance);
    f->c.device->memory->copy(f->c.stream, f->raw, x, (size_t)(f->nimage * nchannel) * sizeof *x);
    f->c.device->ops->cast(f->c.stream, mat(&f->c, f->rows, nchannel), (struct kern_cmat){ f->raw, nchannel, KERN_F32 },
                           f->nimage, nchannel);
    apply_one(f, &f->c.l->flux2->context, f->ntext, f->context, mat(&f->c, f->z, d));
    apply_one(f, &f->c.l->embed, f->nimage, f->rows, mat(&f->c, row(f, f->z, f->ntext, d), d));
}

/* Unlike elsewhere, the scale comes before the shift. */
static void last_group(struct flux2_forward *f)
{
    const int64_t d = f->c.m->hidden, nchannel = f->c.m->flux2.nchannel;
    silu(f, f->hidden, f->temb);
    apply_to_time(f, &f->c.l->flux2->last, f->hidden, f->of_last);
    modulate(f, f->of_last + d, f->of_last, f->ntext, f->nimage);
    apply_one(f, &f->c.l->head, f->nimage, row(f, f->h, f->ntext, d),
              (struct kern_mat){ f->velocity, nchannel, KERN_F32 });
}

int flux2_forward_run(struct flux2_forward *f, const struct compute_hook *hook, const float *x, float sigma,
                      float guidance, float *velocity, struct fsdpck_error *err)
{
    const struct flux2_layers *l = f->c.l->flux2;
    int rc = 0;
    for (uint32_t group = 0; group < f->c.l->ngroups && !rc; group++) {
        const int64_t block = (int64_t)group - 1;
        rc = compute_enter(hook, group, err);
        if (rc)
            return rc;
        if (group == 0)
            first_group(f, x, sigma, guidance);
        else if (group == f->c.l->ngroups - 1)
            last_group(f);
        else if (block < l->ndouble)
            double_block(f, &l->doubles[block]);
        else
            single_block(f, &l->singles[block - l->ndouble]);
        compute_leave(hook, group);
    }
    f->c.device->memory->copy(f->c.stream, velocity, f->velocity,
                              (size_t)(f->nimage * f->c.m->flux2.nchannel) * sizeof *velocity);
    return compute_sync(&f->c, err);
}
