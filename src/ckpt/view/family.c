/* SPDX-License-Identifier: Apache-2.0 */
/* See family.h. */
#include "view/family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"
#include "hf/config.h"
#include "hf/name_pattern.h"
#include "hf/weight_names.h"
#include "view/experts.h"

/* ---- the table ---- */

struct row {
    const char *module; /* in a layer, or in the model; '#' stands for the number of an expert */
    enum fsdpck_family_part part;
    uint32_t dim;
    uint32_t nhalves;
    enum fsdpck_family_experts experts;
    uint32_t equal;   /* as in struct fsdpck_family_cut; 0: nhalves if there are several */
    const char *only; /* model_type; NULL: every one that has no row of its own for the same module */
};

#define WHOLE(name) \
    { \
        .module = (name) \
    }
#define COLUMNS(name) \
    { \
        .module = (name), .part = FSDPCK_PART_SLICE \
    }
#define ROWS(name) \
    { \
        .module = (name), .part = FSDPCK_PART_SLICE, .dim = 1 \
    }
#define GATE_UP(name) \
    { \
        .module = (name), .part = FSDPCK_PART_SLICE, .nhalves = 2 \
    }
#define EXPERT(name, along) \
    { \
        .module = (name), .part = FSDPCK_PART_SLICE, .dim = (along), .experts = FSDPCK_EXPERTS_ONE \
    }
#define STACK(name, along, halves) \
    { \
        .module = (name), .part = FSDPCK_PART_SLICE, .dim = (along), .nhalves = (halves), \
        .experts = FSDPCK_EXPERTS_STACK \
    }

/* gpt-oss: inputs before outputs, rows of gate and up in turns. */
#define GPT_OSS(name, along, n) \
    { \
        .module = (name), .part = FSDPCK_PART_SLICE, .dim = (along), .experts = FSDPCK_EXPERTS_STACK, .equal = (n), \
        .only = "gpt_oss" \
    }
static const struct row in_model[] = {
    COLUMNS("model.embed_tokens"),
    COLUMNS("lm_head"),
    WHOLE("model.norm"),
};

static const struct row in_layer[] = {
    { .module = "self_attn.q_proj", .part = FSDPCK_PART_Q },
    { .module = "self_attn.k_proj", .part = FSDPCK_PART_KV },
    { .module = "self_attn.v_proj", .part = FSDPCK_PART_KV },
    { .module = "self_attn.qkv_proj", .part = FSDPCK_PART_QKV },
    ROWS("self_attn.o_proj"),
    { .module = "self_attn.sinks", .part = FSDPCK_PART_Q },
    WHOLE("self_attn.q_norm"),
    WHOLE("self_attn.k_norm"),
    /* multi-head latent attention: what is computed before the heads is small, and whole */
    WHOLE("self_attn.q_a_proj"),
    WHOLE("self_attn.q_a_layernorm"),
    WHOLE("self_attn.kv_a_proj_with_mqa"),
    WHOLE("self_attn.fused_qkv_a_proj"),
    WHOLE("self_attn.kv_a_layernorm"),
    { .module = "self_attn.q_b_proj", .part = FSDPCK_PART_Q },
    { .module = "self_attn.kv_b_proj", .part = FSDPCK_PART_Q },
    /* linear attention: transformers cuts the rows of its products, and joins what they give */
    COLUMNS("linear_attn.in_proj_qkvz"),
    COLUMNS("linear_attn.in_proj_ba"),
    COLUMNS("linear_attn.in_proj_qkv"),
    COLUMNS("linear_attn.in_proj_z"),
    COLUMNS("linear_attn.in_proj_b"),
    COLUMNS("linear_attn.in_proj_a"),
    COLUMNS("linear_attn.out_proj"),
    WHOLE("linear_attn.conv1d"),
    WHOLE("linear_attn.norm"),
    WHOLE("linear_attn.A_log"),
    WHOLE("linear_attn.dt_bias"),
    WHOLE("input_layernorm"),
    WHOLE("post_attention_layernorm"),
    COLUMNS("mlp.gate_proj"),
    COLUMNS("mlp.up_proj"),
    GATE_UP("mlp.gate_up_proj"),
    ROWS("mlp.down_proj"),
    WHOLE("mlp.gate"),
    COLUMNS("mlp.shared_expert.gate_proj"),
    COLUMNS("mlp.shared_expert.up_proj"),
    GATE_UP("mlp.shared_expert.gate_up_proj"),
    ROWS("mlp.shared_expert.down_proj"),
    WHOLE("mlp.shared_expert_gate"),
    COLUMNS("mlp.shared_experts.gate_proj"),
    COLUMNS("mlp.shared_experts.up_proj"),
    GATE_UP("mlp.shared_experts.gate_up_proj"),
    ROWS("mlp.shared_experts.down_proj"),
    EXPERT("mlp.experts.#.gate_proj", 0),
    EXPERT("mlp.experts.#.up_proj", 0),
    EXPERT("mlp.experts.#.down_proj", 1),
    WHOLE("mlp.router"),
    GPT_OSS("mlp.experts.gate_up_proj", 2, 2),
    GPT_OSS("mlp.experts.gate_up_proj_bias", 1, 2),
    GPT_OSS("mlp.experts.gate_up_proj_blocks", 1, 2),
    GPT_OSS("mlp.experts.gate_up_proj_scales", 1, 2),
    GPT_OSS("mlp.experts.down_proj", 1, 1),
    GPT_OSS("mlp.experts.down_proj_blocks", 2, 1),
    GPT_OSS("mlp.experts.down_proj_scales", 2, 1),
    { .module = "mlp.experts.down_proj_bias", .experts = FSDPCK_EXPERTS_STACK, .only = "gpt_oss" },
    STACK("mlp.experts.gate_up_proj", 1, 2),
    STACK("mlp.experts.down_proj", 2, 1),
    STACK("mlp.experts.routed_experts.w13_weight", 1, 2),
    STACK("mlp.experts.routed_experts.w2_weight", 2, 1),
    STACK("mlp.experts.w13_weight", 1, 2),
    STACK("mlp.experts.w2_weight", 2, 1),
    WHOLE("feed_forward.router"),
    COLUMNS("feed_forward.gate_proj"),
    COLUMNS("feed_forward.up_proj"),
    GATE_UP("feed_forward.gate_up_proj"),
    ROWS("feed_forward.down_proj"),
    COLUMNS("feed_forward.shared_expert.gate_proj"),
    COLUMNS("feed_forward.shared_expert.up_proj"),
    GATE_UP("feed_forward.shared_expert.gate_up_proj"),
    ROWS("feed_forward.shared_expert.down_proj"),
    STACK("feed_forward.experts.gate_up_proj", 2, 2),
    STACK("feed_forward.experts.down_proj", 1, 1),
    WHOLE("block_sparse_moe.gate"),
    EXPERT("block_sparse_moe.experts.#.w1", 0),
    EXPERT("block_sparse_moe.experts.#.w3", 0),
    EXPERT("block_sparse_moe.experts.#.w2", 1),
    STACK("block_sparse_moe.experts.routed_experts.w13_weight", 1, 2),
    STACK("block_sparse_moe.experts.routed_experts.w2_weight", 2, 1),
    STACK("block_sparse_moe.experts.w13_weight", 1, 2),
    STACK("block_sparse_moe.experts.w2_weight", 2, 1),
};

static const char *const families[] = { "llama",     "mistral",     "qwen2",      "qwen3",       "mixtral",
                                        "qwen2_moe", "qwen3_moe",   "qwen3_next", "qwen3_5_moe", "qwen3_5_moe_text",
                                        "glm4_moe",  "deepseek_v3", "gpt_oss",    "llama4",      "llama4_text" };
enum { NFAMILIES = sizeof families / sizeof *families };

/* ---- config.json ---- */

static int check_family(const char *model_type, const char *config, struct fsdpck_error *err)
{
    for (size_t i = 0; i < NFAMILIES; i++)
        if (strcmp(families[i], model_type) == 0)
            return 0;
    return fsdpck_config_refuse_family(config, model_type, "none whose placement is known", families, NFAMILIES,
                                       sizeof *families, err);
}

static int parse(const char *config, const char *text, uint64_t nbytes, struct fsdpck_family *out,
                 struct fsdpck_error *err)
{
    struct fsdpck_moe moe;
    int rc = fsdpck_moe_read(config, text, nbytes, &moe, err);
    if (!rc)
        rc = check_family(moe.model_type, config, err);
    if (!rc)
        rc = fsdpck_config_heads(config, text, nbytes, &out->heads, &out->kv_heads, err);
    snprintf(out->model_type, sizeof out->model_type, "%s", moe.model_type);
    out->nexperts = moe.nexperts;
    out->nlayers = moe.nlayers;
    out->nmtp = moe.nmtp;
    out->vocab = moe.vocab;
    out->text = fsdpck_moe_text(&moe);
    return rc;
}

int fsdpck_family_read(const struct fsdpck_source *src, const char *folder, const char *needed_by,
                       struct fsdpck_family *out, struct fsdpck_error *err)
{
    char *config = fsdpck_weight_config(src, folder), *text = NULL;
    uint64_t nbytes;
    *out = (struct fsdpck_family){ 0 };
    if (!config) {
        fsdpck_error_set(err, FSDPCK_ERR_MISSING, src->path,
                         "has no config.json, which says the model's family and heads, as %s needs", needed_by);
        fsdpck_error_hint(err, "give the model's Hugging Face folder: --assets FOLDER");
        return err->code;
    }
    int rc = fsdpck_read_file(src->io, config, FSDPCK_CONFIG_MAX_NBYTES, &text, &nbytes, err);
    if (!rc)
        rc = parse(config, text, nbytes, out, err);
    free(text);
    free(config);
    return rc;
}

/* ---- names ---- */

enum { NAME_NBYTES = 1024 };

/* Optimizer states have a parameter's name within theirs. Returns where the last such begins, or NULL. */
static const char *find_last(const char *name, const char *begin)
{
    const char *found = NULL;
    for (const char *at = name; (at = strstr(at, begin)); at++)
        if (at == name || at[-1] == '.')
            found = at;
    return found;
}

/* Writes the parameter's name as in a model of text alone; false: it is no name of a text part. */
static bool name_alone(const struct fsdpck_text_names *text, const char *name, char out[NAME_NBYTES])
{
    const char *model = find_last(name, text->model), *at = model ? model : find_last(name, text->head);
    if (at)
        fsdpck_text_rename(text, &fsdpck_text_alone, at, out, NAME_NBYTES);
    return at != NULL;
}

/* Of a model that sees images too, the text part may be alone. */
static bool parameter_of(const struct fsdpck_family *f, const char *name, char out[NAME_NBYTES])
{
    return name_alone(f->text, name, out) || name_alone(&fsdpck_text_alone, name, out);
}

bool fsdpck_family_is_in_layer(const struct fsdpck_family *f, const char *name)
{
    char alone[NAME_NBYTES];
    uint64_t layer;
    return parameter_of(f, name, alone) && fsdpck_weight_in_layer(alone, &layer);
}

/* Returns what follows the module and a dot, "" for the module alone, or NULL. */
static const char *leaf_of(const char *module, const char *name, struct fsdpck_layer_number *number)
{
    const char *rest = fsdpck_name_after(module, name, number);
    return rest && *rest == '.' ? rest + 1 : rest && *rest ? NULL : rest;
}

static const struct row *find(const struct fsdpck_family *f, const char *name, const char **leaf,
                              struct fsdpck_layer_number *number)
{
    uint64_t layer;
    const char *rest = fsdpck_weight_in_layer(name, &layer);
    const struct row *rows = rest ? in_layer : in_model;
    const size_t n = rest ? sizeof in_layer / sizeof *in_layer : sizeof in_model / sizeof *in_model;
    for (size_t i = 0; i < n; i++)
        if ((!rows[i].only || strcmp(rows[i].only, f->model_type) == 0) &&
            (*leaf = leaf_of(rows[i].module, rest ? rest : name, number)))
            return &rows[i];
    return NULL;
}

/* Parts of a quantized weight that lie as its rows and columns do; others, as GPTQ's, stay whole. */
static bool lies_as_weight(const char *leaf)
{
    static const char *const leaves[] = { "weight", "bias", "weight_scale_inv", "weight_scale", "weight_packed" };
    const size_t n = strcspn(leaf, ".");
    for (size_t i = 0; i < sizeof leaves / sizeof *leaves; i++)
        if (strlen(leaves[i]) == n && strncmp(leaf, leaves[i], n) == 0)
            return true;
    return false;
}

static bool is_scale(const char *leaf)
{
    return strncmp(leaf, "weight_scale", strlen("weight_scale")) == 0;
}

bool fsdpck_family_find(const struct fsdpck_family *f, const struct fsdpck_tensor *t, struct fsdpck_family_cut *out)
{
    struct fsdpck_layer_number number;
    char name[NAME_NBYTES];
    const char *leaf = "";
    const struct row *row = parameter_of(f, t->name, name) ? find(f, name, &leaf, &number) : NULL;
    *out = (struct fsdpck_family_cut){ .nhalves = 1 };
    if (!row)
        return false;
    const bool stack = row->experts == FSDPCK_EXPERTS_STACK, lies = stack || !*leaf || lies_as_weight(leaf),
               thin = t->ndim <= row->dim ||
                      (is_scale(leaf) && t->shape[row->dim] <= 1); /* a bias of rows; one scale for all */
    out->experts = stack && (!t->ndim || t->shape[0] != f->nexperts) ? FSDPCK_EXPERTS_NONE : row->experts;
    out->expert = number.value;
    if (row->part == FSDPCK_PART_WHOLE || !lies || thin)
        return row->part == FSDPCK_PART_WHOLE || lies;
    out->part = row->part;
    out->dim = row->dim;
    out->nhalves = row->nhalves ? row->nhalves : 1;
    out->equal = row->equal ? row->equal : row->nhalves;
    return true;
}
