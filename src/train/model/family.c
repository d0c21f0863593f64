/* SPDX-License-Identifier: Apache-2.0 */
/* The table of families. Defaults are those of transformers' configuration classes. */
#include "model/family.h"

#include <stdio.h>
#include <string.h>

/* The names of most families. */
#define EXPERTS_IN_MLP \
    .router = "mlp.gate", .experts_path = "mlp.experts", .gate = "gate_proj", .up = "up_proj", .down = "down_proj"

static const struct family families[] = {
    { .name = "dots1",
      .block = "Dots1DecoderLayer",
      .windows = FAMILY_WINDOW_LAST_LAYERS,
      .window = 4096,
      .max_window_layers = 62,
      .nkv = 32,
      .max_position = 2048,
      .eps = 1e-6,
      .qk_norm = true,
      .attention_bias = true,
      .experts = FAMILY_LATER_LAYERS,
      .expert_inner = 1408,
      .sigmoid = true,
      .shared = "mlp.shared_experts",
      EXPERTS_IN_MLP },
    { .name = "glm4_moe",
      .block = "Glm4MoeDecoderLayer",
      .nkv = 8,
      .max_position = 131072,
      .eps = 1e-5,
      .rotary = 0.5,
      .attention_bias = true,
      .no_bias_o = true,
      .use_qk_norm = true,
      .experts = FAMILY_LATER_LAYERS,
      .nexperts = 128,
      .top_k = 8,
      .nshared = 1,
      .first_sparse = 1,
      .expert_inner = 1408,
      .sigmoid = true,
      .norm_topk_prob = true,
      .shared = "mlp.shared_experts",
      EXPERTS_IN_MLP },
    { .name = "llama",
      .block = "LlamaDecoderLayer",
      .max_position = 2048,
      .eps = 1e-6,
      .attention_bias = true,
      .mlp_bias = true },
    { .name = "mistral",
      .block = "MistralDecoderLayer",
      .windows = FAMILY_WINDOW,
      .window = 4096,
      .nkv = 8,
      .max_position = 131072,
      .eps = 1e-6 },
    { .name = "mixtral",
      .block = "MixtralDecoderLayer",
      .windows = FAMILY_WINDOW,
      .nkv = 8,
      .max_position = 131072,
      .eps = 1e-5,
      .theta = 1e6,
      .experts = FAMILY_EVERY_LAYER,
      .nexperts = 8,
      .top_k = 2,
      .normalised = true,
      .router = "block_sparse_moe.gate",
      .experts_path = "block_sparse_moe.experts",
      .gate = "w1",
      .up = "w3",
      .down = "w2" },
    { .name = "qwen2",
      .block = "Qwen2DecoderLayer",
      .windows = FAMILY_WINDOW_BY_LAYER,
      .window = 4096,
      .max_window_layers = 28,
      .nkv = 32,
      .max_position = 32768,
      .eps = 1e-6,
      .bias_qkv = true,
      .attention_bias = true },
    { .name = "qwen2_moe",
      .block = "Qwen2MoeDecoderLayer",
      .windows = FAMILY_WINDOW_EVEN_LAYERS,
      .window = 4096,
      .max_window_layers = 28,
      .nkv = 16,
      .max_position = 32768,
      .eps = 1e-6,
      .bias_qkv = true,
      .qkv_bias = true,
      .experts = FAMILY_SOME_LAYERS,
      .nexperts = 60,
      .top_k = 4,
      .expert_inner = 1408,
      .shared_inner = 5632,
      .shared = "mlp.shared_expert",
      .shared_gate = "mlp.shared_expert_gate",
      EXPERTS_IN_MLP },
    { .name = "qwen3",
      .block = "Qwen3DecoderLayer",
      .windows = FAMILY_WINDOW_BY_LAYER,
      .window = 4096,
      .max_window_layers = 28,
      .nkv = 32,
      .head_dim = 128,
      .max_position = 32768,
      .eps = 1e-6,
      .qk_norm = true,
      .attention_bias = true },
    { .name = "qwen3_moe",
      .block = "Qwen3MoeDecoderLayer",
      .windows = FAMILY_WINDOW_IF_USED,
      .window = 4096,
      .nkv = 4,
      .max_position = 32768,
      .eps = 1e-6,
      .qk_norm = true,
      .attention_bias = true,
      .experts = FAMILY_SOME_LAYERS,
      .nexperts = 128,
      .top_k = 8,
      .expert_inner = 768,
      EXPERTS_IN_MLP },
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
