/* SPDX-License-Identifier: Apache-2.0 */
/* Parses config.json into struct model: both dialects (transformers 4 and 5), the defaults of each model family, and a
 * list of unsupported settings. */
#include "model/model.h"
#include "text/file.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* State of the reader, for messages. */
struct reader {
    char path[4096];
    json_t *root;
    const struct fsdpck_options *opt;
    struct fsdpck_error *err;
    int rc;
};

/* Keys that are used here, or that cannot affect training. */
static const char *const known_keys[] = {
    "architectures",
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "max_position_embeddings",
    "rms_norm_eps",
    "tie_word_embeddings",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "attention_bias",
    "mlp_bias",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "layer_types",
    "attention_dropout",
    "pretraining_tp",
    "partial_rotary_factor",
    "quantization_config",
    "dtype",
    "torch_dtype",
    "initializer_range",
    "use_cache",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "unk_token_id",
    "transformers_version",
    "_name_or_path",
    "_attn_implementation_autoset",
    "auto_map",
    "id2label",
    "label2id",
    "is_llama_config",
    "rope_interleaved",
    "transformers.js_config",
    "return_dict",
    "output_attentions",
    "output_hidden_states",
    "torchscript",
    "use_bfloat16",
    "is_decoder",
    "is_encoder_decoder",
    "cross_attention_hidden_size",
    "add_cross_attention",
    "tie_encoder_decoder",
    "chunk_size_feed_forward",
    "problem_type",
    "finetuning_task",
    "tokenizer_class",
    "prefix",
    "task_specific_params",
};

/* Unsupported maths of any family: a key, and the only value that disables it. */
static const struct {
    const char *key;
    double off;
} refused[] = {
    { "attention_dropout", 0 },
    { "pretraining_tp", 1 },
    { "partial_rotary_factor", 1 },
    { "quantization_config", 0 },
    { "final_logit_softcapping", 0 },
    { "attn_logit_softcapping", 0 },
    { "logit_scale", 1 },
    { "logits_scaling", 1 },
    { "embedding_multiplier", 1 },
    { "residual_multiplier", 1 },
    { "attention_multiplier", 0 },
    { "query_pre_attn_scalar", 0 },
    { "num_experts", 0 },
    { "num_local_experts", 0 },
    { "rope_interleaved", 0 },
    { "use_qk_norm", 0 },
    { "qk_layernorm", 0 },
    { "no_rope_layers", 0 },
    { "no_rope_layer_interval", 0 },
    { "attention_chunk_size", 0 },
    { "is_encoder_decoder", 0 },
    { "add_cross_attention", 0 },
    { "hidden_dropout", 0 },
    { "embd_pdrop", 0 },
    { "resid_pdrop", 0 },
    { "clip_qkv", 0 },
    { "use_mrope", 0 },
    { "use_cache_quantization", 0 },
};

#define REFUSE(r, code, ...) ((r)->rc = (r)->rc ? (r)->rc : fsdpck_error_set((r)->err, code, (r)->path, __VA_ARGS__))

static json_t *get(const struct reader *r, const char *key)
{
    json_t *value = json_object_get(r->root, key);
    return json_is_null(value) ? NULL : value;
}

static int64_t get_int(struct reader *r, const char *key, int64_t absent, int64_t min, int64_t max)
{
    json_t *value = get(r, key);
    if (!value && absent < 0)
        return REFUSE(r, FSDPCK_ERR_FORMAT, "key '%s' is missing", key), 0;
    int64_t n = value ? json_integer_value(value) : absent;
    if ((value && !json_is_integer(value)) || n < min || n > max)
        REFUSE(r, FSDPCK_ERR_FORMAT, "key '%s': a whole number from %lld to %lld is wanted", key, (long long)min,
               (long long)max);
    return n;
}

static bool get_bool(struct reader *r, const char *key, bool absent)
{
    json_t *value = get(r, key);
    if (value && !json_is_boolean(value))
        REFUSE(r, FSDPCK_ERR_FORMAT, "key '%s': true or false is wanted", key);
    return value ? json_is_true(value) : absent;
}

static double get_number(struct reader *r, const json_t *from, const char *key, double absent, double min)
{
    json_t *value = json_object_get(from, key);
    if (!value || json_is_null(value))
        return absent;
    if (!json_is_number(value) || !(json_number_value(value) >= min))
        REFUSE(r, FSDPCK_ERR_FORMAT, "key '%s': a number of at least %g is wanted", key, min);
    return json_number_value(value);
}

/* The value as a switch: numbers as they are; null, false, [] and {} are 0; everything else is 1. */
static double as_switch(const json_t *value)
{
    if (json_is_number(value))
        return json_number_value(value);
    if (json_is_array(value) || json_is_object(value))
        return json_array_size(value) + json_object_size(value) > 0;
    return json_is_true(value) || json_is_string(value);
}

static void check_refused(struct reader *r)
{
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        json_t *value = get(r, refused[i].key);
        if (value && as_switch(value) != refused[i].off)
            REFUSE(r, FSDPCK_ERR_UNSUPPORTED, "key '%s' changes the maths, and its value is not supported",
                   refused[i].key);
    }
    json_t *act = get(r, "hidden_act");
    if (act &&
        (!json_is_string(act) || (strcmp(json_string_value(act), "silu") && strcmp(json_string_value(act), "swish"))))
        REFUSE(r, FSDPCK_ERR_UNSUPPORTED, "key 'hidden_act': only \"silu\" is supported");
}

static bool is_known(const char *key)
{
    for (size_t i = 0; i < sizeof known_keys / sizeof known_keys[0]; i++) {
        if (strcmp(key, known_keys[i]) == 0)
            return true;
    }
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        if (strcmp(key, refused[i].key) == 0)
            return true;
    }
    return false;
}

static void note_unknown(struct reader *r)
{
    const char *key;
    json_t *value;
    char line[512];
    json_object_foreach (r->root, key, value) {
        if (is_known(key) || !r->opt || !r->opt->note)
            continue;
        snprintf(line, sizeof line, "%.200s: key '%.200s' is not known and not used", r->path, key);
        r->opt->note(r->opt->ctx, line);
    }
}

static void read_rope_kind(struct reader *r, const json_t *scaling, struct kern_rope *rope)
{
    static const char *const names[] = { "default", "linear", "llama3", "yarn" };
    const char *type = json_string_value(json_object_get(scaling, "rope_type"));
    if (!type)
        type = json_string_value(json_object_get(scaling, "type"));
    for (int i = 0; i < 4 && type; i++) {
        if (strcmp(type, names[i]) == 0) {
            rope->kind = (enum kern_rope_kind)i;
            return;
        }
    }
    if (type)
        REFUSE(r, FSDPCK_ERR_UNSUPPORTED, "rope_type \"%.40s\" is not supported; default, linear, llama3 and yarn are",
               type);
}

/* An unknown key may mean anything, for example frequencies per kind of layer. */
static void check_rope_keys(struct reader *r, json_t *scaling, const char *where)
{
    static const char *const known[] = { "rope_type",
                                         "type",
                                         "rope_theta",
                                         "factor",
                                         "original_max_position_embeddings",
                                         "low_freq_factor",
                                         "high_freq_factor",
                                         "beta_fast",
                                         "beta_slow",
                                         "attention_factor",
                                         "mscale",
                                         "mscale_all_dim",
                                         "truncate",
                                         "partial_rotary_factor",
                                         "finetuned" };
    const char *key;
    json_t *value;
    json_object_foreach (scaling, key, value) {
        bool found = json_is_null(value);
        for (size_t i = 0; i < sizeof known / sizeof known[0] && !found; i++)
            found = strcmp(key, known[i]) == 0;
        if (!found)
            REFUSE(r, FSDPCK_ERR_UNSUPPORTED, "key '%s.%.100s' may change the maths, and is not supported", where, key);
    }
}

/* As in transformers 5: rope_scaling, the only name in earlier versions, takes precedence. */
static json_t *find_scaling(struct reader *r)
{
    json_t *old = get(r, "rope_scaling");
    const bool is_old = old && !(json_is_object(old) && json_object_size(old) == 0);
    json_t *scaling = is_old ? old : get(r, "rope_parameters");
    const char *where = is_old ? "rope_scaling" : "rope_parameters";
    if (scaling && !json_is_object(scaling))
        REFUSE(r, FSDPCK_ERR_FORMAT, "key '%s': an object is wanted", where);
    check_rope_keys(r, scaling, where);
    return scaling;
}

static void read_rope(struct reader *r, struct model *m)
{
    json_t *scaling = find_scaling(r);
    struct kern_rope *rope = &m->rope;
    rope->dim = m->head_dim;
    rope->theta = get_number(r, scaling, "rope_theta", get_number(r, r->root, "rope_theta", 10000, 1), 1);
    read_rope_kind(r, scaling, rope);
    if (get_number(r, scaling, "partial_rotary_factor", 1, 0) != 1)
        REFUSE(r, FSDPCK_ERR_UNSUPPORTED, "key 'partial_rotary_factor' changes the maths, and only 1 is supported");
    if (rope->kind == KERN_ROPE_DEFAULT)
        return;
    if (get(r, "original_max_position_embeddings"))
        REFUSE(r, FSDPCK_ERR_UNSUPPORTED,
               "key 'original_max_position_embeddings' changes the maths, and is supported inside of rope_scaling or "
               "rope_parameters only");
    rope->original_max_position =
        get_number(r, scaling, "original_max_position_embeddings", (double)m->max_position, 1);
    rope->factor = get_number(r, scaling, "factor", 0, 1);
    if (rope->factor == 0 && rope->kind == KERN_ROPE_YARN)
        rope->factor = (double)m->max_position / rope->original_max_position;
    if (rope->factor == 0)
        REFUSE(r, FSDPCK_ERR_FORMAT, "the scaling of rotary positions has no 'factor'");
    rope->low_freq_factor = get_number(r, scaling, "low_freq_factor", 1, 0);
    rope->high_freq_factor = get_number(r, scaling, "high_freq_factor", 4, 0);
    rope->beta_fast = get_number(r, scaling, "beta_fast", 32, 0);
    rope->beta_slow = get_number(r, scaling, "beta_slow", 1, 0);
    rope->attention_factor = get_number(r, scaling, "attention_factor", 0, 0);
    rope->mscale = get_number(r, scaling, "mscale", 0, 0);
    rope->mscale_all_dim = get_number(r, scaling, "mscale_all_dim", 0, 0);
    rope->no_truncate = json_is_false(json_object_get(scaling, "truncate"));
}

/* Which layers use a sliding window. mistral: all; llama: none; qwen: from max_window_layers on, or by layer_types. */
static void read_windows(struct reader *r, struct model *m)
{
    bool mistral = strcmp(m->family, "mistral") == 0, qwen = strncmp(m->family, "qwen", 4) == 0;
    json_t *value = json_object_get(r->root, "sliding_window"), *types = get(r, "layer_types");
    int64_t window = value && json_is_null(value) ? 0 : get_int(r, "sliding_window", 4096, 0, INT32_MAX);
    bool on = mistral || (qwen && get_bool(r, "use_sliding_window", false));
    int64_t first = qwen ? get_int(r, "max_window_layers", 28, 0, INT32_MAX) : 0;
    if (types && (!qwen || (int64_t)json_array_size(types) != m->nlayer))
        REFUSE(r, FSDPCK_ERR_UNSUPPORTED,
               "key 'layer_types': one entry for each of %lld layers, and a qwen model, are wanted",
               (long long)m->nlayer);
    for (int64_t l = 0; l < m->nlayer && !r->rc; l++) {
        const char *type = json_string_value(json_array_get(types, (size_t)l));
        bool slides = types ? type && strcmp(type, "sliding_attention") == 0 : l >= first;
        if (types && !slides && !(type && strcmp(type, "full_attention") == 0))
            REFUSE(r, FSDPCK_ERR_UNSUPPORTED, "key 'layer_types': \"%.40s\" is not supported", type ? type : "?");
        m->window[l] = on && slides ? window : 0;
    }
}

static void read_biases(struct reader *r, struct model *m)
{
    bool llama = strcmp(m->family, "llama") == 0, qwen2 = strcmp(m->family, "qwen2") == 0,
         qwen3 = strcmp(m->family, "qwen3") == 0;
    bool attention = get_bool(r, "attention_bias", qwen2), mlp = get_bool(r, "mlp_bias", false);
    if (attention && !llama && !qwen2 && !qwen3)
        REFUSE(r, FSDPCK_ERR_UNSUPPORTED, "key 'attention_bias' is true, which transformers does not do for %s",
               m->family);
    if (mlp && !llama)
        REFUSE(r, FSDPCK_ERR_UNSUPPORTED, "key 'mlp_bias' is true, which transformers does not do for %s", m->family);
    m->bias_qkv = qwen2 || attention;
    m->bias_o = attention && !qwen2;
    m->bias_mlp = mlp;
    m->qk_norm = qwen3;
}

static void read_family(struct reader *r, struct model *m)
{
    static const char *const families[] = { "llama", "mistral", "qwen2", "qwen3" };
    const char *type = json_string_value(get(r, "model_type"));
    for (size_t i = 0; i < 4 && type; i++) {
        if (strcmp(type, families[i]) == 0) {
            snprintf(m->family, sizeof m->family, "%s", type);
            return;
        }
    }
    REFUSE(r, FSDPCK_ERR_UNSUPPORTED, "model_type \"%.60s\" is not supported; llama, mistral, qwen2 and qwen3 are",
           type ? type : "");
}

static void read_sizes(struct reader *r, struct model *m)
{
    bool qwen = strncmp(m->family, "qwen", 4) == 0, qwen3 = strcmp(m->family, "qwen3") == 0;
    m->nvocab = get_int(r, "vocab_size", -1, 1, INT32_MAX);
    m->hidden = get_int(r, "hidden_size", -1, 1, 1 << 20);
    m->inner = get_int(r, "intermediate_size", -1, 1, 1 << 22);
    m->nlayer = get_int(r, "num_hidden_layers", -1, 1, 4096);
    m->nhead = get_int(r, "num_attention_heads", -1, 1, 1 << 16);
    int64_t kv = strcmp(m->family, "mistral") == 0 ? 8 : qwen ? 32 : m->nhead;
    if (json_object_get(r->root, "num_key_value_heads"))
        kv = m->nhead; /* null: as many as query heads */
    m->nkv = get_int(r, "num_key_value_heads", kv, 1, 1 << 16);
    m->head_dim = get_int(r, "head_dim",
                          qwen3 && !json_object_get(r->root, "head_dim") ? 128
                          : m->nhead                                     ? m->hidden / m->nhead
                                                                         : 1,
                          1, 4096);
    m->max_position = get_int(r, "max_position_embeddings",
                              qwen                                ? 32768
                              : strcmp(m->family, "mistral") == 0 ? 131072
                                                                  : 2048,
                              1, INT32_MAX);
    m->eps = (float)get_number(r, r->root, "rms_norm_eps", 1e-6, 0);
    m->tied = get_bool(r, "tie_word_embeddings", false);
    if (!r->rc && (m->nhead % m->nkv || m->head_dim % 2))
        REFUSE(r, FSDPCK_ERR_FORMAT,
               "%lld query heads over %lld key heads of %lld features: the first must be a multiple, the last even",
               (long long)m->nhead, (long long)m->nkv, (long long)m->head_dim);
}

int model_read(const char *folder, const struct fsdpck_options *opt, struct model *out, struct fsdpck_error *err)
{
    static const char *const places[] = { "config.json", "assets/config.json" };
    struct reader r = { .opt = opt, .err = err };
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
        REFUSE(&r, why.code, "%s", why.message);
    else if (!r.rc && !json_is_object(r.root))
        REFUSE(&r, FSDPCK_ERR_FORMAT, "a JSON object is wanted");
    if (!r.rc)
        read_family(&r, &m);
    if (!r.rc)
        check_refused(&r);
    if (!r.rc)
        read_sizes(&r, &m);
    if (!r.rc && !(m.window = calloc((size_t)m.nlayer, sizeof *m.window)))
        r.rc = fsdpck_error_nomem(err, (size_t)m.nlayer * sizeof *m.window);
    if (!r.rc) {
        read_rope(&r, &m);
        read_windows(&r, &m);
        read_biases(&r, &m);
    }
    if (!r.rc)
        note_unknown(&r);
    else
        model_free(&m);
    json_decref(r.root);
    *out = m;
    return r.rc;
}

void model_free(struct model *m)
{
    free(m->window);
    *m = (struct model){ 0 };
}
