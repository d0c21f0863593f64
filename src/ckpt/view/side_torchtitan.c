/* SPDX-License-Identifier: Apache-2.0 */
/* The table of torchtitan: the names that its state-dict adapters give, today and in older releases. */
#include "view/side_table.h"

#define L     "model.layers.#."
#define T     "layers.#."
#define INNER "moe.routed_experts.inner_experts."

#define RENAMED(from, to, family) \
    { \
        .held = { L from }, .other = { T to }, .only = family \
    }
#define ONCE(from, to, family) \
    { \
        .held = { L from }, .other = { T to }, .only = family, .old = true \
    }
#define QKV(leaf, family) \
    RENAMED("self_attn.q_proj." leaf, "attention.qkv_linear.wq." leaf, family), \
        RENAMED("self_attn.k_proj." leaf, "attention.qkv_linear.wk." leaf, family), \
        RENAMED("self_attn.v_proj." leaf, "attention.qkv_linear.wv." leaf, family), \
        ONCE("self_attn.q_proj." leaf, "attention.wq." leaf, family), \
        ONCE("self_attn.k_proj." leaf, "attention.wk." leaf, family), \
        ONCE("self_attn.v_proj." leaf, "attention.wv." leaf, family)
/* gate, up and down of one MLP. */
#define MLP(from, to, family) \
    RENAMED(from ".gate_proj.weight", to ".w1.weight", family), \
        RENAMED(from ".up_proj.weight", to ".w3.weight", family), \
        RENAMED(from ".down_proj.weight", to ".w2.weight", family)
/* All experts of a layer: gate and up apart. turn: published with inputs before outputs. */
#define EXPERTS(from, turn, family) \
    { .held = { L from ".gate_up_proj" }, \
      .other = { T INNER "w1_EFD", T INNER "w3_EFD" }, \
      .rows = FSDPCK_ROWS_HALF, \
      .turned = turn, \
      .only = family }, \
        { .held = { L from ".down_proj" }, .other = { T INNER "w2_EDF" }, .turned = turn, .only = family }, \
        { .held = { L from ".gate_up_proj" }, \
          .other = { T "moe.experts.w1", T "moe.experts.w3" }, \
          .rows = FSDPCK_ROWS_HALF, \
          .turned = turn, \
          .only = family, \
          .old = true }, \
    { \
        .held = { L from ".down_proj" }, .other = { T "moe.experts.w2" }, .turned = turn, .only = family, .old = true \
    }
/* The experts of gpt-oss, gate and up interleaved. */
#define INTERLEAVED(from, to, suffix, turn) \
    { .held = { L "mlp.experts." from }, .other = { T INNER to suffix }, .turned = turn, .only = "gpt_oss" }, \
    { \
        .held = { L "mlp.experts." from }, .other = { T "moe.experts." to }, .turned = turn, .only = "gpt_oss", \
        .old = true \
    }
/* Of the program's own state. */
#define STATE(name, family) \
    { \
        .other = { T name }, .only = family \
    }

static const struct fsdpck_side_row rows[] = {
    { .held = { "model.embed_tokens.weight" }, .other = { "tok_embeddings.weight" } },
    { .held = { "model.norm.weight" }, .other = { "norm.weight" } },
    { .held = { "lm_head.weight" }, .other = { "lm_head.weight" } },
    { .held = { "lm_head.weight" }, .other = { "output.weight" }, .old = true },
    RENAMED("input_layernorm.weight", "attention_norm.weight", NULL),
    RENAMED("post_attention_layernorm.weight", "ffn_norm.weight", NULL),
    RENAMED("self_attn.o_proj.weight", "attention.wo.weight", NULL),
    QKV("weight", "qwen3"),
    RENAMED("self_attn.q_norm.weight", "attention.q_norm.weight", "qwen3"),
    RENAMED("self_attn.k_norm.weight", "attention.k_norm.weight", "qwen3"),
    RENAMED("self_attn.q_proj.weight", "attention.wq.weight", "deepseek_v3"),
    RENAMED("self_attn.q_a_proj.weight", "attention.wq_a.weight", "deepseek_v3"),
    RENAMED("self_attn.q_b_proj.weight", "attention.wq_b.weight", "deepseek_v3"),
    RENAMED("self_attn.q_a_layernorm.weight", "attention.q_norm.weight", "deepseek_v3"),
    RENAMED("self_attn.kv_a_proj_with_mqa.weight", "attention.wkv_a.weight", "deepseek_v3"),
    RENAMED("self_attn.kv_b_proj.weight", "attention.wkv_b.weight", "deepseek_v3"),
    RENAMED("self_attn.kv_a_layernorm.weight", "attention.kv_norm.weight", "deepseek_v3"),

    QKV("weight", "llama4"),
    MLP("feed_forward", "feed_forward", "llama4"),
    MLP("feed_forward.shared_expert", "moe.shared_experts", "llama4"),
    EXPERTS("feed_forward.experts", true, "llama4"),
    RENAMED("feed_forward.router.weight", "moe.router.gate.weight", "llama4"),
    STATE("moe.expert_bias_E", "llama4"),
    STATE("moe.expert_bias", "llama4"),

    QKV("weight", "gpt_oss"),
    QKV("bias", "gpt_oss"),
    RENAMED("self_attn.o_proj.bias", "attention.wo.bias", "gpt_oss"),
    RENAMED("self_attn.sinks", "attention.sinks", "gpt_oss"),
    INTERLEAVED("gate_up_proj", "mlp1_weight", "_EGD", true),
    INTERLEAVED("gate_up_proj_bias", "mlp1_bias", "_EG", false),
    INTERLEAVED("down_proj", "mlp2_weight", "_EDF", true),
    INTERLEAVED("down_proj_bias", "mlp2_bias", "_ED", false),
    RENAMED("mlp.router.weight", "moe.router.gate.weight", "gpt_oss"),
    RENAMED("mlp.router.bias", "moe.router.gate.bias", "gpt_oss"),
    STATE("moe.expert_bias_E", "gpt_oss"),
    STATE("moe.expert_bias", "gpt_oss"),

    MLP("mlp", "feed_forward", NULL),
    MLP("mlp.shared_experts", "moe.shared_experts", NULL),
    EXPERTS("mlp.experts", false, NULL),
    RENAMED("mlp.gate.weight", "moe.router.gate.weight", NULL),
    RENAMED("mlp.gate.e_score_correction_bias", "moe.expert_bias_E", NULL),
    ONCE("mlp.gate.e_score_correction_bias", "moe.expert_bias", NULL),
    STATE("moe.tokens_per_expert_E", NULL),
    STATE("moe.tokens_per_expert", NULL),
};

static const char *const families[] = { "qwen3", "qwen3_moe", "deepseek_v3", "llama4", "llama4_text", "gpt_oss", NULL };

const struct fsdpck_side fsdpck_side_torchtitan = { .names = "torchtitan",
                                                    .program = "torchtitan",
                                                    .rows = rows,
                                                    .nrows = sizeof rows / sizeof *rows,
                                                    .text = { "model.", "lm_head." },
                                                    .families = families,
                                                    .whole = true };
