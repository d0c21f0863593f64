/* SPDX-License-Identifier: Apache-2.0 */
/* The table of vLLM: what its modules call the weights, and which of them they join. */
#include "view/side_table.h"

#define L   "model.layers.#."
#define MLP L "mlp."

/* Attention that joins q, k and v in `module`. */
#define QKV(module, leaf, how, family) \
    { \
        .held = { L "self_attn.q_proj." leaf, L "self_attn.k_proj." leaf, L "self_attn.v_proj." leaf }, \
        .other = { L module ".qkv_proj." leaf }, .rows = how, .only = family \
    }
/* gate over up. */
#define GATE_UP(module) \
    { \
        .held = { L module ".gate_proj.weight", L module ".up_proj.weight" }, \
        .other = { L module ".gate_up_proj.weight" }, .rows = FSDPCK_ROWS_HALF \
    }
/* The experts of a layer, under today's name and the one before vLLM 0.24. */
#define FUSED(from, module, leaf, turn, family) \
    { .held = { L from }, .other = { L module ".experts.routed_experts." leaf }, .turned = turn, .only = family }, \
    { \
        .held = { L from }, .other = { L module ".experts." leaf }, .turned = turn, .only = family, .old = true \
    }
#define RENAMED(from, to, family) \
    { \
        .held = { L from }, .other = { L to }, .only = family \
    }

#define AS_IT_IS(name, family) \
    { \
        .held = { L name }, .other = { L name }, .only = family, .published = true \
    }

static const struct fsdpck_side_row rows[] = {
    QKV("attn", "weight", FSDPCK_ROWS_QKV, "gpt_oss"),
    QKV("attn", "bias", FSDPCK_ROWS_QKV, "gpt_oss"),
    RENAMED("self_attn.o_proj.weight", "attn.o_proj.weight", "gpt_oss"),
    RENAMED("self_attn.o_proj.bias", "attn.o_proj.bias", "gpt_oss"),
    RENAMED("self_attn.sinks", "attn.sinks", "gpt_oss"),
    { .held = { "model.embed_tokens.weight" }, .other = { "model.embedding.weight" }, .only = "gpt_oss" },
    FUSED("mlp.experts.gate_up_proj", "mlp", "w13_weight", true, "gpt_oss"),
    FUSED("mlp.experts.gate_up_proj_bias", "mlp", "w13_bias", false, "gpt_oss"),
    FUSED("mlp.experts.down_proj", "mlp", "w2_weight", true, "gpt_oss"),
    FUSED("mlp.experts.down_proj_bias", "mlp", "w2_bias", false, "gpt_oss"),

    { .held = { L "self_attn.q_proj.weight", L "self_attn.k_proj.weight", L "self_attn.v_proj.weight" },
      .other = { L "self_attn.qkv_proj.weight" },
      .rows = FSDPCK_ROWS_QKV,
      .only = "llama4",
      .rotated = true },
    GATE_UP("feed_forward"),
    GATE_UP("feed_forward.shared_expert"),
    FUSED("feed_forward.experts.gate_up_proj", "feed_forward", "w13_weight", true, "llama4"),
    FUSED("feed_forward.experts.down_proj", "feed_forward", "w2_weight", true, "llama4"),

    QKV("self_attn", "weight", FSDPCK_ROWS_GATED_QKV, "qwen3_next"),
    QKV("self_attn", "weight", FSDPCK_ROWS_GATED_QKV, "qwen3_5"),
    { .held = { L "linear_attn.in_proj_qkv.weight", L "linear_attn.in_proj_z.weight" },
      .other = { L "linear_attn.in_proj_qkvz.weight" },
      .rows = FSDPCK_ROWS_QKV_Z,
      .only = "qwen3_5",
      .published = true }, /* as a Qwen3-Next has it */
    { .held = { L "linear_attn.in_proj_b.weight", L "linear_attn.in_proj_a.weight" },
      .other = { L "linear_attn.in_proj_ba.weight" },
      .rows = FSDPCK_ROWS_HALF,
      .only = "qwen3_5",
      .published = true },

    FUSED("mlp.experts.gate_up_proj", "block_sparse_moe", "w13_weight", false, "mixtral"),
    FUSED("mlp.experts.down_proj", "block_sparse_moe", "w2_weight", false, "mixtral"),
    { .held = { L "mlp.gate.weight" },
      .other = { L "block_sparse_moe.gate.weight" },
      .only = "mixtral",
      .published = true },

    { .held = { L "self_attn.q_a_proj.weight", L "self_attn.kv_a_proj_with_mqa.weight" },
      .other = { L "self_attn.fused_qkv_a_proj.weight" },
      .rows = FSDPCK_ROWS_Q_KV_A,
      .only = "deepseek_v3" },
    AS_IT_IS("self_attn.q_proj.weight", "deepseek_v3"), /* where q has no low rank */
    AS_IT_IS("self_attn.kv_a_proj_with_mqa.weight", "deepseek_v3"),

    QKV("self_attn", "weight", FSDPCK_ROWS_QKV, NULL),
    QKV("self_attn", "bias", FSDPCK_ROWS_QKV, NULL),
    GATE_UP("mlp"),
    GATE_UP("mlp.shared_expert"),
    GATE_UP("mlp.shared_experts"),
    FUSED("mlp.experts.gate_up_proj", "mlp", "w13_weight", false, NULL),
    FUSED("mlp.experts.down_proj", "mlp", "w2_weight", false, NULL),
};

static const char *const families[] = {
    "llama",        "mistral",           "qwen2",      "qwen3",       "mixtral",
    "qwen2_moe",    "qwen3_moe",         "qwen3_next", "qwen3_5_moe", "qwen3_5_moe_text",
    "qwen3_vl_moe", "qwen3_vl_moe_text", "glm4_moe",   "deepseek_v3", "gpt_oss",
    "llama4",       "llama4_text",       NULL
};

const struct fsdpck_side fsdpck_side_vllm = { .names = "vllm",
                                              .program = "vLLM",
                                              .rows = rows,
                                              .nrows = sizeof rows / sizeof *rows,
                                              .text = { "language_model.model.", "language_model.lm_head." },
                                              .families = families,
                                              .scales = true };
