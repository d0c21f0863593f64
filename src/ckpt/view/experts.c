/* SPDX-License-Identifier: Apache-2.0 */
/* The table of families, and names by it. */
#include "view/experts.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/json_read.h"
#include "hf/config.h"
#include "hf/name_pattern.h"
#include "hf/weight_names.h"

#define LAYERS   "model.layers."
#define IN_BLOCK "mlp" /* what transformers calls every family's block */

struct fsdpck_moe_family {
    const char *model_type;
    const char *block; /* of the published names; NULL: of single experts there are none */
    const char *parts[FSDPCK_EXPERT_NPARTS];
    const char *inter_key;         /* of config.json */
    bool fused;                    /* published as transformers holds it */
    const char *held;              /* if so, the block */
    bool turned;                   /* fused experts have inputs before outputs */
    bool published_turned;         /* as published only */
    struct fsdpck_text_names text; /* of a model that sees images too */
};

/* One tensor an expert's part. */
#define SINGLE(type, within, inter, ...) \
    { \
        .model_type = type, .block = within, .inter_key = inter, .parts = { __VA_ARGS__ } \
    }
#define FUSED(type, inter, ...) \
    { \
        .model_type = type, .inter_key = inter, .fused = true, __VA_ARGS__ \
    }
#define MOE_INTER       "moe_intermediate_size"
#define LIKE_QWEN(type) SINGLE(type, "mlp", MOE_INTER, "gate_proj", "up_proj", "down_proj")
#define QWEN            .block = "mlp", .held = IN_BLOCK, .parts = { "gate_proj", "up_proj", "down_proj" }
#define QWEN_VL         .held = IN_BLOCK, .published_turned = true
#define LLAMA4          .held = "feed_forward", .turned = true
static const struct fsdpck_moe_family families[] = {
    SINGLE("mixtral", "block_sparse_moe", "intermediate_size", "w1", "w3", "w2"),
    LIKE_QWEN("qwen2_moe"),
    LIKE_QWEN("qwen3_moe"),
    LIKE_QWEN("qwen3_next"),
    LIKE_QWEN("deepseek_v3"),
    LIKE_QWEN("glm4_moe"),
    LIKE_QWEN("dots1"),
    FUSED("qwen3_5_moe", MOE_INTER, QWEN, .text = { "model.language_model.", "lm_head." }),
    FUSED("qwen3_5_moe_text", MOE_INTER, QWEN), /* transformers writes one made from a config by single experts */
    FUSED("qwen3_vl_moe", MOE_INTER, QWEN_VL, .text = { "model.language_model.", "lm_head." }),
    FUSED("qwen3_vl_moe_text", MOE_INTER, QWEN_VL),
    FUSED("gpt_oss", "intermediate_size", .held = IN_BLOCK, .turned = true),
    FUSED("llama4", "intermediate_size", LLAMA4, .text = { "language_model.model.", "language_model.lm_head." }),
    FUSED("llama4_text", "intermediate_size", LLAMA4),
};
enum { NFAMILIES = sizeof families / sizeof *families };
static const char *const fused[FSDPCK_EXPERT_NPARTS] = { "gate_up_proj", "gate_up_proj", "down_proj" };

bool fsdpck_expert_is_name(const char *name)
{
    return strstr(name, ".experts.") != NULL;
}

bool fsdpck_expert_is_single_name(const char *name)
{
    const char *experts = strstr(name, ".experts.");
    return experts && experts[9] >= '0' && experts[9] <= '9' && strncmp(name, "mtp.", 4) != 0;
}

/* ---- config.json ---- */

static const char *const expert_keys[] = { "num_experts", "num_local_experts", "n_routed_experts" };

static bool is_experts(const char *key)
{
    for (size_t i = 0; i < sizeof expert_keys / sizeof *expert_keys; i++)
        if (strcmp(key, expert_keys[i]) == 0)
            return true;
    return false;
}

static void take_number(struct fsdpck_json *j, uint64_t *out)
{
    if (fsdpck_json_peek(j) == FSDPCK_JSON_NULL)
        fsdpck_json_skip(j);
    else
        *out = fsdpck_json_u64(j);
}

static bool take_null(struct fsdpck_json *j)
{
    const bool null = fsdpck_json_peek(j) == FSDPCK_JSON_NULL;
    fsdpck_json_skip(j);
    return null;
}

/* What a model or its text part says. */
struct sizes {
    struct fsdpck_moe *moe;
    uint64_t dense, routed; /* two keys for the width of an MLP: which one is the experts', the family says */
};

static void read_key(struct fsdpck_json *j, const char *key, struct sizes *s)
{
    if (strcmp(key, "num_hidden_layers") == 0)
        take_number(j, &s->moe->nlayers);
    else if (strcmp(key, "num_nextn_predict_layers") == 0)
        take_number(j, &s->moe->nmtp);
    else if (strcmp(key, "q_lora_rank") == 0)
        s->moe->whole_q = take_null(j);
    else if (strcmp(key, "hidden_size") == 0)
        take_number(j, &s->moe->hidden);
    else if (strcmp(key, "num_attention_heads") == 0)
        take_number(j, &s->moe->heads);
    else if (strcmp(key, "head_dim") == 0)
        take_number(j, &s->moe->head_dim);
    else if (strcmp(key, "vocab_size") == 0)
        take_number(j, &s->moe->vocab);
    else if (strcmp(key, "intermediate_size") == 0)
        take_number(j, &s->dense);
    else if (strcmp(key, "moe_intermediate_size") == 0)
        take_number(j, &s->routed);
    else if (is_experts(key))
        take_number(j, &s->moe->nexperts);
    else
        fsdpck_json_skip(j);
}

/* Takes [rows, columns]. Other values stand for no blocks, as in other forms of quantized weights. */
static void read_block(struct fsdpck_json *j, struct fsdpck_moe *moe)
{
    uint64_t block[2] = { 0 };
    size_t n = 0;
    if (fsdpck_json_peek(j) != FSDPCK_JSON_ARRAY) {
        fsdpck_json_skip(j);
        return;
    }
    for (fsdpck_json_array(j); fsdpck_json_next_item(j); n++)
        if (n < 2 && fsdpck_json_peek(j) == FSDPCK_JSON_NUMBER)
            block[n] = fsdpck_json_u64(j);
        else
            fsdpck_json_skip(j);
    if (n == 2 && block[0] && block[1])
        memcpy(moe->block, block, sizeof block);
}

static void read_quantization(struct fsdpck_json *j, struct fsdpck_moe *moe)
{
    const char *key;
    fsdpck_json_object(j);
    while (fsdpck_json_next_key(j, &key))
        if (strcmp(key, "weight_block_size") == 0)
            read_block(j, moe);
        else
            fsdpck_json_skip(j);
}

static void read_text_config(struct fsdpck_json *j, struct sizes *s)
{
    const char *key;
    s->moe->with_images = true;
    fsdpck_json_object(j);
    while (fsdpck_json_next_key(j, &key))
        read_key(j, key, s);
}

int fsdpck_moe_read(const char *file, const char *text, size_t nbytes, struct fsdpck_moe *moe, struct fsdpck_error *err)
{
    struct fsdpck_json j;
    struct sizes sizes = { .moe = moe };
    const char *key, *type;
    *moe = (struct fsdpck_moe){ 0 };
    fsdpck_json_begin(&j, file, 0, text, nbytes, err);
    fsdpck_json_object(&j);
    while (fsdpck_json_next_key(&j, &key)) {
        if (strcmp(key, "model_type") == 0 && fsdpck_json_peek(&j) == FSDPCK_JSON_STRING) {
            if ((type = fsdpck_json_string(&j)))
                snprintf(moe->model_type, sizeof moe->model_type, "%s", type);
        } else if (strcmp(key, "text_config") == 0 && fsdpck_json_peek(&j) == FSDPCK_JSON_OBJECT) {
            read_text_config(&j, &sizes);
        } else if (strcmp(key, "quantization_config") == 0 && fsdpck_json_peek(&j) == FSDPCK_JSON_OBJECT) {
            read_quantization(&j, moe);
        } else {
            read_key(&j, key, &sizes);
        }
    }
    fsdpck_json_end(&j);
    int rc = j.failed ? err->code : 0;
    fsdpck_json_free(&j);
    for (size_t i = 0; i < NFAMILIES && !moe->family; i++)
        if (strcmp(families[i].model_type, moe->model_type) == 0)
            moe->family = &families[i];
    const char *inter = moe->family ? moe->family->inter_key : NULL;
    if (!moe->head_dim && moe->heads)
        moe->head_dim = moe->hidden / moe->heads;
    moe->inter = inter && strcmp(inter, "intermediate_size") == 0 ? sizes.dense : sizes.routed;
    return rc;
}

int fsdpck_moe_check(const struct fsdpck_moe *moe, const char *file, struct fsdpck_error *err)
{
    if (moe->family && moe->with_images && !moe->family->held)
        return fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, file,
                                "has a text_config, and a %s that is a part of another model is not known to --names",
                                moe->model_type);
    if (moe->family && moe->nlayers && moe->nexperts && moe->hidden && moe->inter)
        return 0;
    if (moe->family)
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, file,
                                "lacks a size of its experts: wanted num_hidden_layers, hidden_size, %s and one of "
                                "num_experts, num_local_experts, n_routed_experts",
                                moe->family->inter_key);
    return fsdpck_config_refuse_family(file, moe->model_type, "no mixture of experts whose names are known to --names",
                                       families, NFAMILIES, sizeof *families, err);
}

bool fsdpck_moe_is_alike(const struct fsdpck_moe *moe)
{
    return moe->family && moe->family->fused;
}

bool fsdpck_moe_has_singles(const struct fsdpck_moe *moe)
{
    return moe->family && moe->family->block && !moe->with_images;
}

const struct fsdpck_text_names *fsdpck_moe_text(const struct fsdpck_moe *moe)
{
    return moe->with_images && moe->family && moe->family->text.model ? &moe->family->text : &fsdpck_text_alone;
}

bool fsdpck_moe_is_turned(const struct fsdpck_moe *moe)
{
    return moe->family && moe->family->turned;
}

bool fsdpck_moe_is_published_turned(const struct fsdpck_moe *moe)
{
    return moe->family && moe->family->published_turned;
}

/* ---- names ---- */

/* Returns what follows "PREFIX.", or NULL. */
static const char *after(const char *s, const char *prefix)
{
    size_t n = strlen(prefix);
    return strncmp(s, prefix, n) == 0 && s[n] == '.' ? s + n + 1 : NULL;
}

/* Whether a leaf is the name of a weight, or of its scales if there are such. */
static bool is_leaf(const char *leaf, const char *weight, bool has_scales, bool *scale)
{
    const size_t n = strlen(weight);
    *scale = has_scales && strncmp(leaf, weight, n) == 0 && strcmp(leaf + n, FSDPCK_SCALE_SUFFIX) == 0;
    return *scale || strcmp(leaf, weight) == 0;
}

static void parse_single(const struct fsdpck_moe *moe, const char *rest, struct fsdpck_expert *out)
{
    const struct fsdpck_moe_family *f = moe->family;
    const char *part = fsdpck_name_index(rest, &out->expert);
    out->form = FSDPCK_EXPERT_UNKNOWN;
    for (int p = 0; part && *part == '.' && p < FSDPCK_EXPERT_NPARTS; p++) {
        const char *leaf = after(part + 1, f->parts[p]);
        if (leaf && is_leaf(leaf, "weight", moe->block[0] > 0, &out->scale)) {
            out->form = FSDPCK_EXPERT_SINGLE;
            out->part = (enum fsdpck_expert_part)p;
        }
    }
}

static bool parse_fused(const struct fsdpck_moe *moe, const char *rest, struct fsdpck_expert *out)
{
    const bool scales = moe->block[0] > 0, down = is_leaf(rest, fused[FSDPCK_EXPERT_DOWN], scales, &out->scale);
    if (!down && !is_leaf(rest, fused[FSDPCK_EXPERT_GATE], scales, &out->scale))
        return false;
    out->form = FSDPCK_EXPERT_FUSED;
    out->part = down ? FSDPCK_EXPERT_DOWN : FSDPCK_EXPERT_GATE;
    return true;
}

static void parse_alike(const struct fsdpck_moe *moe, const char *rest, struct fsdpck_expert *out)
{
    const char *within = after(rest, moe->family->held), *experts = within ? after(within, "experts") : NULL;
    uint64_t expert;
    if (experts && !parse_fused(moe, experts, out) && fsdpck_name_index(experts, &expert))
        out->form = FSDPCK_EXPERT_UNKNOWN;
}

void fsdpck_expert_parse(const struct fsdpck_moe *moe, const char *name, struct fsdpck_expert *out)
{
    const struct fsdpck_moe_family *f = moe->family;
    *out = (struct fsdpck_expert){ .form = FSDPCK_EXPERT_OTHER };
    const char *rest = fsdpck_weight_in_layer(name, &out->layer);
    if (!rest || out->layer >= moe->nlayers)
        return;
    if (!fsdpck_moe_has_singles(moe)) {
        parse_alike(moe, rest, out);
        return;
    }
    const char *hub = after(rest, f->block), *memory = after(rest, IN_BLOCK), *within = hub ? hub : memory;
    const char *experts = within ? after(within, "experts") : NULL;
    if (experts && !(memory && parse_fused(moe, experts, out)))
        parse_single(moe, experts, out);
    else if (!experts && within && strcmp(f->block, IN_BLOCK) != 0)
        out->form = FSDPCK_EXPERT_MOVED;
}

void fsdpck_expert_move(const struct fsdpck_moe *moe, const char *name, bool to_fused, char *out, size_t nbytes)
{
    const char *from = to_fused ? moe->family->block : IN_BLOCK, *to = to_fused ? IN_BLOCK : moe->family->block;
    uint64_t layer;
    const char *rest = fsdpck_weight_in_layer(name, &layer), *within = after(rest, from);
    if (within)
        snprintf(out, nbytes, "%.*s%s.%s", (int)(rest - name), name, to, within);
    else
        snprintf(out, nbytes, "%s", name);
}

void fsdpck_expert_name(const struct fsdpck_moe *moe, const struct fsdpck_expert *x, char *out, size_t nbytes)
{
    const struct fsdpck_moe_family *f = moe->family;
    const char *scale = x->scale ? FSDPCK_SCALE_SUFFIX : "";
    if (x->form == FSDPCK_EXPERT_FUSED)
        snprintf(out, nbytes, LAYERS "%" PRIu64 "." IN_BLOCK ".experts.%s%s", x->layer, fused[x->part], scale);
    else
        snprintf(out, nbytes, LAYERS "%" PRIu64 ".%s.experts.%" PRIu64 ".%s.weight%s", x->layer, f->block, x->expert,
                 f->parts[x->part], scale);
}
