/* SPDX-License-Identifier: Apache-2.0 */
#include "doctor/parts.h"

#include <string.h>

#include "doctor/layers.h"

/* ---- families ---- */

enum {
    ROUTED = PART_MLP | PART_GATE,
    NORMED = PART_QKV | PART_QK_NORM,
    MIXED = NORMED | PART_GATED_Q | ROUTED | PART_SHARED | PART_SHARED_GATE,
    MIXED_DENSE = NORMED | PART_GATED_Q | PART_MLP | PART_LINEAR_FOUR,
};

static const struct family {
    const char *model_type;
    unsigned traits;
    unsigned biases;                                 /* those that attention_bias adds */
    const char *inner, *expert_inner, *shared_inner; /* keys; NULL: there is no such part */
} families[] = {
    { "llama", PART_QKV | PART_MLP, PART_QKV_BIAS | PART_O_BIAS, "intermediate_size", NULL, NULL },
    { "mistral", PART_QKV | PART_MLP, 0, "intermediate_size", NULL, NULL },
    { "qwen2", PART_QKV | PART_QKV_BIAS | PART_MLP, 0, "intermediate_size", NULL, NULL },
    { "qwen3", NORMED | PART_MLP, PART_QKV_BIAS | PART_O_BIAS, "intermediate_size", NULL, NULL },
    { "mixtral", PART_QKV | PART_MIXTRAL, 0, NULL, "intermediate_size", NULL },
    { "qwen2_moe", PART_QKV | PART_QKV_BIAS | ROUTED | PART_SHARED | PART_SHARED_GATE, 0, "intermediate_size",
      "moe_intermediate_size", "shared_expert_intermediate_size" },
    { "qwen3_moe", NORMED | ROUTED, PART_QKV_BIAS | PART_O_BIAS, "intermediate_size", "moe_intermediate_size", NULL },
    { "qwen3_vl_moe", NORMED | ROUTED, PART_QKV_BIAS | PART_O_BIAS, "intermediate_size", "moe_intermediate_size",
      NULL },
    { "qwen3_next", MIXED | PART_LINEAR_TWO, 0, "intermediate_size", "moe_intermediate_size",
      "shared_expert_intermediate_size" },
    { "qwen3_5", MIXED_DENSE, 0, "intermediate_size", NULL, NULL },
    { "qwen3_5_text", MIXED_DENSE, 0, "intermediate_size", NULL, NULL },
    { "qwen3_5_moe", MIXED | PART_LINEAR_FOUR, 0, NULL, "moe_intermediate_size", "shared_expert_intermediate_size" },
    { "qwen3_5_moe_text", MIXED | PART_LINEAR_FOUR, 0, NULL, "moe_intermediate_size",
      "shared_expert_intermediate_size" },
    { "deepseek_v3", PART_MLA | ROUTED | PART_ROUTER_ADDED | PART_SHARED_MANY, 0, "intermediate_size",
      "moe_intermediate_size", "moe_intermediate_size" },
    { "glm4_moe", PART_QKV | ROUTED | PART_ROUTER_ADDED | PART_SHARED_MANY, PART_QKV_BIAS, "intermediate_size",
      "moe_intermediate_size", "moe_intermediate_size" },
    { "gpt_oss", PART_QKV | PART_SINKS | PART_ROUTER, PART_QKV_BIAS | PART_O_BIAS, NULL, "intermediate_size", NULL },
    { "llama4", PART_QKV | PART_FEED_FORWARD | PART_SHARED, 0, "intermediate_size_mlp", "intermediate_size",
      "intermediate_size" },
    { "llama4_text", PART_QKV | PART_FEED_FORWARD | PART_SHARED, 0, "intermediate_size_mlp", "intermediate_size",
      "intermediate_size" },
};

static const struct family *find_family(const struct doctor_model *m)
{
    const char *type = json_string_value(json_object_get(m->json[DOCTOR_CONFIG], "model_type"));
    for (size_t i = 0; type && i < sizeof families / sizeof *families; i++)
        if (strcmp(families[i].model_type, type) == 0)
            return &families[i];
    return NULL;
}

/* ---- parts ---- */

#define ATTENTION (PART_QKV | LAYER_ATTENTION)
#define LATENT    (PART_MLA | LAYER_ATTENTION)

const struct doctor_part fsdpck_doctor_layer_parts_table[] = {
    { "input_layernorm", 0, DIM_HIDDEN, DIM_NONE },
    { "post_attention_layernorm", 0, DIM_HIDDEN, DIM_NONE },
    { "self_attn.q_proj", ATTENTION, DIM_Q, DIM_HIDDEN },
    { "self_attn.k_proj", ATTENTION, DIM_KV, DIM_HIDDEN },
    { "self_attn.v_proj", ATTENTION, DIM_KV, DIM_HIDDEN },
    { "self_attn.o_proj", ATTENTION, DIM_HIDDEN, DIM_O },
    { "self_attn.q_proj.bias", ATTENTION | PART_QKV_BIAS, DIM_Q, DIM_NONE },
    { "self_attn.k_proj.bias", ATTENTION | PART_QKV_BIAS, DIM_KV, DIM_NONE },
    { "self_attn.v_proj.bias", ATTENTION | PART_QKV_BIAS, DIM_KV, DIM_NONE },
    { "self_attn.o_proj.bias", ATTENTION | PART_O_BIAS, DIM_HIDDEN, DIM_NONE },
    { "self_attn.q_norm", LAYER_ATTENTION | PART_QK_NORM, DIM_HEAD, DIM_NONE },
    { "self_attn.k_norm", LAYER_ATTENTION | PART_QK_NORM, DIM_HEAD, DIM_NONE },
    { "self_attn.sinks", LAYER_ATTENTION | PART_SINKS, DIM_HEADS, DIM_NONE },
    { "self_attn.q_proj", LATENT | PART_Q_WHOLE, DIM_Q_UP, DIM_HIDDEN },
    { "self_attn.q_a_proj", LATENT | PART_Q_RANK, DIM_Q_RANK, DIM_HIDDEN },
    { "self_attn.q_a_layernorm", LATENT | PART_Q_RANK, DIM_Q_RANK, DIM_NONE },
    { "self_attn.q_b_proj", LATENT | PART_Q_RANK, DIM_Q_UP, DIM_Q_RANK },
    { "self_attn.kv_a_proj_with_mqa", LATENT, DIM_KV_DOWN, DIM_HIDDEN },
    { "self_attn.kv_a_layernorm", LATENT, DIM_KV_RANK, DIM_NONE },
    { "self_attn.kv_b_proj", LATENT, DIM_KV_UP, DIM_KV_RANK },
    { "self_attn.o_proj", LATENT, DIM_HIDDEN, DIM_V_ALL },
    { "linear_attn.A_log", LAYER_LINEAR, DIM_LINEAR_HEADS, DIM_NONE },
    { "linear_attn.dt_bias", LAYER_LINEAR, DIM_LINEAR_HEADS, DIM_NONE },
    { "linear_attn.conv1d", LAYER_LINEAR, DIM_NONE, DIM_NONE },
    { "linear_attn.norm", LAYER_LINEAR, DIM_LINEAR_HEAD, DIM_NONE },
    { "linear_attn.out_proj", LAYER_LINEAR, DIM_HIDDEN, DIM_LINEAR_V },
    { "linear_attn.in_proj_qkvz", LAYER_LINEAR | PART_LINEAR_TWO, DIM_LINEAR_QKVZ, DIM_HIDDEN },
    { "linear_attn.in_proj_ba", LAYER_LINEAR | PART_LINEAR_TWO, DIM_LINEAR_BA, DIM_HIDDEN },
    { "linear_attn.in_proj_qkv", LAYER_LINEAR | PART_LINEAR_FOUR, DIM_LINEAR_QKV, DIM_HIDDEN },
    { "linear_attn.in_proj_z", LAYER_LINEAR | PART_LINEAR_FOUR, DIM_LINEAR_V, DIM_HIDDEN },
    { "linear_attn.in_proj_a", LAYER_LINEAR | PART_LINEAR_FOUR, DIM_LINEAR_HEADS, DIM_HIDDEN },
    { "linear_attn.in_proj_b", LAYER_LINEAR | PART_LINEAR_FOUR, DIM_LINEAR_HEADS, DIM_HIDDEN },
    { "mlp.gate_proj", LAYER_DENSE | PART_MLP, DIM_INNER, DIM_HIDDEN },
    { "mlp.up_proj", LAYER_DENSE | PART_MLP, DIM_INNER, DIM_HIDDEN },
    { "mlp.down_proj", LAYER_DENSE | PART_MLP, DIM_HIDDEN, DIM_INNER },
    { "feed_forward.gate_proj", LAYER_DENSE | PART_FEED_FORWARD, DIM_INNER, DIM_HIDDEN },
    { "feed_forward.up_proj", LAYER_DENSE | PART_FEED_FORWARD, DIM_INNER, DIM_HIDDEN },
    { "feed_forward.down_proj", LAYER_DENSE | PART_FEED_FORWARD, DIM_HIDDEN, DIM_INNER },
    { "mlp.gate", LAYER_EXPERTS | PART_GATE, DIM_EXPERTS, DIM_HIDDEN },
    { "mlp.gate.e_score_correction_bias", LAYER_EXPERTS | PART_ROUTER_ADDED, DIM_EXPERTS, DIM_NONE },
    { "block_sparse_moe.gate", LAYER_EXPERTS | PART_MIXTRAL, DIM_EXPERTS, DIM_HIDDEN },
    { "mlp.router", LAYER_EXPERTS | PART_ROUTER, DIM_EXPERTS, DIM_HIDDEN },
    { "mlp.router.bias", LAYER_EXPERTS | PART_ROUTER, DIM_EXPERTS, DIM_NONE },
    { "mlp.experts.gate_up_proj_bias", LAYER_EXPERTS | PART_ROUTER, DIM_EXPERTS, DIM_TWO_EXPERT_INNER },
    { "mlp.experts.down_proj_bias", LAYER_EXPERTS | PART_ROUTER, DIM_EXPERTS, DIM_HIDDEN },
    { "feed_forward.router", LAYER_EXPERTS | PART_FEED_FORWARD, DIM_EXPERTS, DIM_HIDDEN },
    { "mlp.shared_expert.gate_proj", LAYER_EXPERTS | PART_SHARED | PART_MLP, DIM_SHARED_INNER, DIM_HIDDEN },
    { "mlp.shared_expert.up_proj", LAYER_EXPERTS | PART_SHARED | PART_MLP, DIM_SHARED_INNER, DIM_HIDDEN },
    { "mlp.shared_expert.down_proj", LAYER_EXPERTS | PART_SHARED | PART_MLP, DIM_HIDDEN, DIM_SHARED_INNER },
    { "mlp.shared_expert_gate", LAYER_EXPERTS | PART_SHARED_GATE, DIM_ONE, DIM_HIDDEN },
    { "mlp.shared_experts.gate_proj", LAYER_EXPERTS | PART_SHARED_MANY, DIM_SHARED_INNER, DIM_HIDDEN },
    { "mlp.shared_experts.up_proj", LAYER_EXPERTS | PART_SHARED_MANY, DIM_SHARED_INNER, DIM_HIDDEN },
    { "mlp.shared_experts.down_proj", LAYER_EXPERTS | PART_SHARED_MANY, DIM_HIDDEN, DIM_SHARED_INNER },
    { "feed_forward.shared_expert.gate_proj", LAYER_EXPERTS | PART_SHARED | PART_FEED_FORWARD, DIM_SHARED_INNER,
      DIM_HIDDEN },
    { "feed_forward.shared_expert.up_proj", LAYER_EXPERTS | PART_SHARED | PART_FEED_FORWARD, DIM_SHARED_INNER,
      DIM_HIDDEN },
    { "feed_forward.shared_expert.down_proj", LAYER_EXPERTS | PART_SHARED | PART_FEED_FORWARD, DIM_HIDDEN,
      DIM_SHARED_INNER },
    { "enorm", LAYER_MTP, DIM_HIDDEN, DIM_NONE },
    { "hnorm", LAYER_MTP, DIM_HIDDEN, DIM_NONE },
    { "eh_proj", LAYER_MTP, DIM_HIDDEN, DIM_TWO_HIDDEN },
    { "shared_head.norm", LAYER_MTP, DIM_HIDDEN, DIM_NONE },
    { NULL, 0, DIM_NONE, DIM_NONE },
};
_Static_assert(sizeof fsdpck_doctor_layer_parts_table / sizeof *fsdpck_doctor_layer_parts_table <= DOCTOR_MAX_PARTS + 1,
               "a bit for each row");

/* Below the language model. */
const struct doctor_part fsdpck_doctor_model_parts[] = {
    { "embed_tokens", 0, DIM_VOCABULARY, DIM_HIDDEN },
    { "norm", 0, DIM_HIDDEN, DIM_NONE },
    { NULL, 0, DIM_NONE, DIM_NONE },
};

const struct doctor_part fsdpck_doctor_mtp_parts[] = {
    { "fc", 0, DIM_HIDDEN, DIM_TWO_HIDDEN },
    { "norm", 0, DIM_HIDDEN, DIM_NONE },
    { "pre_fc_norm_embedding", 0, DIM_HIDDEN, DIM_NONE },
    { "pre_fc_norm_hidden", 0, DIM_HIDDEN, DIM_NONE },
    { NULL, 0, DIM_NONE, DIM_NONE },
};

unsigned fsdpck_doctor_layer_kind(const char *name)
{
    static const struct {
        const char *prefix;
        unsigned kind;
    } kinds[] = {
        { "self_attn.", LAYER_ATTENTION },         { "linear_attn.", LAYER_LINEAR },
        { "mlp.gate_proj.", LAYER_DENSE },         { "mlp.up_proj.", LAYER_DENSE },
        { "mlp.down_proj.", LAYER_DENSE },         { "feed_forward.gate_proj.", LAYER_DENSE },
        { "feed_forward.up_proj.", LAYER_DENSE },  { "feed_forward.down_proj.", LAYER_DENSE },
        { "mlp.experts.", LAYER_EXPERTS },         { "mlp.gate.", LAYER_EXPERTS },
        { "mlp.router.", LAYER_EXPERTS },          { "mlp.shared_expert", LAYER_EXPERTS },
        { "block_sparse_moe.", LAYER_EXPERTS },    { "feed_forward.experts.", LAYER_EXPERTS },
        { "feed_forward.router.", LAYER_EXPERTS }, { "feed_forward.shared_expert.", LAYER_EXPERTS },
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strncmp(name, kinds[i].prefix, strlen(kinds[i].prefix)) == 0)
            return kinds[i].kind;
    return 0;
}

/* ---- sizes ---- */

static const struct {
    enum doctor_dim dim;
    const char *keys;
} dim_keys[] = {
    { DIM_VOCABULARY, "vocab_size" },
    { DIM_HIDDEN, "hidden_size" },
    { DIM_TWO_HIDDEN, "hidden_size" },
    { DIM_HEADS, "num_attention_heads" },
    { DIM_HEAD, "head_dim" },
    { DIM_Q, "num_attention_heads, head_dim" },
    { DIM_O, "num_attention_heads, head_dim" },
    { DIM_KV, "num_key_value_heads, head_dim" },
    { DIM_Q_RANK, "q_lora_rank" },
    { DIM_Q_UP, "num_attention_heads, qk_nope_head_dim, qk_rope_head_dim" },
    { DIM_KV_RANK, "kv_lora_rank" },
    { DIM_KV_DOWN, "kv_lora_rank, qk_rope_head_dim" },
    { DIM_KV_UP, "num_attention_heads, qk_nope_head_dim, v_head_dim" },
    { DIM_V_ALL, "num_attention_heads, v_head_dim" },
    { DIM_LINEAR_HEADS, "linear_num_value_heads" },
    { DIM_LINEAR_HEAD, "linear_value_head_dim" },
    { DIM_LINEAR_V, "linear_num_value_heads, linear_value_head_dim" },
    { DIM_LINEAR_QKV, "linear_num_key_heads, linear_key_head_dim, linear_num_value_heads, linear_value_head_dim" },
    { DIM_LINEAR_QKVZ, "linear_num_key_heads, linear_key_head_dim, linear_num_value_heads, linear_value_head_dim" },
    { DIM_LINEAR_BA, "linear_num_value_heads" },
    { DIM_EXPERTS, "the number of experts" },
    { DIM_SHARED_INNER, "the shared expert's size" },
};

const char *fsdpck_doctor_dim_keys(const struct doctor_known *k, enum doctor_dim dim)
{
    if (dim == DIM_INNER)
        return k->inner;
    if (dim == DIM_EXPERT_INNER || dim == DIM_TWO_EXPERT_INNER)
        return k->expert_inner;
    for (size_t i = 0; i < sizeof dim_keys / sizeof *dim_keys; i++)
        if (dim_keys[i].dim == dim)
            return dim_keys[i].keys;
    return NULL;
}

/* Returns a size of config.json, or 0: it is absent, or so large that products of it would overflow. */
static uint64_t size_of(const struct doctor_model *m, const char *key)
{
    uint64_t n = 0;
    return key && fsdpck_doctor_count(m, key, &n) && n < 1u << 30 ? n : 0;
}

static void read_attention(const struct doctor_model *m, struct doctor_known *k)
{
    uint64_t *d = k->dims, kv_heads = size_of(m, "num_key_value_heads");
    d[DIM_HEADS] = size_of(m, "num_attention_heads");
    d[DIM_HEAD] = size_of(m, "head_dim");
    if (!d[DIM_HEAD] && d[DIM_HEADS])
        d[DIM_HEAD] = d[DIM_HIDDEN] / d[DIM_HEADS];
    d[DIM_O] = d[DIM_HEADS] * d[DIM_HEAD];
    d[DIM_Q] = k->traits & PART_GATED_Q ? 2 * d[DIM_O] : d[DIM_O];
    d[DIM_KV] = (kv_heads ? kv_heads : d[DIM_HEADS]) * d[DIM_HEAD];
}

static uint64_t sum(uint64_t a, uint64_t b)
{
    return a && b ? a + b : 0;
}

static void read_latent(const struct doctor_model *m, struct doctor_known *k)
{
    const uint64_t heads = k->dims[DIM_HEADS], nope = size_of(m, "qk_nope_head_dim"),
                   rope = size_of(m, "qk_rope_head_dim"), v = size_of(m, "v_head_dim");
    k->dims[DIM_Q_RANK] = size_of(m, "q_lora_rank");
    k->dims[DIM_Q_UP] = heads * sum(nope, rope);
    k->dims[DIM_KV_RANK] = size_of(m, "kv_lora_rank");
    k->dims[DIM_KV_DOWN] = sum(k->dims[DIM_KV_RANK], rope);
    k->dims[DIM_KV_UP] = heads * sum(nope, v);
    k->dims[DIM_V_ALL] = heads * v;
    k->traits |= k->dims[DIM_Q_RANK] ? PART_Q_RANK : PART_Q_WHOLE;
}

static void read_linear(const struct doctor_model *m, struct doctor_known *k)
{
    const uint64_t keys = size_of(m, "linear_num_key_heads") * size_of(m, "linear_key_head_dim"),
                   heads = size_of(m, "linear_num_value_heads"), head = size_of(m, "linear_value_head_dim");
    k->dims[DIM_LINEAR_HEADS] = heads;
    k->dims[DIM_LINEAR_BA] = 2 * heads;
    k->dims[DIM_LINEAR_HEAD] = head;
    k->dims[DIM_LINEAR_V] = heads * head;
    k->dims[DIM_LINEAR_QKV] = sum(2 * keys, heads * head);
    k->dims[DIM_LINEAR_QKVZ] = sum(2 * keys, 2 * heads * head);
}

static void read_inner(const struct doctor_model *m, const struct family *f, struct doctor_known *k)
{
    const uint64_t nshared = k->traits & PART_SHARED_MANY ? size_of(m, "n_shared_experts") : 1;
    k->dims[DIM_INNER] = size_of(m, f->inner);
    k->dims[DIM_EXPERTS] = fsdpck_doctor_experts_count(m);
    k->dims[DIM_EXPERT_INNER] = size_of(m, f->expert_inner);
    k->dims[DIM_TWO_EXPERT_INNER] = 2 * k->dims[DIM_EXPERT_INNER];
    k->dims[DIM_SHARED_INNER] = nshared * size_of(m, f->shared_inner);
    if (!k->dims[DIM_SHARED_INNER])
        k->traits &= ~(unsigned)(PART_SHARED | PART_SHARED_GATE | PART_SHARED_MANY); /* config.json has none */
}

bool fsdpck_doctor_known_read(const struct doctor_model *m, struct doctor_known *out)
{
    const struct family *f = find_family(m);
    *out = (struct doctor_known){ 0 };
    if (!f)
        return false;
    out->model_type = f->model_type;
    out->inner = f->inner;
    out->expert_inner = f->expert_inner;
    out->traits = f->traits;
    if (json_is_true(fsdpck_doctor_key(m, "attention_bias")))
        out->traits |= f->biases;
    if (json_is_true(fsdpck_doctor_key(m, "use_qk_norm")) && strcmp(f->model_type, "glm4_moe") == 0)
        out->traits |= PART_QK_NORM;
    if (json_is_false(fsdpck_doctor_key(m, "attn_output_gate")))
        out->traits &= ~(unsigned)PART_GATED_Q;
    out->dims[DIM_ONE] = 1;
    out->dims[DIM_VOCABULARY] = size_of(m, "vocab_size");
    out->dims[DIM_HIDDEN] = size_of(m, "hidden_size");
    out->dims[DIM_TWO_HIDDEN] = 2 * out->dims[DIM_HIDDEN];
    read_attention(m, out);
    read_latent(m, out);
    read_linear(m, out);
    read_inner(m, f, out);
    return out->dims[DIM_HIDDEN] && out->dims[DIM_HEADS];
}
