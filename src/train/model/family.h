/* SPDX-License-Identifier: Apache-2.0 */
/* The families of models, as transformers has them: what a model_type settles. */
#ifndef TRAIN_FAMILY_H
#define TRAIN_FAMILY_H

#include <stdbool.h>
#include <stdint.h>

/* In which layers attention has a window: none; all; all if use_sliding_window is true. The others go by layer_types:
 * without it, by those from max_window_layers on (BY_LAYER: if use_sliding_window is true), or, if use_sliding_window
 * is true, the even ones below it; IN_TURN: every other one, from the first. */
enum family_window {
    FAMILY_NO_WINDOW,
    FAMILY_WINDOW,
    FAMILY_WINDOW_IF_USED,
    FAMILY_WINDOW_BY_LAYER,
    FAMILY_WINDOW_LAST_LAYERS,
    FAMILY_WINDOW_EVEN_LAYERS,
    FAMILY_WINDOW_IN_TURN
};
/* Which layers are mixtures of experts: none; all; some, by decoder_sparse_step and mlp_only_layers; the later ones,
 * from first_k_dense_replace on. */
enum family_experts { FAMILY_DENSE, FAMILY_EVERY_LAYER, FAMILY_SOME_LAYERS, FAMILY_LATER_LAYERS };

/* Keys of config.json: the values that they have if they are left out, and which of them count. */
struct family_keys {
    int64_t window;   /* 0: without the key there is none */
    int64_t nkv;      /* 0: as many as query heads */
    int64_t head_dim; /* 0: hidden / heads */
    int64_t max_position, max_window_layers;
    double eps, theta;                /* theta 0: 10,000 */
    double rotary;                    /* partial_rotary_factor; 0: the key must be 1 */
    bool attention_bias, mlp_bias;    /* the keys may be true */
    bool biased;                      /* without the key, attention_bias is true */
    const char *rope;                 /* rope_parameters, as JSON; NULL: none are positions that are not scaled */
    bool use_qk_norm, qkv_bias;       /* the keys count: without them, false and true */
    int64_t nexperts, top_k, nshared; /* 0: the key must be there. nshared: n_shared_experts, each as wide as others */
    int64_t first_sparse;             /* first_k_dense_replace */
    int64_t expert_inner;             /* 0: as wide as config.json's intermediate_size */
    int64_t shared_inner;             /* 0: by n_shared_experts */
    bool norm_topk_prob;
};

/* Maths that config.json cannot change. */
struct family_maths {
    enum family_window windows;
    enum family_experts experts;
    bool qk_norm;
    bool bias_qkv;   /* q, k and v have biases, o has none */
    bool no_bias_o;  /* attention_bias does not count for o */
    bool sigmoid;    /* the router is that of DeepSeek-V3: sigmoids, a bias, groups */
    bool normalised; /* the weights of a token's experts are always divided by their sum */
    bool gpt_oss; /* attention has sinks; the router and the experts have biases, and a gate with a slope and a limit */
};

/* Names of the modules of a layer with experts. */
struct family_modules {
    const char *router, *experts;     /* an expert has its number below `experts` */
    const char *shared, *shared_gate; /* of an expert that every token shares, and of its weight; NULL: none */
    const char *gate, *up, *down;     /* modules in an expert; NULL: all experts are in one tensor each, gate_up_proj
                                         (experts, in, out), whose columns are gate and up in turn, and down_proj */
};

struct family {
    const char *name;  /* model_type */
    const char *block; /* transformers' class of a block */
    struct family_keys keys;
    struct family_maths maths;
    struct family_modules modules;
};

/* NULL: unknown. */
const struct family *family_find(const char *name);
/* "llama, mistral and qwen2" into text. */
void family_list(char *text, int nbytes);

#endif
