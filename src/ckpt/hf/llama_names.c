/* SPDX-License-Identifier: Apache-2.0 */
/* The table of names. Knows no tensors. */
#include "hf/llama_names.h"

#include "hf/name_pattern.h"

static const struct {
    const char *hf, *titan;
    enum fsdpck_llama_role role;
} weights[] = {
    { "model.embed_tokens.weight", "tok_embeddings.weight", FSDPCK_LLAMA_PLAIN },
    { "model.layers.#.self_attn.q_proj.weight", "layers.#.attention.wq.weight", FSDPCK_LLAMA_Q },
    { "model.layers.#.self_attn.k_proj.weight", "layers.#.attention.wk.weight", FSDPCK_LLAMA_K },
    { "model.layers.#.self_attn.v_proj.weight", "layers.#.attention.wv.weight", FSDPCK_LLAMA_PLAIN },
    { "model.layers.#.self_attn.o_proj.weight", "layers.#.attention.wo.weight", FSDPCK_LLAMA_PLAIN },
    { "model.layers.#.mlp.gate_proj.weight", "layers.#.feed_forward.w1.weight", FSDPCK_LLAMA_PLAIN },
    { "model.layers.#.mlp.up_proj.weight", "layers.#.feed_forward.w3.weight", FSDPCK_LLAMA_PLAIN },
    { "model.layers.#.mlp.down_proj.weight", "layers.#.feed_forward.w2.weight", FSDPCK_LLAMA_PLAIN },
    { "model.layers.#.input_layernorm.weight", "layers.#.attention_norm.weight", FSDPCK_LLAMA_PLAIN },
    { "model.layers.#.post_attention_layernorm.weight", "layers.#.ffn_norm.weight", FSDPCK_LLAMA_PLAIN },
    { "model.norm.weight", "norm.weight", FSDPCK_LLAMA_PLAIN },
    { "lm_head.weight", "output.weight", FSDPCK_LLAMA_PLAIN },
};

bool fsdpck_llama_rename(const char *name, bool to_hf, char *out, size_t nbytes, enum fsdpck_llama_role *role)
{
    struct fsdpck_layer_number layer;
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) {
        if (!fsdpck_name_matches(to_hf ? weights[i].titan : weights[i].hf, name, &layer))
            continue;
        fsdpck_name_fill(to_hf ? weights[i].hf : weights[i].titan, &layer, out, nbytes);
        *role = weights[i].role;
        return true;
    }
    return false;
}
