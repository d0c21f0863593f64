/* SPDX-License-Identifier: Apache-2.0 */
/* Draws the model of a trial, its weights, its adapters and its documents. */
#include "trial.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* splitmix64 */
int64_t trial_below(struct trial *t, int64_t n)
{
    uint64_t z = t->random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (int64_t)((z ^ (z >> 31)) % (uint64_t)n);
}

double trial_uniform(struct trial *t)
{
    return (double)trial_below(t, 1 << 24) * 0x1p-23 - 1;
}

bool trial_has_sigmoids(const struct trial *t)
{
    return strcmp(t->family, "glm4_moe") == 0 || strcmp(t->family, "dots1") == 0;
}

/* Dropout of an expert's adapter depends on the other tokens of the micro-batch, which the reference does not see. */
static void choose_experts(struct trial *t)
{
    struct reference *m = &t->ref;
    /* whole: every layer is a mixture, whose experts are as wide as config.json's intermediate_size */
    const bool oss = strcmp(t->family, "gpt_oss") == 0, mixtral = strcmp(t->family, "mixtral") == 0,
               whole = mixtral || oss;
    m->sigmoid = trial_has_sigmoids(t);
    m->ngroup = m->sigmoid ? 1 + trial_below(t, 3) : 1;
    m->top_groups = m->ngroup - trial_below(t, m->ngroup);
    m->nexperts = m->sigmoid ? m->ngroup * (2 + trial_below(t, 3)) : 2 + trial_below(t, 6);
    const int64_t most = m->nexperts / m->ngroup * m->top_groups;
    m->top_k = 1 + trial_below(t, most < 3 ? most : 3);
    m->routed_scale = m->sigmoid ? 0.5 + (double)trial_below(t, 4) : 1;
    m->expert_inner = whole ? m->inner : 5 + trial_below(t, 20);
    m->shared_inner = m->sigmoid                            ? m->expert_inner * (1 + trial_below(t, 2))
                      : strcmp(t->family, "qwen2_moe") == 0 ? 5 + trial_below(t, 30)
                                                            : 0;
    m->normalised = whole || trial_below(t, 2);
    m->first_window = 0;
    m->dropout = 0;
    t->balance = m->sigmoid || trial_below(t, 3) == 0 ? 0 : 0.1 + (double)trial_below(t, 10);
    t->first_dense = whole ? -1 : m->sigmoid ? trial_below(t, 2) - 1 : trial_below(t, m->nlayer + 1) - 1;
    if (oss) {
        m->slope = 1.702;
        m->limit = 0.5 + (double)trial_below(t, 3);
        snprintf(t->targets, sizeof t->targets,
                 trial_below(t, 2) ? "\"all-linear\"" : "[\"k_proj\",\"o_proj\",\"lm_head\"]");
    } else if (trial_below(t, 3))
        snprintf(t->targets, sizeof t->targets, "%s",
                 mixtral ? "[\"w1\",\"w2\",\"q_proj\",\"gate\"]"
                         : "[\"gate_proj\",\"up_proj\",\"down_proj\",\"o_proj\"]");
    else
        snprintf(t->targets, sizeof t->targets, "\"all-linear\"");
}

static void choose(struct trial *t, int number)
{
    static const char *const families[] = { "llama", "mistral", "qwen2", "qwen3" };
    static const char *const sparse[] = { "mixtral", "qwen3_moe", "qwen2_moe", "glm4_moe", "dots1", "gpt_oss" };
    static const char *const targets[] = { "\"all-linear\"",
                                           "[\"q_proj\",\"v_proj\"]",
                                           "[\"embed_tokens\",\"lm_head\",\"o_proj\"]",
                                           "[\"embed_tokens\",\"down_proj\"]",
                                           "[\"lm_head\",\"gate_proj\",\"k_proj\"]",
                                           "\"model.layers.1.(mlp|self_attn).(up|k|v)_proj\"" };
    struct reference *m = &t->ref;
    t->family = number < TRIALS_DENSE ? families[number % 4] : sparse[number % 6];
    t->lora = number < TRIALS_DENSE ? number / 4 % 2 : number / 6 % 2;
    m->nkv = 1 + trial_below(t, 3);
    m->nhead = m->nkv * (1 + trial_below(t, 3));
    m->head_dim = 2 * (1 + trial_below(t, 6));
    m->hidden = 9 + trial_below(t, 24);
    m->inner = 7 + trial_below(t, 40);
    m->nlayer = 2 + trial_below(t, 2);
    m->nvocab = 17 + trial_below(t, 60);
    m->tied = trial_below(t, 2);
    m->eps = trial_below(t, 2) ? 1e-6 : 1e-3;
    m->rope = (enum reference_rope)trial_below(t, REFERENCE_ROPES);
    m->theta = trial_below(t, 2) ? 10000 : 500;
    m->factor = 2 + (double)trial_below(t, 3);
    m->original = 8 + (double)trial_below(t, 30);
    m->alpha = 2 + (double)trial_below(t, 7);
    m->rslora = trial_below(t, 2);
    m->dropout = t->lora && trial_below(t, 2) ? 0.25 : 0;
    m->seed = (uint64_t)number;
    const bool glm = strcmp(t->family, "glm4_moe") == 0, dots = strcmp(t->family, "dots1") == 0;
    m->head_dim *= glm ? 2 : 1;
    m->rotary = glm && trial_below(t, 3) ? m->head_dim / 2 : m->head_dim;
    m->qk_norm = strncmp(t->family, "qwen3", 5) == 0 || dots || (glm && trial_below(t, 2));
    t->attention_bias = strncmp(t->family, "qwen2", 5) == 0 || (strncmp(t->family, "mi", 2) != 0 && trial_below(t, 2));
    t->mlp_bias = strcmp(t->family, "llama") == 0 && trial_below(t, 2);
    t->recompute = trial_below(t, 2);
    m->window = strcmp(t->family, "llama") != 0 && !glm && trial_below(t, 3) ? 1 + trial_below(t, 9) : 0;
    m->first_window = m->window && strcmp(t->family, "mistral") != 0 ? trial_below(t, m->nlayer) : 0;
    snprintf(t->targets, sizeof t->targets, "%s", targets[trial_below(t, sizeof targets / sizeof targets[0])]);
    if (number >= TRIALS_DENSE)
        choose_experts(t);
    m->dora = t->lora && number < TRIALS_DENSE && number % 4 < 3 && !strstr(t->targets, "embed_tokens") &&
              !strstr(t->targets, "lm_head");
}

void trial_add_tensor(struct trial *t, const char *name, int64_t nrow, int64_t ncol, double middle, double spread)
{
    struct reference *m = &t->ref;
    m->tensors = realloc(m->tensors, (m->ntensors + 1) * sizeof *m->tensors);
    struct reference_tensor *x = &m->tensors[m->ntensors++];
    *x =
        (struct reference_tensor){ .nrow = nrow, .ncol = ncol, .data = malloc((size_t)(nrow * ncol) * sizeof(double)) };
    snprintf(x->name, sizeof x->name, "%s", name);
    for (int64_t i = 0; i < nrow * ncol; i++)
        x->data[i] = (double)(float)(middle + spread * trial_uniform(t)); /* a value that the file can represent */
}

static void add_linear(struct trial *t, int64_t layer, const char *module, int64_t nout, int64_t nin, bool bias)
{
    char name[160];
    snprintf(name, sizeof name, "model.layers.%lld.%s.weight", (long long)layer, module);
    trial_add_tensor(t, name, nout, nin, 0, 1.6 / sqrt((double)nin));
    snprintf(name, sizeof name, "model.layers.%lld.%s.bias", (long long)layer, module);
    if (bias)
        trial_add_tensor(t, name, nout, 1, 0, 0.5);
}

static void add_norm(struct trial *t, int64_t layer, const char *module, int64_t n)
{
    char name[160];
    snprintf(name, sizeof name, "model.layers.%lld.%s.weight", (long long)layer, module);
    trial_add_tensor(t, name, n, 1, 1, 0.5);
}

static void add_fused(struct trial *t, int64_t layer, const char *name, int64_t nmid, int64_t ncol, double spread)
{
    char path[120];
    snprintf(path, sizeof path, "model.layers.%lld.mlp.experts.%s", (long long)layer, name);
    trial_add_tensor(t, path, t->ref.nexperts, (nmid ? nmid : 1) * ncol, 0, spread);
    t->ref.tensors[t->ref.ntensors - 1].nmid = nmid;
}

static void add_gpt_oss(struct trial *t, int64_t layer)
{
    const struct reference *m = &t->ref;
    char sinks[80];
    snprintf(sinks, sizeof sinks, "model.layers.%lld.self_attn.sinks", (long long)layer);
    trial_add_tensor(t, sinks, m->nhead, 1, 0, 1);
    add_linear(t, layer, "mlp.router", m->nexperts, m->hidden, true);
    add_fused(t, layer, "gate_up_proj", m->hidden, 2 * m->expert_inner, 1.6 / sqrt((double)m->hidden));
    add_fused(t, layer, "gate_up_proj_bias", 0, 2 * m->expert_inner, 0.5);
    add_fused(t, layer, "down_proj", m->expert_inner, m->hidden, 1.6 / sqrt((double)m->expert_inner));
    add_fused(t, layer, "down_proj_bias", 0, m->hidden, 0.5);
}

static void add_experts(struct trial *t, int64_t layer)
{
    const struct reference *m = &t->ref;
    static const char *const names[2][3] = { { "gate_proj", "up_proj", "down_proj" }, { "w1", "w3", "w2" } };
    const bool mixtral = strcmp(t->family, "mixtral") == 0;
    const char *block = mixtral ? "block_sparse_moe" : "mlp";
    char module[80];
    snprintf(module, sizeof module, "%s.gate", block);
    add_linear(t, layer, module, m->nexperts, m->hidden, false);
    if (m->sigmoid) {
        snprintf(module, sizeof module, "model.layers.%lld.mlp.gate.e_score_correction_bias", (long long)layer);
        trial_add_tensor(t, module, m->nexperts, 1, 0, 0.3);
    }
    for (int64_t e = 0; e < m->nexperts; e++)
        for (int i = 0; i < 3; i++) {
            snprintf(module, sizeof module, "%s.experts.%lld.%s", block, (long long)e, names[mixtral][i]);
            add_linear(t, layer, module, i < 2 ? m->expert_inner : m->hidden, i < 2 ? m->hidden : m->expert_inner,
                       false);
        }
    for (int i = 0; i < 3 && m->shared_inner; i++) {
        snprintf(module, sizeof module, "mlp.shared_expert%s.%s", m->sigmoid ? "s" : "", names[0][i]);
        add_linear(t, layer, module, i < 2 ? m->shared_inner : m->hidden, i < 2 ? m->hidden : m->shared_inner, false);
    }
    if (m->shared_inner && !m->sigmoid)
        add_linear(t, layer, "mlp.shared_expert_gate", 1, m->hidden, false);
}

static void add_weights(struct trial *t)
{
    const struct reference *m = &t->ref;
    const int64_t nq = m->nhead * m->head_dim, nkv = m->nkv * m->head_dim;
    const bool bias_o = t->attention_bias && strncmp(t->family, "qwen2", 5) != 0 && strcmp(t->family, "glm4_moe") != 0;
    trial_add_tensor(t, "model.embed_tokens.weight", m->nvocab, m->hidden, 0, 1);
    for (int64_t i = 0; i < m->nlayer; i++) {
        add_norm(t, i, "input_layernorm", m->hidden);
        add_linear(t, i, "self_attn.q_proj", nq, m->hidden, t->attention_bias);
        add_linear(t, i, "self_attn.k_proj", nkv, m->hidden, t->attention_bias);
        add_linear(t, i, "self_attn.v_proj", nkv, m->hidden, t->attention_bias);
        add_linear(t, i, "self_attn.o_proj", m->hidden, nq, bias_o);
        if (m->qk_norm) {
            add_norm(t, i, "self_attn.q_norm", m->head_dim);
            add_norm(t, i, "self_attn.k_norm", m->head_dim);
        }
        add_norm(t, i, "post_attention_layernorm", m->hidden);
        if (m->nexperts && i != t->first_dense) {
            (m->slope > 0 ? add_gpt_oss : add_experts)(t, i);
            continue;
        }
        add_linear(t, i, "mlp.gate_proj", m->inner, m->hidden, t->mlp_bias);
        add_linear(t, i, "mlp.up_proj", m->inner, m->hidden, t->mlp_bias);
        add_linear(t, i, "mlp.down_proj", m->hidden, m->inner, t->mlp_bias);
    }
    trial_add_tensor(t, "model.norm.weight", m->hidden, 1, 1, 0.5);
    if (!m->tied)
        trial_add_tensor(t, "lm_head.weight", m->nvocab, m->hidden, 0, 0.4);
}

/* The last micro-batch has a single document, without any supervised token. */
static void add_documents(struct trial *t)
{
    for (int d = 0; d < DOCUMENTS; d++) {
        struct document *doc = &t->documents[d];
        doc->ntok = 1 + trial_below(t, LONGEST);
        for (int64_t i = 0; i < doc->ntok; i++) {
            doc->ids[i] = (int32_t)trial_below(t, t->ref.nvocab);
            doc->labels[i] = trial_below(t, 3) && d + 1 < DOCUMENTS ? doc->ids[i] : -100;
            t->nsupervised += i > 0 && doc->labels[i] >= 0;
        }
    }
}

void trial_draw(struct trial *t, int number)
{
    choose(t, number);
    add_weights(t);
    add_documents(t);
}
