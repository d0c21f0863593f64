/* SPDX-License-Identifier: Apache-2.0 */
#include "model/expert_pairs.h"

#include <stdio.h>

static const char gate_up_proj[] = "gate_up_proj", down_proj[] = "down_proj";

static struct target find(struct layout_builder *b, const char *path, const char *name)
{
    struct target t = { 0 };
    char parameter[LAYOUT_NAME];
    snprintf(parameter, sizeof parameter, "%.200s.%s", path, name);
    if (b->config->lora.enabled && !b->rc)
        b->rc = target_find_parameter(&b->config->lora, parameter, &t, b->err);
    return t;
}

void expert_pairs_find(struct layout_builder *b, const char *block, struct expert_pairs *out)
{
    snprintf(out->path, sizeof out->path, "%.100s.mlp.experts", block);
    out->gate_up = find(b, out->path, gate_up_proj);
    out->down = find(b, out->path, down_proj);
}

/* PEFT has one or the other: adapters of single experts become pairs of the same parameters there. */
void expert_pairs_choose_adapter(struct layout_builder *b, const struct expert_pairs *pairs, struct linear *x)
{
    const bool any = pairs->gate_up.chosen || pairs->down.chosen;
    if (any && b->config->lora.all_linear)
        return;
    build_choose_adapter(b, x, LAYER_EXPERT);
    if (any && x->r && !b->rc)
        b->rc = fsdpck_error_set(b->err, FSDPCK_ERR_USAGE, NULL,
                                 "keys 'lora.target_modules' and 'lora.target_parameters' both choose experts of one "
                                 "layer: %s, and %s.%s",
                                 x->path, pairs->path, pairs->gate_up.chosen ? gate_up_proj : down_proj);
}

/* The layer's part of the pairs of all experts. b_row: its first output among those of the parameter. */
static void take_part(struct layout_builder *b, const struct target *t, const char *path, int32_t pair_a,
                      int32_t pair_b, int64_t b_row, struct linear *x)
{
    snprintf(x->path, sizeof x->path, "%s", path);
    build_take_target(b, t, x);
    x->bare = true;
    x->a = pair_a;
    x->b = pair_b;
    x->npairs = b->m->nexperts;
    x->a_row = x->expert * t->r;
    x->b_row = b_row;
}

/* Adds the two factors, named as PEFT nests its wrappers: `inner` is inside another parameter's. */
static void add_factors(struct layout_builder *b, uint32_t group, const struct expert_pairs *pairs,
                        const struct target *t, int64_t nin, int64_t nout, bool inner, int32_t out[2])
{
    char path[LAYOUT_NAME];
    const int64_t width = t->r * b->m->nexperts;
    snprintf(path, sizeof path, "%.200s%s", pairs->path, inner ? ".base_layer" : "");
    out[0] = build_adapter(b, group, width, nin, path, ".lora_A.weight");
    out[1] = build_adapter(b, group, nout, width, path, ".lora_B.weight");
}

static void add_gate_up(struct layout_builder *b, uint32_t group, const struct expert_pairs *pairs, struct layer *layer)
{
    const int64_t inner = b->m->expert_inner;
    char path[LAYOUT_NAME];
    int32_t pair[2];
    snprintf(path, sizeof path, "%.200s.%s", pairs->path, gate_up_proj);
    add_factors(b, group, pairs, &pairs->gate_up, b->m->hidden, 2 * inner, pairs->down.chosen, pair);
    for (int64_t e = 0; e < layer->nexperts; e++) {
        struct mlp *x = &layer->experts[e];
        take_part(b, &pairs->gate_up, path, pair[0], pair[1], 0, &x->gate);
        if (!x->joined)
            take_part(b, &pairs->gate_up, path, pair[0], pair[1], inner, &x->up);
    }
}

static void add_down(struct layout_builder *b, uint32_t group, const struct expert_pairs *pairs, struct layer *layer)
{
    char path[LAYOUT_NAME];
    int32_t pair[2];
    snprintf(path, sizeof path, "%.200s.%s", pairs->path, down_proj);
    add_factors(b, group, pairs, &pairs->down, b->m->expert_inner, b->m->hidden, false, pair);
    for (int64_t e = 0; e < layer->nexperts; e++)
        take_part(b, &pairs->down, path, pair[0], pair[1], 0, &layer->experts[e].down);
}

void expert_pairs_add(struct layout_builder *b, uint32_t group, const struct expert_pairs *pairs, struct layer *layer)
{
    if (pairs->gate_up.chosen && !b->rc)
        add_gate_up(b, group, pairs, layer);
    if (pairs->down.chosen && !b->rc)
        add_down(b, group, pairs, layer);
}

/* A parameter that is a matrix has the pair of a linear layer, under the name of its module. */
void router_pair_choose(struct layout_builder *b, const char *block, struct linear *router)
{
    char path[LAYOUT_NAME];
    snprintf(path, sizeof path, "%.100s.mlp.%s", block, b->m->gpt_oss ? "router" : "gate");
    const struct target t = find(b, path, "weight");
    if (!t.chosen || b->rc)
        return;
    if (router->r && !b->config->lora.all_linear) {
        b->rc = fsdpck_error_set(b->err, FSDPCK_ERR_USAGE, NULL,
                                 "keys 'lora.target_modules' and 'lora.target_parameters' both choose the router %s",
                                 router->path);
        return;
    }
    snprintf(router->path, sizeof router->path, "%s", path);
    build_take_target(b, &t, router);
    router->bare = true;
}
