/* SPDX-License-Identifier: Apache-2.0 */
/* Flow matching (Lipman et al. 2022): of latents z and noise e, x = (1 - sigma)·z + sigma·e goes in, and e - z is the
 * target. */
#include <stdlib.h>

#include "model/compute_parts.h"
#include "model/flux2_impl.h"

struct flux2_train {
    struct flux2_run run;
    struct flux2_kept *kept; /* (nlayer) */
    float *target;           /* (nimage, nchannel) */
    void *dvelocity;         /* the same in the dtype of the activations */
};

static int open_train(struct compute *c, struct fsdpck_error *err)
{
    struct flux2_train *t = c->flux2 = calloc(1, sizeof *t);
    if (t)
        t->kept = calloc((size_t)c->m->nlayer, sizeof *t->kept);
    if (!t || !t->kept)
        return fsdpck_error_nomem(err, (size_t)c->m->nlayer * sizeof *t->kept);
    t->run.c = c;
    return 0;
}

static void close_train(struct compute *c)
{
    if (!c->flux2)
        return;
    free(c->flux2->kept);
    free(c->flux2);
}

static void alloc_stream_s(const struct compute *c, struct bump *v, const struct flux2_stream *s, int64_t n, int number,
                           struct flux2_kept *k)
{
    k->s_qkv[number] = bump_acts(v, c->widest, n * (s->q.r + s->k.r + s->v.r));
    k->s_out[number] = bump_acts(v, c->widest, n * s->out.r);
    k->s_mlp_in[number] = bump_acts(v, c->widest, n * s->mlp_in.r);
    k->s_mlp_out[number] = bump_acts(v, c->widest, n * s->mlp_out.r);
}

/* All but z. */
static void alloc_kept(struct compute *c, struct bump *v, int64_t number)
{
    const struct flux2_run *r = &c->flux2->run;
    const struct flux2_layers *l = c->l->flux2;
    struct flux2_kept *k = &c->flux2->kept[number];
    const int64_t n = r->n, d = c->m->hidden, inner = c->m->inner;
    const enum kern_dtype act = c->widest;
    k->q = bump_acts(v, act, n * d);
    k->k = bump_acts(v, act, n * d);
    k->rstd_q = bump_floats(v, n * c->m->nhead);
    k->rstd_k = bump_floats(v, n * c->m->nhead);
    k->lse = bump_floats(v, n * c->m->nhead);
    if (number >= l->ndouble) {
        const struct flux2_single *b = &l->singles[number - l->ndouble];
        k->wide = bump_acts(v, act, n * (3 * d + 2 * inner));
        k->both = bump_acts(v, act, n * (d + inner));
        k->s_qkv[0] = bump_acts(v, act, n * b->in.r);
        k->s_out[0] = bump_acts(v, act, n * b->out.r);
        return;
    }
    k->z2 = bump_acts(v, act, n * d);
    k->q_raw = bump_acts(v, act, n * d);
    k->k_raw = bump_acts(v, act, n * d);
    k->v = bump_acts(v, act, n * d);
    k->o = bump_acts(v, act, n * d);
    k->wide = bump_acts(v, act, n * 2 * inner);
    alloc_stream_s(c, v, &l->doubles[number].text, r->ntext, FLUX2_TEXT, k);
    alloc_stream_s(c, v, &l->doubles[number].image, r->nimage, FLUX2_IMAGE, k);
}

/* Blocks below the lowest trained one, and recomputed ones, share their buffers, all but z; the former alternate
 * between two of z. */
static void alloc_blocks(struct compute *c, struct bump *v)
{
    const int64_t nlayer = c->m->nlayer, first = compute_first_layer(c->l), n = c->flux2->run.n * c->m->hidden;
    struct flux2_kept *kept = c->flux2->kept;
    for (int64_t i = 0; i < nlayer; i++)
        kept[i].z = i >= 2 && i < first ? kept[i - 2].z : bump_acts(v, c->widest, n);
    c->flux2->run.last = bump_acts(v, c->widest, n);
    compute_alloc_blocks(c, v, alloc_kept);
}

/* For the largest picture. */
static void alloc(struct compute *c, struct bump *v)
{
    struct flux2_train *t = c->flux2;
    t->run.ntext = c->m->flux2.ntext;
    t->run.n = c->ntok;
    t->run.nimage = c->ntok - t->run.ntext;
    c->dtype = c->widest;
    flux2_alloc(&t->run, v, true);
    alloc_blocks(c, v);
    t->target = bump_floats(v, t->run.nimage * c->m->flux2.nchannel);
    t->dvelocity = bump_acts(v, c->widest, t->run.nimage * c->m->flux2.nchannel);
    c->loss = bump_floats(v, t->run.nimage);
    c->loss_sum = bump_alloc(v, sizeof *c->loss_sum);
    c->on.rng_offset = bump_alloc(v, sizeof *c->on.rng_offset);
}

static void alloc_host(struct compute *c, struct bump *v)
{
    const int64_t nimage = c->ntok - c->m->flux2.ntext;
    struct picture *p = &c->batch.picture;
    p->latents = bump_floats(v, nimage * c->m->flux2.nchannel);
    p->noise = bump_floats(v, nimage * c->m->flux2.nchannel);
    p->text = bump_floats(v, c->m->flux2.ntext * c->m->flux2.text_width);
    c->batch.rng_offset = bump_alloc(v, sizeof *c->batch.rng_offset);
    c->loss_back = bump_alloc(v, sizeof *c->loss_back);
}

/* The factors of kernels that have one that is not wanted here. */
static int start(struct compute *c, struct fsdpck_error *err)
{
    const size_t nbytes = (size_t)c->m->hidden * sizeof(float);
    float *ones = malloc(nbytes);
    if (!ones)
        return fsdpck_error_nomem(err, nbytes);
    for (int64_t i = 0; i < c->m->hidden; i++)
        ones[i] = 1;
    c->device->memory->copy(c->stream, c->flux2->run.ones, ones, nbytes);
    c->device->memory->zero(c->stream, c->flux2->run.zeros, nbytes);
    int rc = compute_sync(c, err);
    free(ones);
    return rc;
}

/* x takes the place of the latents, and the target that of the noise. */
static void mix(const struct picture *p, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const float z = p->latents[i], e = p->noise[i];
        p->latents[i] = (1 - p->sigma) * z + p->sigma * e;
        p->noise[i] = e - z;
    }
}

static int send(struct compute *c, struct fsdpck_error *err)
{
    struct flux2_train *t = c->flux2;
    const struct picture *p = &c->batch.picture;
    const bool moved = p->height != t->run.height || p->width != t->run.width;
    const int64_t n = p->height * p->width * c->m->flux2.nchannel;
    t->run.height = p->height;
    t->run.width = p->width;
    t->run.nimage = p->height * p->width;
    t->run.n = t->run.ntext + t->run.nimage;
    mix(p, n);
    c->dtype = c->widest;
    flux2_send_text(&t->run, p->text);
    c->device->memory->copy(c->stream, t->target, p->noise, (size_t)n * sizeof *p->noise);
    c->device->memory->copy(c->stream, c->on.rng_offset, c->batch.rng_offset, sizeof *c->batch.rng_offset);
    return moved ? flux2_send_tables(&t->run, err) : 0;
}

/* Parts that go by streams leave their own number of tokens; recordings of blocks are found by that of both. */
static void leave(struct compute *c)
{
    c->batch.ntok = c->flux2->run.n;
}

static void first(struct compute *c)
{
    const struct picture *p = &c->batch.picture;
    flux2_first(&c->flux2->run, p->latents, p->sigma, p->guidance, c->flux2->kept[0].z);
    leave(c);
}

static void block(struct compute *c, int64_t number)
{
    struct flux2_train *t = c->flux2;
    flux2_block(&t->run, number, &t->kept[number], number + 1 < c->m->nlayer ? t->kept[number + 1].z : t->run.last);
    leave(c);
}

static int loss(struct compute *c, bool wants_gradient, struct fsdpck_error *err)
{
    (void)err;
    struct flux2_train *t = c->flux2;
    const int64_t nchannel = c->m->flux2.nchannel, nimage = t->run.nimage;
    const float factor = c->batch.picture.weight / (float)(nimage * nchannel);
    const struct kern_square_error e = { .nrow = nimage,
                                         .ncol = nchannel,
                                         .x = { t->run.velocity, nchannel, KERN_F32 },
                                         .target = { t->target, nchannel, KERN_F32 },
                                         .factor = factor,
                                         .grad_factor = factor * c->batch.grad_scale,
                                         .loss = c->loss,
                                         .dx = { wants_gradient ? t->dvelocity : NULL, nchannel, c->widest } };
    flux2_end(&t->run);
    c->device->images->square_error(c->stream, &e);
    c->device->ops->sum(c->stream, c->loss_sum, c->loss, nimage);
    return 0;
}

static void end_backward(struct compute *c)
{
    flux2_end_backward(&c->flux2->run, c->flux2->dvelocity);
    leave(c);
}

static void recompute(struct compute *c, int64_t number)
{
    flux2_block(&c->flux2->run, number, &c->flux2->kept[number], NULL);
    leave(c);
}

static void one_backward(struct compute *c, int64_t number)
{
    const bool wants_dz = number > compute_first_layer(c->l) || compute_trains_first(c->l);
    flux2_block_backward(&c->flux2->run, number, &c->flux2->kept[number], wants_dz);
    leave(c);
}

static void first_backward(struct compute *c)
{
    flux2_first_backward(&c->flux2->run);
}

const struct compute_parts flux2_parts = { .open = open_train,
                                           .close = close_train,
                                           .alloc = alloc,
                                           .alloc_host = alloc_host,
                                           .start = start,
                                           .send = send,
                                           .first = first,
                                           .block = block,
                                           .loss = loss,
                                           .norm_backward = end_backward,
                                           .recompute = recompute,
                                           .block_backward = one_backward,
                                           .first_backward = first_backward };
