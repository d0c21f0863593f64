/* SPDX-License-Identifier: Apache-2.0 */
#include "view/megatron_config.h"

#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"
#include "base/json_read.h"
#include "hf/config.h"
#include "hf/weight_names.h"

enum { MAX_EXPERTS = 100000 }; /* far more than any model has */

enum {
    QKV = FSDPCK_MEGATRON_QKV,
    NORMED = QKV | FSDPCK_MEGATRON_QK_NORM,
    BIASED = QKV | FSDPCK_MEGATRON_QKV_BIAS,
    ALL_BIASES = FSDPCK_MEGATRON_QKV_BIAS | FSDPCK_MEGATRON_O_BIAS,
    BALANCED = FSDPCK_MEGATRON_ROUTER_BIAS | FSDPCK_MEGATRON_SHARED,
    MLA = FSDPCK_MEGATRON_MLA | FSDPCK_MEGATRON_Q_RANK,
};

/* A family: its traits, those that attention_bias adds, and the value of first_k_dense_replace that stands for none. */
struct family {
    const char *model_type;
    unsigned traits, with_bias;
    bool experts;
    uint64_t first_experts;
};

static const struct family families[] = {
    { "llama", QKV, ALL_BIASES, false, 0 },
    { "mistral", QKV, 0, false, 0 },
    { "qwen2", BIASED, 0, false, 0 },
    { "qwen3", NORMED, ALL_BIASES, false, 0 },
    { "mixtral", QKV, 0, true, 0 },
    { "qwen2_moe", BIASED | FSDPCK_MEGATRON_SHARED_GATED, 0, true, 0 },
    { "qwen3_moe", NORMED, ALL_BIASES, true, 0 },
    { "glm4_moe", QKV | BALANCED, FSDPCK_MEGATRON_QKV_BIAS, true, 1 },
    { "deepseek_v3", MLA | BALANCED, 0, true, 3 },
};
enum { NFAMILIES = sizeof families / sizeof *families };

static const struct family *find_family(const char *model_type)
{
    for (size_t i = 0; i < NFAMILIES; i++)
        if (strcmp(model_type, families[i].model_type) == 0)
            return &families[i];
    return NULL;
}

struct reading {
    struct fsdpck_json j;
    struct fsdpck_megatron_config *c;
    bool bias, bad_layer;
};

static void read_dense_layers(struct reading *r)
{
    fsdpck_json_array(&r->j);
    while (fsdpck_json_next_item(&r->j)) {
        const uint64_t layer = fsdpck_json_u64(&r->j);
        if (layer < FSDPCK_MEGATRON_MAX_LAYERS)
            r->c->dense_layers[layer] = true;
        r->bad_layer |= layer >= FSDPCK_MEGATRON_MAX_LAYERS;
    }
}

/* A key that is null stands for its family's default, except q_lora_rank and n_shared_experts: there is none. */
static bool read_number(struct reading *r, const char *key)
{
    const struct {
        const char *key;
        uint64_t *to;
    } numbers[] = { { "num_hidden_layers", &r->c->layers },
                    { "hidden_size", &r->c->hidden },
                    { "vocab_size", &r->c->vocab },
                    { "first_k_dense_replace", &r->c->first_experts },
                    { "decoder_sparse_step", &r->c->experts_every },
                    { "num_nextn_predict_layers", &r->c->mtp_layers } };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (strcmp(key, numbers[i].key) == 0 && fsdpck_json_peek(&r->j) == FSDPCK_JSON_NUMBER) {
            *numbers[i].to = fsdpck_json_u64(&r->j);
            return true;
        }
    return false;
}

static bool read_switch(struct reading *r, const char *key)
{
    const enum fsdpck_json_type type = fsdpck_json_peek(&r->j);
    const bool yes = type == FSDPCK_JSON_TRUE;
    if (strcmp(key, "attention_bias") == 0)
        r->bias = yes;
    else if (strcmp(key, "qkv_bias") == 0 && type == FSDPCK_JSON_FALSE)
        r->c->traits &= ~(unsigned)FSDPCK_MEGATRON_QKV_BIAS;
    else if (strcmp(key, "use_qk_norm") == 0 && yes)
        r->c->traits |= FSDPCK_MEGATRON_QK_NORM;
    else if (strcmp(key, "q_lora_rank") == 0 && type == FSDPCK_JSON_NULL && (r->c->traits & FSDPCK_MEGATRON_MLA))
        r->c->traits = (r->c->traits & ~(unsigned)FSDPCK_MEGATRON_Q_RANK) | FSDPCK_MEGATRON_Q_WHOLE;
    else if (strcmp(key, "n_shared_experts") == 0 && type == FSDPCK_JSON_NULL)
        r->c->traits &= ~(unsigned)FSDPCK_MEGATRON_SHARED;
    else
        return false;
    fsdpck_json_skip(&r->j);
    return true;
}

/* The family's own values are in c already. */
static int read_keys(struct reading *r, const struct family *f, const char *path, const char *text, uint64_t nbytes,
                     struct fsdpck_error *err)
{
    const char *key;
    fsdpck_json_begin(&r->j, path, 0, text, nbytes, err);
    fsdpck_json_object(&r->j);
    while (fsdpck_json_next_key(&r->j, &key)) {
        if (strcmp(key, "mlp_only_layers") == 0 && fsdpck_json_peek(&r->j) == FSDPCK_JSON_ARRAY)
            read_dense_layers(r);
        else if (!read_number(r, key) && !read_switch(r, key))
            fsdpck_json_skip(&r->j);
    }
    fsdpck_json_end(&r->j);
    const int rc = r->j.failed ? err->code : 0;
    fsdpck_json_free(&r->j);
    r->c->traits |= r->bias ? f->with_bias : 0;
    return rc;
}

static int check(const struct reading *r, const char *path, struct fsdpck_error *err)
{
    const struct fsdpck_megatron_config *c = r->c;
    if (c->layers > FSDPCK_MEGATRON_MAX_LAYERS || c->mtp_layers > FSDPCK_MEGATRON_MAX_LAYERS - c->layers ||
        c->experts > MAX_EXPERTS || r->bad_layer)
        return fsdpck_error_set(err, FSDPCK_ERR_LIMIT, path, "states more than %d layers or %d experts",
                                FSDPCK_MEGATRON_MAX_LAYERS, MAX_EXPERTS);
    if (!c->layers || !c->hidden || !c->vocab || !c->experts_every)
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path,
                                "lacks one of num_hidden_layers, hidden_size and vocab_size, or states "
                                "decoder_sparse_step 0");
    return 0;
}

static int parse(const char *path, const char *text, uint64_t nbytes, struct fsdpck_megatron_config *out,
                 struct fsdpck_error *err)
{
    struct reading r = { .c = out };
    int rc = fsdpck_moe_read(path, text, nbytes, &out->moe, err);
    const struct family *f = rc ? NULL : find_family(out->moe.model_type);
    if (!rc && !f)
        rc = fsdpck_config_refuse_family(path, out->moe.model_type, "none whose weights are known in Megatron's layout",
                                         families, NFAMILIES, sizeof *families, err);
    if (rc)
        return rc;
    out->traits = f->traits;
    out->first_experts = f->first_experts;
    out->experts_every = 1;
    out->experts = f->experts ? out->moe.nexperts : 0;
    rc = read_keys(&r, f, path, text, nbytes, err);
    if (!(f->traits & FSDPCK_MEGATRON_ROUTER_BIAS))
        out->mtp_layers = 0;
    if (!rc)
        rc = fsdpck_config_heads(path, text, nbytes, &out->heads, &out->kv_heads, err);
    if (!rc)
        rc = fsdpck_config_tied(path, text, nbytes, &out->tied, err);
    return rc ? rc : check(&r, path, err);
}

int fsdpck_megatron_config_read(const struct fsdpck_source *src, const char *folder, struct fsdpck_megatron_config *out,
                                struct fsdpck_error *err)
{
    char *path = fsdpck_weight_config(src, folder), *text = NULL;
    uint64_t nbytes;
    *out = (struct fsdpck_megatron_config){ 0 };
    if (!path) {
        fsdpck_error_set(err, FSDPCK_ERR_MISSING, src->path,
                         "has no config.json, which says how Megatron's tensors are cut and joined, as --names needs");
        fsdpck_error_hint(err, "give the model's Hugging Face folder: --assets FOLDER");
        return err->code;
    }
    int rc = fsdpck_read_file(src->io, path, FSDPCK_CONFIG_MAX_NBYTES, &text, &nbytes, err);
    if (!rc)
        rc = parse(path, text, nbytes, out, err);
    free(text);
    free(path);
    return rc;
}

unsigned fsdpck_megatron_traits(const struct fsdpck_megatron_config *c, uint64_t layer)
{
    const unsigned routed = FSDPCK_MEGATRON_ROUTER_BIAS | FSDPCK_MEGATRON_SHARED | FSDPCK_MEGATRON_SHARED_GATED;
    if (c->experts && layer >= c->first_experts && (layer + 1) % c->experts_every == 0 && !c->dense_layers[layer])
        return c->traits | FSDPCK_MEGATRON_EXPERTS;
    return (c->traits & ~routed) | FSDPCK_MEGATRON_DENSE;
}
