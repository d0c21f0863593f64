/* SPDX-License-Identifier: Apache-2.0 */
/* FLUX.2's parameters under diffusers' names. */
#include "model/flux2_layout.h"

#include <stdio.h>
#include <stdlib.h>

/* A layer that shares its input with no other. */
static void add_one(struct layout_builder *b, uint32_t group, struct linear *x, int64_t nin, int64_t nout,
                    const char *path)
{
    *x = build_linear(b, group, nin, nout, false, path);
    build_adapters(b, group, &x, 1);
}

static void add_time(struct layout_builder *b, struct linear x[2], const char *name)
{
    char path[LAYOUT_NAME];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "time_guidance_embed.%s.linear_%d", name, i + 1);
        add_one(b, 0, &x[i], i ? b->m->hidden : 2 * FLUX2_FREQUENCIES, b->m->hidden, path);
    }
}

/* All that is needed before the first block. */
static void add_first(struct layout_builder *b)
{
    struct flux2_layers *f = b->l->flux2;
    const int64_t d = b->m->hidden;
    add_one(b, 0, &b->l->embed, b->m->flux2.nchannel, d, "x_embedder");
    add_one(b, 0, &f->context, b->m->flux2.text_width, d, "context_embedder");
    add_time(b, f->time, "timestep_embedder");
    if (b->m->flux2.guided)
        add_time(b, f->guidance, "guidance_embedder");
    add_one(b, 0, &f->modulation_image, d, 6 * d, "double_stream_modulation_img.linear");
    add_one(b, 0, &f->modulation_text, d, 6 * d, "double_stream_modulation_txt.linear");
    add_one(b, 0, &f->modulation_single, d, 3 * d, "single_stream_modulation.linear");
}

/* Names of a stream's modules, below the block's. */
struct stream_names {
    const char *q, *k, *v, *out, *q_norm, *k_norm, *mlp;
};

static void add_stream(struct layout_builder *b, uint32_t group, int64_t number, struct flux2_stream *s,
                       const struct stream_names *n)
{
    const int64_t d = b->m->hidden, inner = b->m->inner;
    char path[LAYOUT_NAME];
#define NAME(format, ...) \
    (snprintf(path, sizeof path, "transformer_blocks.%lld." format, (long long)number, __VA_ARGS__), path)
    s->q = build_linear(b, group, d, d, false, NAME("attn.%s", n->q));
    s->k = build_linear(b, group, d, d, false, NAME("attn.%s", n->k));
    s->v = build_linear(b, group, d, d, false, NAME("attn.%s", n->v));
    build_adapters(b, group, (struct linear *[]){ &s->q, &s->k, &s->v }, 3);
    add_one(b, group, &s->out, d, d, NAME("attn.%s", n->out));
    s->q_norm = build_param(b, group, b->m->head_dim, 0, NAME("attn.%s", n->q_norm), ".weight");
    s->k_norm = build_param(b, group, b->m->head_dim, 0, NAME("attn.%s", n->k_norm), ".weight");
    add_one(b, group, &s->mlp_in, d, 2 * inner, NAME("%s.linear_in", n->mlp));
    add_one(b, group, &s->mlp_out, inner, d, NAME("%s.linear_out", n->mlp));
#undef NAME
}

static void add_double(struct layout_builder *b, int64_t number)
{
    static const struct stream_names image = { "to_q", "to_k", "to_v", "to_out.0", "norm_q", "norm_k", "ff" },
                                     text = { "add_q_proj",   "add_k_proj",   "add_v_proj", "to_add_out",
                                              "norm_added_q", "norm_added_k", "ff_context" };
    struct flux2_double *x = &b->l->flux2->doubles[number];
    add_stream(b, (uint32_t)number + 1, number, &x->image, &image);
    add_stream(b, (uint32_t)number + 1, number, &x->text, &text);
}

static void add_single(struct layout_builder *b, int64_t number)
{
    struct flux2_single *x = &b->l->flux2->singles[number];
    const int64_t d = b->m->hidden, inner = b->m->inner;
    const uint32_t group = (uint32_t)(b->m->flux2.ndouble + number) + 1;
    char path[LAYOUT_NAME];
#define NAME(text) (snprintf(path, sizeof path, "single_transformer_blocks.%lld.attn." text, (long long)number), path)
    add_one(b, group, &x->in, d, 3 * d + 2 * inner, NAME("to_qkv_mlp_proj"));
    x->q_norm = build_param(b, group, b->m->head_dim, 0, NAME("norm_q"), ".weight");
    x->k_norm = build_param(b, group, b->m->head_dim, 0, NAME("norm_k"), ".weight");
    add_one(b, group, &x->out, d + inner, d, NAME("to_out"));
#undef NAME
}

void flux2_add(struct layout_builder *b)
{
    const struct flux2 *m = &b->m->flux2;
    struct layout *l = b->l;
    struct flux2_layers *f = l->flux2 = calloc(1, sizeof *f);
    if (f) {
        f->doubles = calloc((size_t)m->ndouble, sizeof *f->doubles);
        f->singles = calloc((size_t)m->nsingle, sizeof *f->singles);
    }
    if (!f || !f->doubles || !f->singles) {
        b->rc = fsdpck_error_nomem(b->err, (size_t)b->m->nlayer * sizeof *f->doubles);
        return;
    }
    f->ndouble = m->ndouble;
    f->nsingle = m->nsingle;
    add_first(b);
    for (size_t i = 0; i < l->nparams; i++)
        f->first_trains |= l->params[i].trainable;
    for (int64_t i = 0; i < m->ndouble && !b->rc; i++)
        add_double(b, i);
    for (int64_t i = 0; i < m->nsingle && !b->rc; i++)
        add_single(b, i);
    add_one(b, l->ngroups - 1, &f->last, b->m->hidden, 2 * b->m->hidden, "norm_out.linear");
    l->norm = f->last.w;
    add_one(b, l->ngroups - 1, &l->head, b->m->hidden, m->nchannel, "proj_out");
}

int32_t flux2_norm(const struct layout *l, uint32_t block)
{
    const struct flux2_layers *f = l->flux2;
    return block < f->ndouble ? f->doubles[block].image.q_norm : f->singles[block - f->ndouble].q_norm;
}

static void each_of(const struct linear *x, layout_fn *fn, void *ctx)
{
    fn(ctx, &x, 1);
}

static void each_stream(const struct flux2_stream *s, layout_fn *fn, void *ctx)
{
    fn(ctx, (const struct linear *[]){ &s->q, &s->k, &s->v }, 3);
    each_of(&s->out, fn, ctx);
    each_of(&s->mlp_in, fn, ctx);
    each_of(&s->mlp_out, fn, ctx);
}

void flux2_each(const struct layout *l, layout_fn *fn, void *ctx)
{
    const struct flux2_layers *f = l->flux2;
    const struct linear *of_ends[] = { &f->context,         &f->time[0],           &f->time[1],
                                       &f->guidance[0],     &f->guidance[1],       &f->modulation_image,
                                       &f->modulation_text, &f->modulation_single, &f->last };
    for (size_t i = 0; i < sizeof of_ends / sizeof of_ends[0]; i++)
        if (of_ends[i]->nin)
            each_of(of_ends[i], fn, ctx);
    for (int64_t i = 0; i < f->ndouble; i++) {
        each_stream(&f->doubles[i].image, fn, ctx);
        each_stream(&f->doubles[i].text, fn, ctx);
    }
    for (int64_t i = 0; i < f->nsingle; i++) {
        each_of(&f->singles[i].in, fn, ctx);
        each_of(&f->singles[i].out, fn, ctx);
    }
}

void flux2_free(struct layout *l)
{
    if (!l->flux2)
        return;
    free(l->flux2->doubles);
    free(l->flux2->singles);
    free(l->flux2);
}
