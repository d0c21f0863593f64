/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of config.json: typed access, the unsupported settings of any model family, and the keys that are known. */
#include "model/model_reader.h"

#include <stdio.h>
#include <string.h>

#include "model/family.h"

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
    "num_experts",
    "num_local_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "qkv_bias",
    "decoder_sparse_step",
    "mlp_only_layers",
    "norm_topk_prob",
    "router_aux_loss_coef",
    "output_router_logits",
    "n_routed_experts",
    "n_shared_experts",
    "n_group",
    "topk_group",
    "routed_scaling_factor",
    "first_k_dense_replace",
    "num_nextn_predict_layers",
    "swiglu_alpha",
    "swiglu_limit",
};

/* Unsupported maths of any family: a key, and the only value that disables it. */
static const struct {
    const char *key;
    double off;
} refused[] = {
    { "attention_dropout", 0 },
    { "pretraining_tp", 1 },
    { "partial_rotary_factor", 1 },
    { "final_logit_softcapping", 0 },
    { "attn_logit_softcapping", 0 },
    { "logit_scale", 1 },
    { "logits_scaling", 1 },
    { "embedding_multiplier", 1 },
    { "residual_multiplier", 1 },
    { "attention_multiplier", 0 },
    { "query_pre_attn_scalar", 0 },
    { "router_jitter_noise", 0 },
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

json_t *model_get(const struct model_reader *r, const char *key)
{
    json_t *value = json_object_get(r->root, key);
    return json_is_null(value) ? NULL : value;
}

int64_t model_get_int(struct model_reader *r, const char *key, int64_t absent, int64_t min, int64_t max)
{
    json_t *value = model_get(r, key);
    if (!value && absent < 0)
        return MODEL_REFUSE(r, FSDPCK_ERR_FORMAT, "key '%s' is missing", key), 0;
    int64_t n = value ? json_integer_value(value) : absent;
    if ((value && !json_is_integer(value)) || n < min || n > max)
        MODEL_REFUSE(r, FSDPCK_ERR_FORMAT, "key '%s': a whole number from %lld to %lld is wanted", key, (long long)min,
                     (long long)max);
    return n;
}

bool model_get_bool(struct model_reader *r, const char *key, bool absent)
{
    json_t *value = model_get(r, key);
    if (value && !json_is_boolean(value))
        MODEL_REFUSE(r, FSDPCK_ERR_FORMAT, "key '%s': true or false is wanted", key);
    return value ? json_is_true(value) : absent;
}

double model_get_number(struct model_reader *r, const json_t *from, const char *key, double absent, double min)
{
    json_t *value = json_object_get(from, key);
    if (!value || json_is_null(value))
        return absent;
    if (!json_is_number(value) || !(json_number_value(value) >= min))
        MODEL_REFUSE(r, FSDPCK_ERR_FORMAT, "key '%s': a number of at least %g is wanted", key, min);
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

/* A model with experts under the name of a family that has none. */
static void refuse_experts(struct model_reader *r)
{
    static const char *const keys[] = { "num_experts", "num_local_experts", "n_routed_experts" };
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const json_t *value = model_get(r, keys[i]);
        if (value && as_switch(value) != 0)
            MODEL_REFUSE(r, FSDPCK_ERR_UNSUPPORTED, "key '%s' changes the maths, and its value is not supported",
                         keys[i]);
    }
}

/* True if the family has maths for any value of the key. */
static bool is_free(const struct family *f, const char *key)
{
    return (f->keys.use_qk_norm && strcmp(key, "use_qk_norm") == 0) ||
           (f->keys.rotary > 0 && strcmp(key, "partial_rotary_factor") == 0);
}

void model_check_refused(struct model_reader *r, const struct family *family)
{
    if (family->maths.experts == FAMILY_DENSE)
        refuse_experts(r);
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        json_t *value = model_get(r, refused[i].key);
        if (value && !is_free(family, refused[i].key) && as_switch(value) != refused[i].off)
            MODEL_REFUSE(r, FSDPCK_ERR_UNSUPPORTED, "key '%s' changes the maths, and its value is not supported",
                         refused[i].key);
    }
    json_t *act = model_get(r, "hidden_act");
    if (act &&
        (!json_is_string(act) || (strcmp(json_string_value(act), "silu") && strcmp(json_string_value(act), "swish"))))
        MODEL_REFUSE(r, FSDPCK_ERR_UNSUPPORTED, "key 'hidden_act': only \"silu\" is supported");
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

void model_note_unknown(struct model_reader *r)
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
