/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of whole models through the C API, against central differences of the fp64 reference. Models are small and
 * random, of every family, with and without adapters, with biases, windows, packed documents, tied heads, dropout and
 * every kind of rotary positions. Each tensor is varied along a random direction, to which every element contributes,
 * and at the elements with the largest gradients. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <train/train.h>

#include "reference.h"

#ifdef __SANITIZE_THREAD__
enum { EVERY = 4 }; /* races do not depend on the shapes, and a case takes ten times as long */
#else
enum { EVERY = 1 };
#endif
enum { DENSE = 28, CASES = 48, DOCUMENTS = 7, LONGEST = 19, TOPS = 3 };

struct document {
    int32_t ids[LONGEST], labels[LONGEST];
    int64_t ntok;
};

struct trial {
    uint64_t random;
    const char *family;
    bool lora, attention_bias, mlp_bias, recompute;
    double balance;      /* factor of the load balancing loss; 0: there is none */
    int64_t first_dense; /* of a mixture of experts: a layer that is none; -1: there is no such */
    char targets[200];
    struct reference ref;
    struct document documents[DOCUMENTS];
    int64_t nsupervised;
    char folder[40], text[2400]; /* text: description of the trial, for messages */
    struct train_config config;
    struct train_session *session;
};

static void must(int rc, const struct fsdpck_error *err)
{
    char line[2048];
    if (rc)
        fail_msg("%s", fsdpck_error_format(err, line, sizeof line));
}

/* 0 … n-1 (splitmix64) */
static int64_t below(struct trial *t, int64_t n)
{
    uint64_t z = t->random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (int64_t)((z ^ (z >> 31)) % (uint64_t)n);
}

static double uniform(struct trial *t)
{
    return (double)below(t, 1 << 24) * 0x1p-23 - 1;
}

/* The families whose router is that of DeepSeek-V3. */
static bool is_later(const struct trial *t)
{
    return strcmp(t->family, "glm4_moe") == 0 || strcmp(t->family, "dots1") == 0;
}

/* Dropout of an expert's adapter depends on the other tokens of the micro-batch, which the reference does not see. */
static void choose_experts(struct trial *t)
{
    struct reference *m = &t->ref;
    const bool mixtral = strcmp(t->family, "mixtral") == 0;
    m->sigmoid = is_later(t);
    m->ngroup = m->sigmoid ? 1 + below(t, 3) : 1;
    m->top_groups = m->ngroup - below(t, m->ngroup);
    m->nexperts = m->sigmoid ? m->ngroup * (2 + below(t, 3)) : 2 + below(t, 6);
    const int64_t most = m->nexperts / m->ngroup * m->top_groups;
    m->top_k = 1 + below(t, most < 3 ? most : 3);
    m->routed_scale = m->sigmoid ? 0.5 + (double)below(t, 4) : 1;
    m->expert_inner = mixtral ? m->inner : 5 + below(t, 20);
    m->shared_inner = m->sigmoid                            ? m->expert_inner * (1 + below(t, 2))
                      : strcmp(t->family, "qwen2_moe") == 0 ? 5 + below(t, 30)
                                                            : 0;
    m->normalised = mixtral || below(t, 2);
    m->first_window = 0;
    m->dropout = 0;
    t->balance = m->sigmoid || below(t, 3) == 0 ? 0 : 0.1 + (double)below(t, 10);
    t->first_dense = mixtral ? -1 : m->sigmoid ? below(t, 2) - 1 : below(t, m->nlayer + 1) - 1;
    if (below(t, 3))
        snprintf(t->targets, sizeof t->targets, "%s",
                 mixtral ? "[\"w1\",\"w2\",\"q_proj\",\"gate\"]"
                         : "[\"gate_proj\",\"up_proj\",\"down_proj\",\"o_proj\"]");
    else
        snprintf(t->targets, sizeof t->targets, "\"all-linear\"");
}

static void choose(struct trial *t, int number)
{
    static const char *const families[] = { "llama", "mistral", "qwen2", "qwen3" };
    static const char *const sparse[] = { "mixtral", "qwen3_moe", "qwen2_moe", "glm4_moe", "dots1" };
    static const char *const targets[] = { "\"all-linear\"",
                                           "[\"q_proj\",\"v_proj\"]",
                                           "[\"embed_tokens\",\"lm_head\",\"o_proj\"]",
                                           "[\"embed_tokens\",\"down_proj\"]",
                                           "[\"lm_head\",\"gate_proj\",\"k_proj\"]",
                                           "\"model.layers.1.(mlp|self_attn).(up|k|v)_proj\"" };
    struct reference *m = &t->ref;
    t->family = number < DENSE ? families[number % 4] : sparse[number % 5];
    t->lora = number < DENSE ? number / 4 % 2 : number / 5 % 2;
    m->nkv = 1 + below(t, 3);
    m->nhead = m->nkv * (1 + below(t, 3));
    m->head_dim = 2 * (1 + below(t, 6));
    m->hidden = 9 + below(t, 24);
    m->inner = 7 + below(t, 40);
    m->nlayer = 2 + below(t, 2);
    m->nvocab = 17 + below(t, 60);
    m->tied = below(t, 2);
    m->eps = below(t, 2) ? 1e-6 : 1e-3;
    m->rope = (enum reference_rope)below(t, REFERENCE_ROPES);
    m->theta = below(t, 2) ? 10000 : 500;
    m->factor = 2 + (double)below(t, 3);
    m->original = 8 + (double)below(t, 30);
    m->alpha = 2 + (double)below(t, 7);
    m->rslora = below(t, 2);
    m->dropout = t->lora && below(t, 2) ? 0.25 : 0;
    m->seed = (uint64_t)number;
    const bool glm = strcmp(t->family, "glm4_moe") == 0, dots = strcmp(t->family, "dots1") == 0;
    m->head_dim *= glm ? 2 : 1;
    m->rotary = glm && below(t, 3) ? m->head_dim / 2 : m->head_dim;
    m->qk_norm = strncmp(t->family, "qwen3", 5) == 0 || dots || (glm && below(t, 2));
    t->attention_bias = strncmp(t->family, "qwen2", 5) == 0 || (strncmp(t->family, "mi", 2) != 0 && below(t, 2));
    t->mlp_bias = strcmp(t->family, "llama") == 0 && below(t, 2);
    t->recompute = below(t, 2);
    m->window = strcmp(t->family, "llama") != 0 && !glm && below(t, 3) ? 1 + below(t, 9) : 0;
    m->first_window = m->window && strcmp(t->family, "mistral") != 0 ? below(t, m->nlayer) : 0;
    snprintf(t->targets, sizeof t->targets, "%s", targets[below(t, sizeof targets / sizeof targets[0])]);
    if (number >= DENSE)
        choose_experts(t);
    m->dora = t->lora && number < DENSE && number % 4 < 3 && !strstr(t->targets, "embed_tokens") &&
              !strstr(t->targets, "lm_head");
}

static void add_tensor(struct trial *t, const char *name, int64_t nrow, int64_t ncol, double middle, double spread)
{
    struct reference *m = &t->ref;
    m->tensors = realloc(m->tensors, (m->ntensors + 1) * sizeof *m->tensors);
    struct reference_tensor *x = &m->tensors[m->ntensors++];
    *x =
        (struct reference_tensor){ .nrow = nrow, .ncol = ncol, .data = malloc((size_t)(nrow * ncol) * sizeof(double)) };
    snprintf(x->name, sizeof x->name, "%s", name);
    for (int64_t i = 0; i < nrow * ncol; i++)
        x->data[i] = (double)(float)(middle + spread * uniform(t)); /* a value that the file can represent */
}

static void add_linear(struct trial *t, int64_t layer, const char *module, int64_t nout, int64_t nin, bool bias)
{
    char name[160];
    snprintf(name, sizeof name, "model.layers.%lld.%s.weight", (long long)layer, module);
    add_tensor(t, name, nout, nin, 0, 1.6 / sqrt((double)nin));
    snprintf(name, sizeof name, "model.layers.%lld.%s.bias", (long long)layer, module);
    if (bias)
        add_tensor(t, name, nout, 1, 0, 0.5);
}

static void add_norm(struct trial *t, int64_t layer, const char *module, int64_t n)
{
    char name[160];
    snprintf(name, sizeof name, "model.layers.%lld.%s.weight", (long long)layer, module);
    add_tensor(t, name, n, 1, 1, 0.5);
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
        add_tensor(t, module, m->nexperts, 1, 0, 0.3);
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
    add_tensor(t, "model.embed_tokens.weight", m->nvocab, m->hidden, 0, 1);
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
            add_experts(t, i);
            continue;
        }
        add_linear(t, i, "mlp.gate_proj", m->inner, m->hidden, t->mlp_bias);
        add_linear(t, i, "mlp.up_proj", m->inner, m->hidden, t->mlp_bias);
        add_linear(t, i, "mlp.down_proj", m->hidden, m->inner, t->mlp_bias);
    }
    add_tensor(t, "model.norm.weight", m->hidden, 1, 1, 0.5);
    if (!m->tied)
        add_tensor(t, "lm_head.weight", m->nvocab, m->hidden, 0, 0.4);
}

/* The last micro-batch has a single document, without any supervised token. */
static void add_documents(struct trial *t)
{
    for (int d = 0; d < DOCUMENTS; d++) {
        struct document *doc = &t->documents[d];
        doc->ntok = 1 + below(t, LONGEST);
        for (int64_t i = 0; i < doc->ntok; i++) {
            doc->ids[i] = (int32_t)below(t, t->ref.nvocab);
            doc->labels[i] = below(t, 3) && d + 1 < DOCUMENTS ? doc->ids[i] : -100;
            t->nsupervised += i > 0 && doc->labels[i] >= 0;
        }
    }
}

static void write_text(const struct trial *t, const char *name, json_t *tree)
{
    char path[80];
    snprintf(path, sizeof path, "%s/%s", t->folder, name);
    assert_int_equal(json_dump_file(tree, path, JSON_REAL_PRECISION(17)), 0);
    json_decref(tree);
}

static json_t *rope_of(const struct reference *m)
{
    static const char *const names[] = { "default", "linear", "llama3", "yarn" };
    json_t *o = json_pack("{s:s}", "rope_type", names[m->rope]);
    if (m->rope != REFERENCE_DEFAULT)
        json_object_set_new(o, "factor", json_real(m->factor));
    if (m->rope == REFERENCE_LLAMA3 || m->rope == REFERENCE_YARN)
        json_object_set_new(o, "original_max_position_embeddings", json_integer((json_int_t)m->original));
    if (m->rope == REFERENCE_LLAMA3)
        json_object_update_new(o, json_pack("{s:f, s:f}", "low_freq_factor", 1.0, "high_freq_factor", 4.0));
    return o;
}

static void write_router(const struct reference *m, json_t *o)
{
    json_object_update_new(o, json_pack("{s:I, s:I, s:f, s:I}", "n_group", (json_int_t)m->ngroup, "topk_group",
                                        (json_int_t)m->top_groups, "routed_scaling_factor", m->routed_scale,
                                        "n_shared_experts", (json_int_t)(m->shared_inner / m->expert_inner)));
}

static void write_model(const struct trial *t)
{
    const struct reference *m = &t->ref;
    bool qwen = strncmp(t->family, "qwen", 4) == 0, dots = strcmp(t->family, "dots1") == 0;
    json_t *o = json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:f, s:f, s:o}", "model_type", t->family,
                          "vocab_size", (json_int_t)m->nvocab, "hidden_size", (json_int_t)m->hidden,
                          "intermediate_size", (json_int_t)m->inner, "num_hidden_layers", (json_int_t)m->nlayer,
                          "num_attention_heads", (json_int_t)m->nhead, "num_key_value_heads", (json_int_t)m->nkv,
                          "head_dim", (json_int_t)m->head_dim, "tie_word_embeddings", m->tied, "rms_norm_eps", m->eps,
                          "rope_theta", m->theta, "rope_scaling", rope_of(m));
    assert_non_null(o);
    if (strcmp(t->family, "llama") == 0)
        json_object_set_new(o, "mlp_bias", json_boolean(t->mlp_bias));
    if (m->nexperts) {
        json_object_update_new(o, json_pack("{s:I, s:I, s:I, s:b}", "num_local_experts", (json_int_t)m->nexperts,
                                            "num_experts_per_tok", (json_int_t)m->top_k, "moe_intermediate_size",
                                            (json_int_t)m->expert_inner, "norm_topk_prob", m->normalised));
        if (m->sigmoid) {
            write_router(m, o);
            json_object_set_new(o, "first_k_dense_replace", json_integer(t->first_dense + 1));
        } else if (m->shared_inner) {
            json_object_set_new(o, "shared_expert_intermediate_size", json_integer((json_int_t)m->shared_inner));
            json_t *types = json_array();
            for (int64_t i = 0; i < m->nlayer; i++)
                json_array_append_new(types, json_string("sliding_attention"));
            json_object_set_new(o, "layer_types", types); /* without it, every second layer has a window */
        }
        json_object_update_new(
            o, json_pack("{s:b, s:f}", "output_router_logits", t->balance > 0, "router_aux_loss_coef", t->balance));
        if (t->first_dense >= 0)
            json_object_set_new(o, "mlp_only_layers", json_pack("[I]", (json_int_t)t->first_dense));
    }
    if (strcmp(t->family, "llama") == 0 || strncmp(t->family, "qwen3", 5) == 0 || is_later(t))
        json_object_set_new(o, "attention_bias", json_boolean(t->attention_bias));
    if (qwen)
        json_object_update_new(o, json_pack("{s:b, s:I}", "use_sliding_window", m->window > 0, "max_window_layers",
                                            (json_int_t)m->first_window));
    if (strcmp(t->family, "glm4_moe") == 0)
        json_object_update_new(o, json_pack("{s:b, s:f}", "use_qk_norm", m->qk_norm, "partial_rotary_factor",
                                            (double)m->rotary / (double)m->head_dim));
    if (dots)
        json_object_set_new(o, "max_window_layers", json_integer((json_int_t)m->first_window));
    if (qwen || dots || strncmp(t->family, "mi", 2) == 0)
        json_object_set_new(o, "sliding_window", m->window ? json_integer((json_int_t)m->window) : json_null());
    write_text(t, "config.json", o);
}

static void write_weights(const struct trial *t)
{
    char path[80];
    json_t *header = json_object();
    int64_t at = 0;
    for (size_t i = 0; i < t->ref.ntensors; i++) {
        const struct reference_tensor *x = &t->ref.tensors[i];
        json_t *shape = x->ncol == 1 ? json_pack("[I]", (json_int_t)x->nrow)
                                     : json_pack("[I, I]", (json_int_t)x->nrow, (json_int_t)x->ncol);
        int64_t end = at + x->nrow * x->ncol * 4;
        json_object_set_new(header, x->name,
                            json_pack("{s:s, s:o, s:[I, I]}", "dtype", "F32", "shape", shape, "data_offsets",
                                      (json_int_t)at, (json_int_t)end));
        at = end;
    }
    snprintf(path, sizeof path, "%s/model.safetensors", t->folder);
    FILE *f = fopen(path, "wb");
    char *text = json_dumps(header, JSON_COMPACT);
    uint64_t nbytes = strlen(text);
    assert_true(f && fwrite(&nbytes, 8, 1, f) == 1 && fwrite(text, nbytes, 1, f) == 1);
    for (size_t i = 0; i < t->ref.ntensors; i++) {
        for (int64_t j = 0; j < t->ref.tensors[i].nrow * t->ref.tensors[i].ncol; j++) {
            float value = (float)t->ref.tensors[i].data[j];
            assert_int_equal(fwrite(&value, 4, 1, f), 1);
        }
    }
    assert_int_equal(fclose(f), 0);
    free(text);
    json_decref(header);
}

/* Three rows in two micro-batches with several documents each, and one with the document without labels. */
static void write_data(const struct trial *t)
{
    char path[80];
    snprintf(path, sizeof path, "%s/data.jsonl", t->folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int d = 0; d < DOCUMENTS; d++) {
        json_t *ids = json_array(), *labels = json_array();
        for (int64_t i = 0; i < t->documents[d].ntok; i++) {
            json_array_append_new(ids, json_integer(t->documents[d].ids[i]));
            json_array_append_new(labels, json_integer(t->documents[d].labels[i]));
        }
        json_t *line = json_pack("{s:o, s:o}", "input_ids", ids, "labels", labels);
        json_dumpf(line, f, JSON_COMPACT);
        fputc('\n', f);
        json_decref(line);
    }
    assert_int_equal(fclose(f), 0);
    write_text(t, "plan.json", json_pack("{s:[[[[i, i, i], [i]], [[i, i]], [[i]]]]}", "steps", 0, 1, 2, 3, 4, 5, 6));
}

static void write_config(struct trial *t)
{
    struct fsdpck_error err = { 0 };
    char data[80], plan[80], path[80];
    snprintf(data, sizeof data, "%s/data.jsonl", t->folder);
    snprintf(plan, sizeof plan, "%s/plan.json", t->folder);
    json_t *o = json_pack("{s:s, s:I, s:{s:s, s:s}, s:{s:i, s:i}, s:{s:s}, s:{s:s}}", "model", t->folder, "seed",
                          (json_int_t)t->ref.seed, "data", "train", data, "plan", plan, "train", "max_steps", 1,
                          "gradient_accumulation_steps", 1 + (int)below(t, 3), "dtype", "param", "fp32", "fsdp",
                          "activation_checkpointing", t->recompute ? "block" : "none");
    assert_non_null(o);
    if (t->lora) {
        json_t *lora = json_pack("{s:i, s:f, s:f, s:b}", "r", 3, "lora_alpha", t->ref.alpha, "lora_dropout",
                                 t->ref.dropout, "use_rslora", t->ref.rslora);
        if (strstr(t->targets, "all-linear") || strstr(t->targets, "k_proj") ||
            strstr(t->targets, "|k|")) /* a pattern that matches nothing is refused */
            json_object_set_new(lora, "rank_pattern", json_pack("{s:i}", "k_proj", 5));
        json_object_set_new(lora, "use_dora", json_boolean(t->ref.dora));
        json_object_set_new(lora, "target_modules", json_loads(t->targets, JSON_DECODE_ANY, NULL));
        json_object_set_new(o, "lora", lora);
    }
    char *model = json_dumps(json_object_get(o, "lora"), JSON_COMPACT);
    snprintf(t->text, sizeof t->text,
             "%s, hidden %d, inner %d, heads %d/%d of %d, rope %d, window %d from %d, tied %d, lora %.300s", t->family,
             (int)t->ref.hidden, (int)t->ref.inner, (int)t->ref.nhead, (int)t->ref.nkv, (int)t->ref.head_dim,
             (int)t->ref.rope, (int)t->ref.window, (int)t->ref.first_window, t->ref.tied, model ? model : "none");
    free(model);
    write_text(t, "run.json", o);
    snprintf(path, sizeof path, "%s/run.json", t->folder);
    must(train_config_read(path, NULL, 0, &t->config, &err), &err);
}

/* Fixes DoRA's norms at the point of the gradient. */
static void fix_norms(struct trial *t)
{
    static const char before[] = "base_model.model.", after[] = ".lora_magnitude_vector";
    const size_t n = t->ref.ntensors;
    for (size_t i = 0; i < n; i++) {
        char path[200], name[210];
        const char *end = strstr(t->ref.tensors[i].name, after);
        if (!end)
            continue;
        snprintf(path, sizeof path, "%.*s", (int)(end - t->ref.tensors[i].name - (ptrdiff_t)strlen(before)),
                 t->ref.tensors[i].name + strlen(before));
        snprintf(name, sizeof name, "norms.%s", path);
        add_tensor(t, name, t->ref.tensors[i].nrow, 1, 0, 0);
        reference_norms(&t->ref, path, t->ref.tensors[t->ref.ntensors - 1].data);
    }
}

/* Adapters are as the session made them, except the half that starts as zeros; the reference gets the same numbers. */
static void share_adapters(struct trial *t)
{
    for (size_t i = 0; i < train_session_ntrained(t->session) && t->lora; i++) {
        const char *name;
        float *values, *gradients;
        int64_t n;
        struct fsdpck_error err = { 0 };
        must(train_session_param(t->session, i, &name, &values, &gradients, &n, &err), &err);
        for (int64_t j = 0; j < n; j++)
            values[j] = values[j] == 0 ? (float)(0.3 * uniform(t)) : values[j];
        const bool b = strstr(name, "lora_B") || strstr(name, "embedding_B");
        const int64_t r = strstr(name, "k_proj") ? 5 : 3, nrow = strstr(name, "magnitude") ? n : b ? n / r : r;
        add_tensor(t, name, nrow, n / nrow, 0, 0);
        for (int64_t j = 0; j < n; j++)
            t->ref.tensors[t->ref.ntensors - 1].data[j] = (double)values[j];
    }
    fix_norms(t);
}

/* How unevenly the tokens [first, end) of the step are spread over the experts, in all layers that have some. */
static double unevenness(const struct trial *t, int64_t first, int64_t end)
{
    const struct reference *m = &t->ref;
    double sum = 0, nrow = 0;
    for (int64_t layer = 0; layer < m->nlayer; layer++)
        nrow += layer == t->first_dense ? 0 : (double)(end - first);
    for (int64_t e = 0; e < m->nexperts; e++) {
        double n = 0;
        for (int64_t layer = 0; layer < m->nlayer; layer++)
            for (int64_t i = first; i < end; i++)
                n += m->chosen[(layer * m->ntokens + i) * m->nexperts + e];
        sum += n / nrow * m->probs[e] / nrow;
    }
    return (double)m->nexperts * sum;
}

static double mean_loss(const struct trial *t)
{
    static const int last_of_micro[] = { 3, 5, 6 }; /* documents, as in write_data() */
    double sum = 0, spread = 0;
    int64_t token0 = 0, first = 0;
    for (int d = 0, micro = 0; d < DOCUMENTS; d++) {
        const struct document *doc = &t->documents[d];
        const struct reference_document one = { doc->ids, doc->labels, doc->ntok, token0 };
        sum += reference_loss(&t->ref, &one);
        token0 += doc->ntok;
        if (d != last_of_micro[micro] || t->ref.nexperts == 0)
            continue;
        spread += t->balance ? unevenness(t, first, token0) / 3 : 0;
        memset(t->ref.probs, 0, (size_t)t->ref.nexperts * sizeof *t->ref.probs);
        first = token0;
        micro++;
    }
    return sum / (double)t->nsupervised + t->balance * spread;
}

/* The loss after moving x by `step` along direction. */
static double loss_at(const struct trial *t, struct reference_tensor *x, const double *direction, double step)
{
    int64_t n = x->nrow * x->ncol;
    double *saved = x->data, *moved = malloc((size_t)n * sizeof *moved);
    for (int64_t i = 0; i < n; i++)
        moved[i] = saved[i] + step * direction[i];
    x->data = moved;
    double loss = mean_loss(t);
    x->data = saved;
    free(moved);
    return loss;
}

static double derivative(const struct trial *t, struct reference_tensor *x, const double *direction)
{
    const double step = 2e-5;
    return (loss_at(t, x, direction, step) - loss_at(t, x, direction, -step)) / (2 * step);
}

/* Copies of the tensors with every element moved at random by up to half a unit in the last place of fp32. */
static struct reference_tensor *rounded(struct trial *t)
{
    struct reference_tensor *copies = malloc(t->ref.ntensors * sizeof *copies);
    for (size_t i = 0; i < t->ref.ntensors; i++) {
        const struct reference_tensor *from = &t->ref.tensors[i];
        const int64_t n = from->nrow * from->ncol;
        copies[i] = *from;
        copies[i].data = malloc((size_t)n * sizeof *from->data);
        for (int64_t j = 0; j < n; j++)
            copies[i].data[j] = from->data[j] * (1 + uniform(t) * 0x1p-24);
    }
    return copies;
}

/* How far such roundings move the exact derivative `want`. fp32 rounds every activation too: where the model amplifies
 * that (qwen3 normalizes each head, and a head of two elements can lie near zero), no fp32 gradient comes closer. */
static double moved_by_rounding(struct trial *t, const struct reference_tensor *x, const double *direction, double want)
{
    enum { DRAWS = 6 };
    struct reference_tensor *exact = t->ref.tensors;
    double most = 0;
    for (int draw = 0; draw < DRAWS; draw++) {
        t->ref.tensors = rounded(t);
        most = fmax(most, fabs(derivative(t, &t->ref.tensors[x - exact], direction) - want));
        for (size_t i = 0; i < t->ref.ntensors; i++)
            free(t->ref.tensors[i].data);
        free(t->ref.tensors);
        t->ref.tensors = exact;
    }
    return most;
}

static void compare(struct trial *t, struct reference_tensor *x, const double *direction, const float *gradient,
                    double allowed, const char *what)
{
    double got = 0, want = derivative(t, x, direction);
    for (int64_t i = 0; i < x->nrow * x->ncol; i++)
        got += (double)gradient[i] * direction[i];
    if (!(fabs(got - want) <= allowed))
        allowed += 8 * moved_by_rounding(t, x, direction, want);
    if (!(fabs(got - want) <= allowed))
        fail_msg("%s: %s, %s: %.9g, by differences %.9g; %.2g is allowed", t->text, x->name, what, got, want, allowed);
}

static void check_tensor(struct trial *t, struct reference_tensor *x, const float *gradient, double all)
{
    int64_t n = x->nrow * x->ncol;
    double *direction = calloc((size_t)n, sizeof *direction), size = 0;
    for (int64_t i = 0; i < n; i++) {
        direction[i] = below(t, 2) ? 1 : -1;
        size += (double)gradient[i] * (double)gradient[i];
    }
    size = sqrt(size);
    compare(t, x, direction, gradient, 5e-5 * size + 2e-6 * all, "a random direction");
    for (int k = 0; k < TOPS && k < n; k++) {
        int64_t most = k ? below(t, n) : 0;
        for (int64_t i = 0; i < n && k == 0; i++)
            most = fabsf(gradient[i]) > fabsf(gradient[most]) ? i : most;
        memset(direction, 0, (size_t)n * sizeof *direction);
        direction[most] = 1;
        compare(t, x, direction, gradient, 5e-5 * size + 2e-6 * all, k ? "an element" : "its largest element");
    }
    free(direction);
}

static void check_gradients(struct trial *t)
{
    struct fsdpck_error err = { 0 };
    t->ref.ntokens = DOCUMENTS * LONGEST;
    t->ref.chosen = calloc((size_t)(t->ref.nlayer * t->ref.ntokens * t->ref.nexperts + 1), sizeof *t->ref.chosen);
    t->ref.probs = calloc((size_t)t->ref.nexperts + 1, sizeof *t->ref.probs);
    t->ref.chooses = true;
    double loss, norm, want = mean_loss(t), squares = 0;
    t->ref.chooses = false;
    must(train_session_gradients(t->session, 0, &loss, &norm, &err), &err);
    if (!(fabs(loss - want) <= 2e-6 * want))
        fail_msg("%s: loss %.9g for %.9g", t->text, loss, want);
    for (size_t i = 0; i < train_session_ntrained(t->session); i++) {
        const char *name;
        float *values, *gradient;
        int64_t n;
        must(train_session_param(t->session, i, &name, &values, &gradient, &n, &err), &err);
        struct reference_tensor *x = reference_find(&t->ref, "", name, "");
        if (!x || x->nrow * x->ncol != n)
            fail_msg("%s: no '%s' of %lld elements in the reference", t->text, name, (long long)n);
        check_tensor(t, x, gradient, norm);
        for (int64_t j = 0; j < n; j++)
            squares += (double)gradient[j] * (double)gradient[j];
    }
    assert_true(fabs(norm / sqrt(squares) - 1) < 1e-6);
}

static void forget(struct trial *t)
{
    static const char *const files[] = { "config.json", "model.safetensors", "data.jsonl", "plan.json", "run.json" };
    char path[80];
    train_session_close(t->session);
    train_config_free(&t->config);
    for (size_t i = 0; i < t->ref.ntensors; i++)
        free(t->ref.tensors[i].data);
    free(t->ref.tensors);
    free(t->ref.chosen);
    free(t->ref.probs);
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", t->folder, files[i]);
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(rmdir(t->folder), 0);
}

static void test_differences(void **state)
{
    (void)state;
    for (int number = 0; number < CASES; number += EVERY) {
        struct fsdpck_error err = { 0 };
        struct trial t = { .random = (uint64_t)number, .folder = "/tmp/fsdptrain-gradients-XXXXXX" };
        assert_non_null(mkdtemp(t.folder));
        choose(&t, number);
        add_weights(&t);
        add_documents(&t);
        write_model(&t);
        write_weights(&t);
        write_data(&t);
        write_config(&t);
        must(train_session_open(&t.config, &(struct train_options){ .nthreads = 2 }, &t.session, &err), &err);
        share_adapters(&t);
        check_gradients(&t);
        forget(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_differences) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
