/* SPDX-License-Identifier: Apache-2.0 */
/* The table of families. Defaults are those of transformers' configuration classes. */
#include "model/family.h"

#include <stdio.h>
#include <string.h>

/* The names of most families. */
#define EXPERTS_IN_MLP \
    .router = "mlp.gate", .experts = "mlp.experts", .gate = "gate_proj", .up = "up_proj", .down = "down_proj"

static const struct family families[] = {
    { .name = "dots1",
      .block = "Dots1DecoderLayer",
      .keys = { .window = 4096,
                .max_window_layers = 62,
                .nkv = 32,
                .max_position = 2048,
                .eps = 1e-6,
                .attention_bias = true,
                .expert_inner = 1408 },
      .maths = { .windows = FAMILY_WINDOW_LAST_LAYERS,
                 .qk_norm = true,
                 .experts = FAMILY_LATER_LAYERS,
                 .sigmoid = true },
      .modules = { .shared = "mlp.shared_experts", EXPERTS_IN_MLP } },
    { .name = "glm4_moe",
      .block = "Glm4MoeDecoderLayer",
      .keys = { .nkv = 8,
                .max_position = 131072,
                .eps = 1e-5,
                .rotary = 0.5,
                .attention_bias = true,
                .use_qk_norm = true,
                .nexperts = 128,
                .top_k = 8,
                .nshared = 1,
                .first_sparse = 1,
                .expert_inner = 1408,
                .norm_topk_prob = true },
      .maths = { .no_bias_o = true, .experts = FAMILY_LATER_LAYERS, .sigmoid = true },
      .modules = { .shared = "mlp.shared_experts", EXPERTS_IN_MLP } },
    { .name = "gpt_oss",
      .block = "GptOssDecoderLayer",
      .keys = { .window = 128,
                .nkv = 8,
                .head_dim = 64,
                .max_position = 131072,
                .eps = 1e-5,
                .theta = 150000,
                .rope = "{\"rope_type\": \"yarn\", \"factor\": 32, \"beta_fast\": 32, \"beta_slow\": 1, "
                        "\"truncate\": false, \"original_max_position_embeddings\": 4096}",
                .attention_bias = true,
                .biased = true,
                .nexperts = 128,
                .top_k = 4 },
      .maths = { .windows = FAMILY_WINDOW_IN_TURN, .experts = FAMILY_EVERY_LAYER, .normalised = true, .gpt_oss = true },
      .modules = { .router = "mlp.router", .experts = "mlp.experts" } },
    { .name = "llama",
      .block = "LlamaDecoderLayer",
      .keys = { .max_position = 2048, .eps = 1e-6, .attention_bias = true, .mlp_bias = true } },
    { .name = "mistral",
      .block = "MistralDecoderLayer",
      .keys = { .window = 4096, .nkv = 8, .max_position = 131072, .eps = 1e-6 },
      .maths = { .windows = FAMILY_WINDOW } },
    { .name = "mixtral",
      .block = "MixtralDecoderLayer",
      .keys = { .nkv = 8, .max_position = 131072, .eps = 1e-5, .theta = 1e6, .nexperts = 8, .top_k = 2 },
      .maths = { .windows = FAMILY_WINDOW, .experts = FAMILY_EVERY_LAYER, .normalised = true },
      .modules = { .router = "block_sparse_moe.gate",
                   .experts = "block_sparse_moe.experts",
                   .gate = "w1",
                   .up = "w3",
                   .down = "w2" } },
    { .name = "qwen2",
      .block = "Qwen2DecoderLayer",
      .keys = { .window = 4096,
                .max_window_layers = 28,
                .nkv = 32,
                .max_position = 32768,
                .eps = 1e-6,
                .attention_bias = true },
      .maths = { .windows = FAMILY_WINDOW_BY_LAYER, .bias_qkv = true } },
    { .name = "qwen2_moe",
      .block = "Qwen2MoeDecoderLayer",
      .keys = { .window = 4096,
                .max_window_layers = 28,
                .nkv = 16,
                .max_position = 32768,
                .eps = 1e-6,
                .qkv_bias = true,
                .nexperts = 60,
                .top_k = 4,
                .expert_inner = 1408,
                .shared_inner = 5632 },
      .maths = { .windows = FAMILY_WINDOW_EVEN_LAYERS, .bias_qkv = true, .experts = FAMILY_SOME_LAYERS },
      .modules = { .shared = "mlp.shared_expert", .shared_gate = "mlp.shared_expert_gate", EXPERTS_IN_MLP } },
    { .name = "qwen3",
      .block = "Qwen3DecoderLayer",
      .keys = { .window = 4096,
                .max_window_layers = 28,
                .nkv = 32,
                .head_dim = 128,
                .max_position = 32768,
                .eps = 1e-6,
                .attention_bias = true },
      .maths = { .windows = FAMILY_WINDOW_BY_LAYER, .qk_norm = true } },
    { .name = "qwen3_moe",
      .block = "Qwen3MoeDecoderLayer",
      .keys = { .window = 4096,
                .nkv = 4,
                .max_position = 32768,
                .eps = 1e-6,
                .attention_bias = true,
                .nexperts = 128,
                .top_k = 8,
                .expert_inner = 768 },
      .maths = { .windows = FAMILY_WINDOW_IF_USED, .qk_norm = true, .experts = FAMILY_SOME_LAYERS },
      .modules = { EXPERTS_IN_MLP } },
};

enum { NFAMILIES = sizeof families / sizeof families[0] };

const struct family *family_find(const char *name)
{
    for (int i = 0; i < NFAMILIES && name; i++)
        if (strcmp(name, families[i].name) == 0)
            return &families[i];
    return NULL;
}

void family_list(char *text, int nbytes)
{
    int at = 0;
    for (int i = 0; i < NFAMILIES && at < nbytes; i++)
        at += snprintf(text + at, (size_t)(nbytes - at), "%s%s",
                       i == 0               ? ""
                       : i == NFAMILIES - 1 ? " and "
                                            : ", ",
                       families[i].name);
}
