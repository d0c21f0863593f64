/* SPDX-License-Identifier: Apache-2.0 */
/* Parses config.json into struct model, in both dialects (transformers 4 and 5), with the defaults of each model
 * family.
 */
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kernels/experts.h>

#include "model/family.h"
#include "model/flux2_read.h"
#include "model/model_reader.h"
#include "text/file.h"

/* Which layers use a sliding window: enum family_window. */
static void read_windows(struct model_reader *r, struct model *m)
{
    const enum family_window kind = m->family->maths.windows;
    const bool even = kind == FAMILY_WINDOW_EVEN_LAYERS, last = kind == FAMILY_WINDOW_LAST_LAYERS,
               in_turn = kind == FAMILY_WINDOW_IN_TURN,
               by_layer = kind == FAMILY_WINDOW_BY_LAYER || even || last || in_turn;
    json_t *value = json_object_get(r->root, "sliding_window"), *types = model_get(r, "layer_types");
    int64_t window =
        value && json_is_null(value) ? 0 : model_get_int(r, "sliding_window", m->family->keys.window, 0, INT32_MAX);
    bool on = kind == FAMILY_WINDOW || last || in_turn ||
              (kind != FAMILY_NO_WINDOW && model_get_bool(r, "use_sliding_window", false));
    int64_t first = by_layer && !in_turn
                        ? model_get_int(r, "max_window_layers", m->family->keys.max_window_layers, 0, INT32_MAX)
                        : 0;
    if (types && (!by_layer || (int64_t)json_array_size(types) != m->nlayer))
        MODEL_REFUSE(r, FSDPCK_ERR_UNSUPPORTED,
                     "key 'layer_types': one entry for each of %lld layers is wanted, of a family whose layers differ",
                     (long long)m->nlayer);
    for (int64_t l = 0; l < m->nlayer && !r->rc; l++) {
        const char *type = json_string_value(json_array_get(types, (size_t)l));
        bool slides = types     ? type && strcmp(type, "sliding_attention") == 0
                      : in_turn ? l % 2 == 0
                      : even    ? l % 2 == 0 && l < first
                                : l >= first;
        if (types && !slides && !(type && strcmp(type, "full_attention") == 0))
            MODEL_REFUSE(r, FSDPCK_ERR_UNSUPPORTED, "key 'layer_types': \"%.40s\" is not supported", type ? type : "?");
        m->window[l] = on && slides ? window : 0;
    }
}

static void read_biases(struct model_reader *r, struct model *m)
{
    const struct family *f = m->family;
    bool attention =
             model_get_bool(r, "attention_bias", f->keys.biased || (f->maths.bias_qkv && f->keys.attention_bias)),
         mlp = model_get_bool(r, "mlp_bias", false);
    if (attention && !f->keys.attention_bias)
        MODEL_REFUSE(r, FSDPCK_ERR_UNSUPPORTED, "key 'attention_bias' is true, which transformers does not do for %s",
                     f->name);
    if (mlp && !f->keys.mlp_bias)
        MODEL_REFUSE(r, FSDPCK_ERR_UNSUPPORTED, "key 'mlp_bias' is true, which transformers does not do for %s",
                     f->name);
    m->bias_qkv = f->keys.qkv_bias ? model_get_bool(r, "qkv_bias", true) : f->maths.bias_qkv || attention;
    m->bias_o = attention && !f->maths.bias_qkv && !f->maths.no_bias_o;
    m->bias_mlp = mlp;
    m->qk_norm = f->maths.qk_norm || (f->keys.use_qk_norm && model_get_bool(r, "use_qk_norm", false));
}

static void read_family(struct model_reader *r, struct model *m)
{
    const char *type = json_string_value(model_get(r, "model_type"));
    char known[200];
    m->family = family_find(type);
    if (!m->family && model_get(r, "kv_lora_rank"))
        MODEL_REFUSE(
            r, FSDPCK_ERR_UNSUPPORTED,
            "model_type \"%.60s\" has multi-head latent attention (key 'kv_lora_rank'), which is not supported",
            type ? type : "");
    family_list(known, sizeof known);
    if (!m->family)
        MODEL_REFUSE(r, FSDPCK_ERR_UNSUPPORTED, "model_type \"%.60s\" is not supported; %s are", type ? type : "",
                     known);
}

static void read_sizes(struct model_reader *r, struct model *m)
{
    const struct family *f = m->family;
    m->nvocab = model_get_int(r, "vocab_size", -1, 1, INT32_MAX);
    m->hidden = model_get_int(r, "hidden_size", -1, 1, 1 << 20);
    m->inner = model_get_int(r, "intermediate_size", -1, 1, 1 << 22);
    m->nlayer = model_get_int(r, "num_hidden_layers", -1, 1, 4096);
    m->nhead = model_get_int(r, "num_attention_heads", -1, 1, 1 << 16);
    int64_t kv = f->keys.nkv ? f->keys.nkv : m->nhead;
    if (json_object_get(r->root, "num_key_value_heads"))
        kv = m->nhead; /* null: as many as query heads */
    m->nkv = model_get_int(r, "num_key_value_heads", kv, 1, 1 << 16);
    m->head_dim = model_get_int(r, "head_dim",
                                f->keys.head_dim && !json_object_get(r->root, "head_dim") ? f->keys.head_dim
                                : m->nhead                                                ? m->hidden / m->nhead
                                                                                          : 1,
                                1, 4096);
    m->max_position = model_get_int(r, "max_position_embeddings", f->keys.max_position, 1, INT32_MAX);
    m->eps = (float)model_get_number(r, r->root, "rms_norm_eps", f->keys.eps, 0);
    m->npredictors = model_get_int(r, "num_nextn_predict_layers", 0, 0, 4096);
    m->quantized = model_get(r, "quantization_config") != NULL;
    m->tied = model_get_bool(r, "tie_word_embeddings", false);
    if (!r->rc && (m->nhead % m->nkv || m->head_dim % 2))
        MODEL_REFUSE(
            r, FSDPCK_ERR_FORMAT,
            "%lld query heads over %lld key heads of %lld features: the first must be a multiple, the last even",
            (long long)m->nhead, (long long)m->nkv, (long long)m->head_dim);
}

/* Layers that mlp_only_layers does not list, of every decoder_sparse_step the last; or the later ones. */
static void read_sparse(struct model_reader *r, struct model *m)
{
    const int64_t step = model_get_int(r, "decoder_sparse_step", 1, 1, INT32_MAX);
    const int64_t first = model_get_int(r, "first_k_dense_replace", m->family->keys.first_sparse, 0, INT32_MAX);
    const enum family_experts which = m->family->maths.experts;
    json_t *dense = model_get(r, "mlp_only_layers"), *number;
    size_t i;
    for (int64_t l = 0; l < m->nlayer && !r->rc; l++)
        m->sparse[l] = which == FAMILY_EVERY_LAYER || (which == FAMILY_LATER_LAYERS ? l >= first : (l + 1) % step == 0);
    if (dense && !json_is_array(dense))
        MODEL_REFUSE(r, FSDPCK_ERR_FORMAT, "key 'mlp_only_layers': a list of layers is wanted");
    json_array_foreach (dense, i, number) {
        const int64_t l = json_integer_value(number);
        if (!json_is_integer(number))
            MODEL_REFUSE(r, FSDPCK_ERR_FORMAT, "key 'mlp_only_layers': a list of layers is wanted");
        else if (l >= 0 && l < m->nlayer && which == FAMILY_SOME_LAYERS)
            m->sparse[l] = false;
    }
}

/* The router of DeepSeek-V3. */
static void read_router(struct model_reader *r, struct model *m)
{
    m->sigmoid = true;
    m->routed_scale = (float)model_get_number(r, r->root, "routed_scaling_factor", 1, 0);
    m->ngroup = model_get_int(r, "n_group", 1, 1, KERN_MOST_EXPERTS);
    m->top_groups = model_get_int(r, "topk_group", 1, 1, KERN_MOST_EXPERTS);
    const int64_t each = r->rc ? 0 : m->nexperts / m->ngroup;
    if (!r->rc && m->routed_scale == 0)
        MODEL_REFUSE(r, FSDPCK_ERR_FORMAT, "key 'routed_scaling_factor': with 0, experts have no effect");
    if (!r->rc && (m->nexperts % m->ngroup || each < 2 || m->top_groups > m->ngroup))
        MODEL_REFUSE(
            r, FSDPCK_ERR_FORMAT,
            "keys 'n_group' and 'topk_group': %lld of %lld equal groups of at least two of %lld experts cannot "
            "be chosen",
            (long long)m->top_groups, (long long)m->ngroup, (long long)m->nexperts);
    if (!r->rc && m->top_k > m->top_groups * each)
        MODEL_REFUSE(r, FSDPCK_ERR_FORMAT,
                     "key 'num_experts_per_tok': %lld of the %lld experts of %lld groups cannot be chosen",
                     (long long)m->top_k, (long long)(m->top_groups * each), (long long)m->top_groups);
}

static void read_gate(struct model_reader *r, struct model *m)
{
    m->gpt_oss = true;
    m->gate_slope = (float)model_get_number(r, r->root, "swiglu_alpha", 1.702, 0);
    m->gate_limit = (float)model_get_number(r, r->root, "swiglu_limit", 7, 0);
    if (!r->rc && (m->gate_slope <= 0 || m->gate_limit <= 0))
        MODEL_REFUSE(r, FSDPCK_ERR_FORMAT, "keys 'swiglu_alpha' and 'swiglu_limit': numbers above 0 are wanted");
}

/* Several keys are in use. */
static const char *experts_key(const struct model_reader *r, const struct family *f)
{
    const char *own = f->maths.sigmoid ? "n_routed_experts" : "num_experts";
    return model_get(r, own) || (f->maths.sigmoid && !model_get(r, "num_local_experts")) ? own : "num_local_experts";
}

static int64_t read_shared(struct model_reader *r, const struct model *m)
{
    const struct family *f = m->family;
    if (!f->modules.shared)
        return 0;
    if (f->keys.shared_inner)
        return model_get_int(r, "shared_expert_intermediate_size", f->keys.shared_inner, 1, 1 << 22);
    return r->rc
               ? 0
               : m->expert_inner * model_get_int(r, "n_shared_experts", f->keys.nshared ? f->keys.nshared : -1, 1, 64);
}

static void read_experts(struct model_reader *r, struct model *m)
{
    const struct family *f = m->family;
    if (f->maths.experts == FAMILY_DENSE)
        return;
    m->nexperts = model_get_int(r, experts_key(r, f), f->keys.nexperts ? f->keys.nexperts : -1, 1, KERN_MOST_EXPERTS);
    m->top_k = model_get_int(r, "num_experts_per_tok", f->keys.top_k ? f->keys.top_k : -1, 1, KERN_MOST_EXPERTS);
    m->expert_inner =
        f->keys.expert_inner ? model_get_int(r, "moe_intermediate_size", f->keys.expert_inner, 1, 1 << 22) : m->inner;
    m->shared_inner = read_shared(r, m);
    m->normalised = f->maths.normalised || model_get_bool(r, "norm_topk_prob", f->keys.norm_topk_prob);
    m->routed_scale = 1;
    if (!r->rc && m->top_k > m->nexperts)
        MODEL_REFUSE(r, FSDPCK_ERR_FORMAT, "key 'num_experts_per_tok': %lld of %lld experts cannot be chosen",
                     (long long)m->top_k, (long long)m->nexperts);
    if (f->maths.gpt_oss)
        read_gate(r, m);
    if (f->maths.sigmoid)
        read_router(r, m);
    else if (model_get_bool(r, "output_router_logits", false))
        m->balance = model_get_number(r, r->root, "router_aux_loss_coef", 0.001, 0);
    read_sparse(r, m);
}

static int make_tables(struct model *m, struct fsdpck_error *err)
{
    m->window = calloc((size_t)m->nlayer, sizeof *m->window);
    m->sparse = calloc((size_t)m->nlayer, sizeof *m->sparse);
    return m->window && m->sparse ? 0 : fsdpck_error_nomem(err, (size_t)m->nlayer * sizeof *m->window);
}

static void read_decoder(struct model_reader *r, struct model *m)
{
    read_family(r, m);
    if (!r->rc)
        model_check_refused(r, m->family);
    if (!r->rc)
        read_sizes(r, m);
    if (!r->rc)
        r->rc = make_tables(m, r->err);
    if (!r->rc) {
        model_read_rope(r, m);
        read_windows(r, m);
        read_biases(r, m);
        read_experts(r, m);
    }
    if (!r->rc)
        model_note_unknown(r);
}

int model_read(const char *folder, const struct fsdpck_options *opt, struct model *out, struct fsdpck_error *err)
{
    static const char *const places[] = { "config.json", "assets/config.json" };
    struct model_reader r = { .opt = opt, .err = err };
    struct model m = { 0 };
    struct fsdpck_error why = { .code = FSDPCK_ERR_MISSING };
    r.rc = text_model_folder(folder, err);
    for (size_t i = 0; i < 2 && why.code == FSDPCK_ERR_MISSING && !r.rc; i++) {
        why = (struct fsdpck_error){ 0 };
        snprintf(r.path, sizeof r.path, "%s/%s", folder, places[i]);
        text_file_json(r.path, &r.root, &why);
    }
    if (!r.rc && why.code == FSDPCK_ERR_MISSING)
        r.rc = fsdpck_error_set(err, why.code, folder,
                                "there is no config.json in it; a model's folder has one, a checkpoint's in assets");
    else if (!r.rc && why.code)
        MODEL_REFUSE(&r, why.code, "%s", why.message);
    else if (!r.rc && !json_is_object(r.root))
        MODEL_REFUSE(&r, FSDPCK_ERR_FORMAT, "a JSON object is wanted");
    if (!r.rc && json_object_get(r.root, "_class_name"))
        flux2_read(&r, &m);
    else if (!r.rc)
        read_decoder(&r, &m);
    if (r.rc)
        model_free(&m);
    json_decref(r.root);
    *out = m;
    return r.rc;
}

int model_check_decoder(const struct model *m, const char *path, struct fsdpck_error *err)
{
    return m->family ? 0
                     : fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, path,
                                        "this model makes pictures, and one that makes text is wanted here");
}

void model_free(struct model *m)
{
    free(m->window);
    free(m->sparse);
    *m = (struct model){ 0 };
}
