/* SPDX-License-Identifier: Apache-2.0 */
#include "model/layout_check.h"

#include <stdio.h>
#include <string.h>

#include <fsdpck/select.h>

#include "config/target.h"
#include "model/family.h"

/* A name that matches no module with parameters is a typo. PEFT cannot copy the list of layers. */
int layout_check_saved(const struct layout *l, const struct train_lora_config *lora, struct fsdpck_error *err)
{
    for (size_t n = 0; n < lora->nmodules_to_save; n++) {
        const char *name = lora->modules_to_save[n];
        bool found = false;
        for (size_t i = 0; i < l->nparams && !found; i++) {
            char path[LAYOUT_NAME];
            const struct param *p = &l->params[i];
            snprintf(path, sizeof path, "%s", p->name + (p->saved ? strlen("base_model.model.") : 0));
            *strrchr(path, '.') = '\0'; /* ".weight" or ".bias" */
            found = p->saved && target_saves(name, path);
        }
        if (!found || target_saves(name, "model.layers"))
            return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                                    "key 'lora.modules_to_save': '%.200s' is the end of no module's path that can be "
                                    "trained whole; there are "
                                    "model.embed_tokens, model.norm, lm_head and, in each layer, self_attn.q_proj, "
                                    "mlp, input_layernorm and others",
                                    name);
    }
    return 0;
}

struct search {
    const char *name;
    bool found;
};

static void compare_names(void *ctx, const struct linear *const *layers, int n)
{
    struct search *s = ctx;
    for (int i = 0; i < n; i++)
        s->found = s->found || (!layers[i]->bare && target_is_named(layers[i]->path, s->name));
}

/* ", gate_proj, up_proj and down_proj": of experts, their names in the family; nothing if they take no adapter. */
static void list_mlp(const struct layout *l, const struct model *m, char *text, size_t nbytes)
{
    const struct family *f = m->family;
    bool dense = false;
    for (int64_t i = 0; i < m->nlayer; i++)
        dense = dense || !l->layers[i].experts;
    if (m->gpt_oss)
        *text = '\0';
    else if (dense || !f->modules.gate)
        snprintf(text, nbytes, ", gate_proj, up_proj and down_proj");
    else
        snprintf(text, nbytes, ", %s, %s and %s of experts, and their router, gate", f->modules.gate, f->modules.up,
                 f->modules.down);
}

/* A name that matches no module is a typo. */
int layout_check_names(const struct layout *l, const struct model *m, const struct train_lora_config *lora,
                       struct fsdpck_error *err)
{
    char mlp[100] = "";
    const char *of_blocks = m->family ? "embed_tokens, lm_head and, in each layer, q_proj, k_proj, v_proj, o_proj"
                                      : "to_q, to_out.0, add_q_proj, ff.linear_in, to_qkv_mlp_proj and others";
    if (m->family)
        list_mlp(l, m, mlp, sizeof mlp);
    for (size_t n = 0; n < lora->ntarget_names; n++) {
        const char *name = lora->target_names[n];
        struct search s = { name, target_is_named(l->embed.path, name) || target_is_named(l->head.path, name) };
        layout_each(l, compare_names, &s);
        if (!s.found)
            return fsdpck_error_set(
                err, FSDPCK_ERR_USAGE, NULL,
                "key 'lora.target_modules': '%.200s' names no module of this model (there are %s%s)", name, of_blocks,
                mlp);
    }
    return 0;
}

static void compare_parameters(void *ctx, const struct linear *const *layers, int n)
{
    struct search *s = ctx;
    char weight[LAYOUT_NAME + 8];
    for (int i = 0; i < n; i++) {
        snprintf(weight, sizeof weight, "%s.weight", layers[i]->path);
        s->found = s->found || (layers[i]->r && layers[i]->bare &&
                                (target_is_named(layers[i]->path, s->name) || target_is_named(weight, s->name)));
    }
}

int layout_check_parameters(const struct layout *l, const struct model *m, const struct train_lora_config *lora,
                            struct fsdpck_error *err)
{
    for (size_t n = 0; n < lora->ntarget_parameters; n++) {
        struct search s = { .name = lora->target_parameters[n] };
        layout_each(l, compare_parameters, &s);
        if (s.found)
            continue;
        fsdpck_error_set(
            err, FSDPCK_ERR_USAGE, NULL,
            "key 'lora.target_parameters': '%.200s' names no parameter of this model that takes an adapter", s.name);
        if (m->nexperts)
            fsdpck_error_hint(
                err,
                "there are mlp.experts.gate_up_proj, mlp.experts.down_proj and mlp.%s.weight; the weights "
                "of linear modules are for lora.target_modules",
                m->gpt_oss ? "router" : "gate");
        return FSDPCK_ERR_USAGE;
    }
    return 0;
}

struct nearest {
    const char *glob, *best;
};

static void try_nearest(void *ctx, const struct linear *const *layers, int n)
{
    struct nearest *s = ctx;
    for (int i = 0; i < n; i++)
        if (layers[i]->r &&
            (!s->best || fsdpck_glob_distance(s->glob, layers[i]->path) < fsdpck_glob_distance(s->glob, s->best)))
            s->best = layers[i]->path;
}

/* Of the modules with adapters, the one whose path has the longest common ending with the pattern. */
static const char *nearest_module(const struct layout *l, const char *pattern)
{
    char glob[256];
    struct nearest s = { .glob = glob };
    snprintf(glob, sizeof glob, "*%.200s", pattern);
    try_nearest(&s, (const struct linear *[]){ &l->embed, &l->head }, 2);
    layout_each(l, try_nearest, &s);
    return s.best;
}

/* A pattern that no module uses is a typo, or an earlier pattern matches all of its modules. */
int layout_check_patterns(const struct layout *l, const char *key, const struct train_pattern *patterns, size_t n,
                          const bool *used, struct fsdpck_error *err)
{
    for (size_t i = 0; i < n; i++) {
        if (used[i])
            continue;
        fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "key 'lora.%s': '%.200s' fits no module that has an adapter%s",
                         key, patterns[i].regex, i ? " and is not taken by a pattern before it" : "");
        const char *nearest = nearest_module(l, patterns[i].regex);
        if (nearest)
            fsdpck_error_hint(err, "the nearest module is '%s'", nearest);
        return FSDPCK_ERR_USAGE;
    }
    return 0;
}

int layout_refuse_packed(const struct param *p, bool is_lora, const char *held, struct fsdpck_error *err)
{
    if (is_lora)
        fsdpck_error_set(
            err, FSDPCK_ERR_USAGE, NULL,
            "key 'lora.modules_to_save': '%s' is a quantized weight (dtype.base: %s), which is not trained", p->source,
            held);
    else
        fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                         "key 'dtype.base': weights that stay quantized (%s), '%s' the first, are not trained", held,
                         p->source);
    fsdpck_error_hint(err, is_lora
                               ? "an adapter on it is trained; \"dtype\": {\"base\": \"bf16\"} dequantizes the base"
                               : "train an adapter (the section lora), or dequantize the base: \"dtype\": {\"base\": "
                                 "\"bf16\"}");
    return err->code;
}
