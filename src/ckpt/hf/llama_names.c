/* SPDX-License-Identifier: Apache-2.0 */
/* The table of names. Knows no tensors. */
#include "hf/llama_names.h"

#include <stdio.h>
#include <string.h>

/* '#' stands for a layer number. */
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

/* Returns whether name matches the pattern; *digits, *ndigits: the part for its '#'. */
static bool matches(const char *pattern, const char *name, const char **digits, int *ndigits)
{
    const char *mark = strchr(pattern, '#');
    *digits = "";
    *ndigits = 0;
    if (!mark)
        return !strcmp(pattern, name);
    size_t before = (size_t)(mark - pattern);
    if (strncmp(pattern, name, before) != 0)
        return false;
    *digits = name + before;
    while ((*digits)[*ndigits] >= '0' && (*digits)[*ndigits] <= '9' && *ndigits < 9)
        ++*ndigits;
    return *ndigits > 0 && !strcmp(mark + 1, *digits + *ndigits);
}

bool fsdpck_llama_rename(const char *name, bool to_hf, char *out, size_t nbytes, enum fsdpck_llama_role *role)
{
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) {
        const char *from = to_hf ? weights[i].titan : weights[i].hf, *to = to_hf ? weights[i].hf : weights[i].titan,
                   *digits;
        int ndigits;
        if (!matches(from, name, &digits, &ndigits))
            continue;
        const char *mark = strchr(to, '#');
        int before = mark ? (int)(mark - to) : (int)strlen(to);
        snprintf(out, nbytes, "%.*s%.*s%s", before, to, ndigits, digits, mark ? mark + 1 : "");
        *role = weights[i].role;
        return true;
    }
    return false;
}
