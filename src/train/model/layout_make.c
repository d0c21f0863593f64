/* SPDX-License-Identifier: Apache-2.0 */
/* Builds the tables of layout.h from a model and a config. */
#include "model/layout.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arrays/grow.h"
#include "config/target.h"
#include "model/family.h"
#include "model/expert_pairs.h"
#include "model/flux2_layout.h"
#include "model/layout_build.h"
#include "model/layout_check.h"
#include "model/layout_cut.h"
#include "model/layout_place.h"

/* In an adapter, PEFT has no place for an expert that is trained whole. */
static void refuse_saved_expert(struct layout_builder *b, const struct linear *x)
{
    if (!b->rc && b->l->params[x->w].saved)
        b->rc = fsdpck_error_set(b->err, FSDPCK_ERR_USAGE, NULL,
                                 "key 'lora.modules_to_save': '%s' is an expert, which is not trained whole in an "
                                 "adapter; an adapter on it is (lora.target_modules)",
                                 x->path);
}

static struct linear add_expert_linear(struct layout_builder *b, uint32_t group, int64_t nin, int64_t nout,
                                       const char *expert, const char *name, const struct expert_pairs *pairs)
{
    char path[LAYOUT_NAME];
    snprintf(path, sizeof path, "%.200s.%s", expert, name);
    struct linear x = build_weight(b, group, nin, nout, path);
    refuse_saved_expert(b, &x);
    expert_pairs_choose_adapter(b, pairs, &x);
    return x;
}

static void add_router(struct layout_builder *b, uint32_t group, const char *block, struct layer *layer)
{
    const struct model *m = b->m;
    char path[LAYOUT_NAME];
    snprintf(path, sizeof path, "%.100s.%s", block, m->family->modules.router);
    layer->router = build_weight(b, group, m->hidden, m->nexperts, path);
    layer->router.bare = m->gpt_oss;
    if (m->gpt_oss)
        layer->router.bias = build_param(b, group, m->nexperts, 0, path, ".bias");
    else
        build_choose_adapter(b, &layer->router, LAYER_EXPERT);
    router_pair_choose(b, block, &layer->router);
    build_adapters(b, group, (struct linear *[]){ &layer->router }, 1);
    layer->router_bias =
        m->sigmoid ? build_base_param(b, group, m->nexperts, 0, path, path, ".e_score_correction_bias", true) : -1;
}

/* One tensor of all experts: (nexperts, nmid, ncol), or without nmid (nexperts, ncol). */
static int32_t add_fused(struct layout_builder *b, uint32_t group, int64_t nmid, int64_t ncol, const char *path,
                         const char *suffix)
{
    const int32_t number = build_param(b, group, b->m->nexperts, (nmid ? nmid : 1) * ncol, path, suffix);
    if (b->rc)
        return -1;
    struct param *p = &b->l->params[number];
    if (nmid) {
        p->ndim = 3, p->nmid = nmid;
        build_choose_packed(b, number, b->m->nexperts * ncol, nmid);
    } else {
        p->decay = b->config->train.weight_decay_on == TRAIN_DECAY_ALL; /* biases */
    }
    if (p->saved && !b->rc)
        b->rc = fsdpck_error_set(b->err, FSDPCK_ERR_UNSUPPORTED, NULL,
                                 "key 'lora.modules_to_save': '%s' is of experts, which are not trained whole in an "
                                 "adapter; without the section lora, all weights are trained",
                                 p->source);
    return number;
}

static struct linear fused_linear(const char *path, int64_t nin, int64_t nout, int32_t w, int32_t bias, int64_t expert)
{
    struct linear x = { .nin = nin,
                        .nout = nout,
                        .w = w,
                        .bias = bias,
                        .fused = true,
                        .expert = expert,
                        .bare = true,
                        .a = -1,
                        .b = -1,
                        .magnitude = -1 };
    snprintf(x.path, sizeof x.path, "%s", path);
    return x;
}

/* As gpt-oss is published. */
static void add_fused_experts(struct layout_builder *b, uint32_t group, const char *block, struct layer *layer)
{
    const struct model *m = b->m;
    const int64_t inner = m->expert_inner;
    char path[LAYOUT_NAME];
    snprintf(path, sizeof path, "%.100s.%s", block, m->family->modules.experts);
    const int32_t w = add_fused(b, group, m->hidden, 2 * inner, path, ".gate_up_proj"),
                  bias = add_fused(b, group, 0, 2 * inner, path, ".gate_up_proj_bias"),
                  down = add_fused(b, group, inner, m->hidden, path, ".down_proj");
    layer->down_bias = add_fused(b, group, 0, m->hidden, path, ".down_proj_bias");
    for (int64_t e = 0; e < m->nexperts && !b->rc; e++)
        layer->experts[layer->nexperts++] = (struct mlp){ .gate = fused_linear(path, m->hidden, 2 * inner, w, bias, e),
                                                          .up = fused_linear(path, m->hidden, 0, -1, -1, e),
                                                          .down = fused_linear(path, inner, m->hidden, down, -1, e),
                                                          .joined = true };
}

/* Each expert's weights are tensors of their own, as most models are published. */
static void add_single_experts(struct layout_builder *b, uint32_t group, const char *block,
                               const struct expert_pairs *pairs, struct layer *layer)
{
    const struct model *m = b->m;
    const struct family *f = m->family;
    char path[LAYOUT_NAME], name[100];
    for (int64_t e = 0; e < m->nexperts && !b->rc; e++) {
        struct mlp *x = &layer->experts[layer->nexperts++];
        snprintf(name, sizeof name, "%.40s.%lld", f->modules.experts, (long long)e);
        snprintf(path, sizeof path, "%.100s.%s", block, name);
        x->gate = add_expert_linear(b, group, m->hidden, m->expert_inner, path, f->modules.gate, pairs);
        x->up = add_expert_linear(b, group, m->hidden, m->expert_inner, path, f->modules.up, pairs);
        build_adapters(b, group, (struct linear *[]){ &x->gate, &x->up }, 2);
        x->down = add_expert_linear(b, group, m->expert_inner, m->hidden, path, f->modules.down, pairs);
        build_adapters(b, group, (struct linear *[]){ &x->down }, 1);
        x->gate.expert = x->up.expert = x->down.expert = e;
    }
}

static void add_experts(struct layout_builder *b, uint32_t group, const char *block, struct layer *layer)
{
    const size_t n = (size_t)b->m->nexperts;
    struct expert_pairs pairs;
    add_router(b, group, block, layer);
    expert_pairs_find(b, block, &pairs);
    layer->down_bias = -1;
    layer->experts = b->rc ? NULL : calloc(n, sizeof *layer->experts);
    if (!layer->experts && !b->rc)
        b->rc = fsdpck_error_nomem(b->err, n * sizeof *layer->experts);
    if (b->rc)
        return;
    if (b->m->family->modules.gate)
        add_single_experts(b, group, block, &pairs, layer);
    else
        add_fused_experts(b, group, block, layer);
    expert_pairs_add(b, group, &pairs, layer);
}

/* groups: of gate and up, and of down. */
static void add_mlp(struct layout_builder *b, const uint32_t groups[2], int64_t inner, bool bias, const char *path,
                    struct mlp *out)
{
    const int64_t hidden = b->m->hidden;
    char name[LAYOUT_NAME];
#define NAME(text) (snprintf(name, sizeof name, "%.200s." text, path), name)
    out->gate = build_linear(b, groups[0], hidden, inner, bias, NAME("gate_proj"));
    out->up = build_linear(b, groups[0], hidden, inner, bias, NAME("up_proj"));
    build_adapters(b, groups[0], (struct linear *[]){ &out->gate, &out->up }, 2);
    out->down = build_linear(b, groups[1], inner, hidden, bias, NAME("down_proj"));
    build_adapters(b, groups[1], (struct linear *[]){ &out->down }, 1);
#undef NAME
}

/* The expert that every token shares. */
static void add_shared(struct layout_builder *b, uint32_t group, const char *block, struct layer *layer)
{
    char path[LAYOUT_NAME];
    layer->shares = true;
    layer->weighs = b->m->family->modules.shared_gate != NULL;
    snprintf(path, sizeof path, "%.100s.%s", block, b->m->family->modules.shared);
    add_mlp(b, (const uint32_t[]){ group, group }, b->m->shared_inner, false, path, &layer->shared);
    if (!layer->weighs)
        return;
    snprintf(path, sizeof path, "%.100s.%s", block, b->m->family->modules.shared_gate);
    layer->shared_gate = build_linear(b, group, b->m->hidden, 1, false, path);
    build_adapters(b, group, (struct linear *[]){ &layer->shared_gate }, 1);
}

static void add_layer(struct layout_builder *b, int64_t number)
{
    const struct model *m = b->m;
    struct layer *layer = &b->l->layers[number];
    const uint32_t *groups = b->l->blocks[number].groups, group = groups[PART_QKV];
    int64_t nq = m->nhead * m->head_dim, nkv = m->nkv * m->head_dim;
    char path[LAYOUT_NAME];
#define PATH(text) (snprintf(path, sizeof path, "model.layers.%lld." text, (long long)number), path)
    layer->norm1 = build_param(b, group, m->hidden, 0, PATH("input_layernorm"), ".weight");
    layer->q = build_linear(b, group, m->hidden, nq, m->bias_qkv, PATH("self_attn.q_proj"));
    layer->k = build_linear(b, group, m->hidden, nkv, m->bias_qkv, PATH("self_attn.k_proj"));
    layer->v = build_linear(b, group, m->hidden, nkv, m->bias_qkv, PATH("self_attn.v_proj"));
    build_adapters(b, group, (struct linear *[]){ &layer->q, &layer->k, &layer->v }, 3);
    layer->q_norm = m->qk_norm ? build_param(b, group, m->head_dim, 0, PATH("self_attn.q_norm"), ".weight") : -1;
    layer->k_norm = m->qk_norm ? build_param(b, group, m->head_dim, 0, PATH("self_attn.k_norm"), ".weight") : -1;
    layer->sinks = m->gpt_oss ? build_param(b, group, m->nhead, 0, PATH("self_attn"), ".sinks") : -1;
    layer->o = build_linear(b, groups[PART_O], nq, m->hidden, m->bias_o, PATH("self_attn.o_proj"));
    build_adapters(b, groups[PART_O], (struct linear *[]){ &layer->o }, 1);
    layer->norm2 = build_param(b, groups[PART_GATE_UP], m->hidden, 0, PATH("post_attention_layernorm"), ".weight");
    if (m->sparse[number]) {
        snprintf(path, sizeof path, "model.layers.%lld", (long long)number);
        add_experts(b, groups[PART_GATE_UP], path, layer);
        if (m->shared_inner)
            add_shared(b, groups[PART_GATE_UP], path, layer);
        return;
    }
    add_mlp(b, groups + PART_GATE_UP, m->inner, m->bias_mlp, PATH("mlp"), &layer->mlp);
#undef PATH
}

/* Embedding and head are linear layers, which share a weight if the model ties them. Each can have an adapter. If one
 * of them is trained as a copy, the other uses the base's weight or its own copy: PEFT does not tie copies. */
static void add_ends(struct layout_builder *b)
{
    const struct model *m = b->m;
    struct layout *l = b->l;
    l->embed = (struct linear){ .path = "model.embed_tokens",
                                .nin = m->nvocab,
                                .nout = m->hidden,
                                .w = -1,
                                .bias = -1,
                                .a = -1,
                                .b = -1,
                                .magnitude = -1 };
    l->head = (struct linear){
        .path = "lm_head", .nin = m->hidden, .nout = m->nvocab, .w = -1, .bias = -1, .a = -1, .b = -1, .magnitude = -1
    };
    l->embed.w = build_param(b, 0, m->nvocab, m->hidden, l->embed.path, ".weight");
    build_choose_adapter(b, &l->embed, LAYER_EMBEDDING);
    build_adapters(b, 0, (struct linear *[]){ &l->embed }, 1);
    for (int64_t i = 0; i < m->nlayer && !b->rc; i++)
        add_layer(b, i);
    l->norm = build_param(b, l->ngroups - 1, m->hidden, 0, "model.norm", ".weight");
    bool shares = m->tied && !b->rc && !l->params[l->embed.w].saved &&
                  !(b->config->lora.enabled && target_is_saved(&b->config->lora, l->head.path));
    l->head.w = shares ? l->embed.w
                       : build_param_of(b, l->ngroups - 1, m->nvocab, m->hidden, l->head.path,
                                        m->tied ? l->embed.path : l->head.path, ".weight");
    build_choose_adapter(b, &l->head, LAYER_HEAD);
    build_adapters(b, l->ngroups - 1, (struct linear *[]){ &l->head }, 1);
}

static void add_groups(struct layout_builder *b)
{
    b->rc = layout_cut(b->m, b->config, b->l, b->err);
    if (!b->rc && b->m->family)
        add_ends(b);
    else if (!b->rc)
        flux2_add(b);
}

static int refuse_no_target(const struct model *m, struct fsdpck_error *err)
{
    return m->family ? fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                                        "key 'lora.target_modules' matches no module of this model; their paths are "
                                        "like model.layers.0.self_attn.q_proj")
                     : fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                                        "key 'lora.target_modules' matches no module of this model; their paths are "
                                        "like transformer_blocks.0.attn.to_q");
}

int layout_make(const struct model *m, const struct train_config *config, const struct packed_weights *packed,
                uint32_t nranks, struct layout *out, struct fsdpck_error *err)
{
    const bool by_group = !config->lora.enabled || config->lora.nmodules_to_save > 0;
    struct layout l = { .nranks = nranks,
                        .grads_by_group = by_group,
                        .grads_take_turns = by_group && config->train.accumulation == 1 };
    struct layout_builder b = { .m = m, .config = config, .packed = packed, .l = &l, .err = err };
    l.layers = m->family ? calloc((size_t)m->nlayer, sizeof *l.layers) : NULL;
    b.rank_used = calloc(config->lora.nrank_pattern + 1, sizeof *b.rank_used);
    b.alpha_used = calloc(config->lora.nalpha_pattern + 1, sizeof *b.alpha_used);
    if ((m->family && !l.layers) || !b.rank_used || !b.alpha_used)
        b.rc = fsdpck_error_nomem(err, (size_t)m->nlayer * sizeof *l.layers);
    else
        add_groups(&b);
    if (!b.rc && config->lora.enabled)
        b.rc = layout_check_names(&l, m, &config->lora, err);
    if (!b.rc && config->lora.enabled)
        b.rc = layout_check_parameters(&l, m, &config->lora, err);
    if (!b.rc && config->lora.enabled)
        b.rc = layout_check_saved(&l, &config->lora, err);
    if (!b.rc && config->lora.enabled && b.ntargets == 0)
        b.rc = refuse_no_target(m, err);
    if (!b.rc && config->lora.enabled)
        b.rc = layout_check_patterns(&l, "rank_pattern", config->lora.rank_pattern, config->lora.nrank_pattern,
                                     b.rank_used, err);
    if (!b.rc && config->lora.enabled)
        b.rc = layout_check_patterns(&l, "alpha_pattern", config->lora.alpha_pattern, config->lora.nalpha_pattern,
                                     b.alpha_used, err);
    free(b.rank_used);
    free(b.alpha_used);
    if (!b.rc)
        b.rc = layout_order_state(&l, config, err);
    if (!b.rc)
        b.rc = layout_place(&l, config, err);
    if (b.rc)
        layout_free(&l);
    *out = l;
    return b.rc;
}

static void each_mlp(const struct mlp *x, layout_fn *fn, void *ctx)
{
    fn(ctx, (const struct linear *[]){ &x->gate, &x->up }, mlp_ngates(x));
    fn(ctx, (const struct linear *[]){ &x->down }, 1);
}

void layout_each(const struct layout *l, layout_fn *fn, void *ctx)
{
    if (l->flux2)
        flux2_each(l, fn, ctx);
    for (uint32_t i = 0; l->layers && i < l->nblocks; i++) {
        const struct layer *x = &l->layers[i];
        fn(ctx, (const struct linear *[]){ &x->q, &x->k, &x->v }, 3);
        fn(ctx, (const struct linear *[]){ &x->o }, 1);
        if (x->experts)
            fn(ctx, (const struct linear *[]){ &x->router }, 1);
        else
            each_mlp(&x->mlp, fn, ctx);
        for (int64_t e = 0; e < x->nexperts; e++)
            each_mlp(&x->experts[e], fn, ctx);
        if (x->shares) {
            each_mlp(&x->shared, fn, ctx);
            if (x->weighs)
                fn(ctx, (const struct linear *[]){ &x->shared_gate }, 1);
        }
    }
}

void layout_free(struct layout *l)
{
    for (uint32_t i = 0; l->layers && i < l->nblocks; i++)
        free(l->layers[i].experts);
    flux2_free(l);
    free(l->params);
    free(l->blocks);
    free(l->layers);
    *l = (struct layout){ 0 };
}
