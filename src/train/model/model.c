/* SPDX-License-Identifier: Apache-2.0 */
/* Parses config.json into struct model, in both dialects (transformers 4 and 5), with the defaults of each model
 * family.
 */
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/model_reader.h"
#include "text/file.h"

/* Which layers use a sliding window. mistral: all; llama: none; qwen: from max_window_layers on, or by layer_types. */
static void read_windows(struct model_reader *r, struct model *m)
{
    bool mistral = strcmp(m->family, "mistral") == 0, qwen = strncmp(m->family, "qwen", 4) == 0;
    json_t *value = json_object_get(r->root, "sliding_window"), *types = model_get(r, "layer_types");
    int64_t window = value && json_is_null(value) ? 0 : model_get_int(r, "sliding_window", 4096, 0, INT32_MAX);
    bool on = mistral || (qwen && model_get_bool(r, "use_sliding_window", false));
    int64_t first = qwen ? model_get_int(r, "max_window_layers", 28, 0, INT32_MAX) : 0;
    if (types && (!qwen || (int64_t)json_array_size(types) != m->nlayer))
        MODEL_REFUSE(r, FSDPCK_ERR_UNSUPPORTED,
                     "key 'layer_types': one entry for each of %lld layers, and a qwen model, are wanted",
                     (long long)m->nlayer);
    for (int64_t l = 0; l < m->nlayer && !r->rc; l++) {
        const char *type = json_string_value(json_array_get(types, (size_t)l));
        bool slides = types ? type && strcmp(type, "sliding_attention") == 0 : l >= first;
        if (types && !slides && !(type && strcmp(type, "full_attention") == 0))
            MODEL_REFUSE(r, FSDPCK_ERR_UNSUPPORTED, "key 'layer_types': \"%.40s\" is not supported", type ? type : "?");
        m->window[l] = on && slides ? window : 0;
    }
}

static void read_biases(struct model_reader *r, struct model *m)
{
    bool llama = strcmp(m->family, "llama") == 0, qwen2 = strcmp(m->family, "qwen2") == 0,
         qwen3 = strcmp(m->family, "qwen3") == 0;
    bool attention = model_get_bool(r, "attention_bias", qwen2), mlp = model_get_bool(r, "mlp_bias", false);
    if (attention && !llama && !qwen2 && !qwen3)
        MODEL_REFUSE(r, FSDPCK_ERR_UNSUPPORTED, "key 'attention_bias' is true, which transformers does not do for %s",
                     m->family);
    if (mlp && !llama)
        MODEL_REFUSE(r, FSDPCK_ERR_UNSUPPORTED, "key 'mlp_bias' is true, which transformers does not do for %s",
                     m->family);
    m->bias_qkv = qwen2 || attention;
    m->bias_o = attention && !qwen2;
    m->bias_mlp = mlp;
    m->qk_norm = qwen3;
}

static void read_family(struct model_reader *r, struct model *m)
{
    static const char *const families[] = { "llama", "mistral", "qwen2", "qwen3" };
    const char *type = json_string_value(model_get(r, "model_type"));
    for (size_t i = 0; i < 4 && type; i++) {
        if (strcmp(type, families[i]) == 0) {
            snprintf(m->family, sizeof m->family, "%s", type);
            return;
        }
    }
    MODEL_REFUSE(r, FSDPCK_ERR_UNSUPPORTED,
                 "model_type \"%.60s\" is not supported; llama, mistral, qwen2 and qwen3 are", type ? type : "");
}

static void read_sizes(struct model_reader *r, struct model *m)
{
    bool qwen = strncmp(m->family, "qwen", 4) == 0, qwen3 = strcmp(m->family, "qwen3") == 0;
    m->nvocab = model_get_int(r, "vocab_size", -1, 1, INT32_MAX);
    m->hidden = model_get_int(r, "hidden_size", -1, 1, 1 << 20);
    m->inner = model_get_int(r, "intermediate_size", -1, 1, 1 << 22);
    m->nlayer = model_get_int(r, "num_hidden_layers", -1, 1, 4096);
    m->nhead = model_get_int(r, "num_attention_heads", -1, 1, 1 << 16);
    int64_t kv = strcmp(m->family, "mistral") == 0 ? 8 : qwen ? 32 : m->nhead;
    if (json_object_get(r->root, "num_key_value_heads"))
        kv = m->nhead; /* null: as many as query heads */
    m->nkv = model_get_int(r, "num_key_value_heads", kv, 1, 1 << 16);
    m->head_dim = model_get_int(r, "head_dim",
                                qwen3 && !json_object_get(r->root, "head_dim") ? 128
                                : m->nhead                                     ? m->hidden / m->nhead
                                                                               : 1,
                                1, 4096);
    m->max_position = model_get_int(r, "max_position_embeddings",
                                    qwen                                ? 32768
                                    : strcmp(m->family, "mistral") == 0 ? 131072
                                                                        : 2048,
                                    1, INT32_MAX);
    m->eps = (float)model_get_number(r, r->root, "rms_norm_eps", 1e-6, 0);
    m->quantized = model_get(r, "quantization_config") != NULL;
    m->tied = model_get_bool(r, "tie_word_embeddings", false);
    if (!r->rc && (m->nhead % m->nkv || m->head_dim % 2))
        MODEL_REFUSE(
            r, FSDPCK_ERR_FORMAT,
            "%lld query heads over %lld key heads of %lld features: the first must be a multiple, the last even",
            (long long)m->nhead, (long long)m->nkv, (long long)m->head_dim);
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
    if (!r.rc)
        read_family(&r, &m);
    if (!r.rc)
        model_check_refused(&r);
    if (!r.rc)
        read_sizes(&r, &m);
    if (!r.rc && !(m.window = calloc((size_t)m.nlayer, sizeof *m.window)))
        r.rc = fsdpck_error_nomem(err, (size_t)m.nlayer * sizeof *m.window);
    if (!r.rc) {
        model_read_rope(&r, &m);
        read_windows(&r, &m);
        read_biases(&r, &m);
    }
    if (!r.rc)
        model_note_unknown(&r);
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
