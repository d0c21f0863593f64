/* SPDX-License-Identifier: Apache-2.0 */
/* See vllm_slices.h. */
#include "view/vllm_slices.h"

#include <inttypes.h>
#include <string.h>

#include "hf/config.h"
#include "hf/weight_names.h"

static const char *const families[] = { "llama",     "mistral",   "qwen2",    "qwen3",      "mixtral",
                                        "qwen2_moe", "qwen3_moe", "glm4_moe", "deepseek_v3" };
enum { NFAMILIES = sizeof families / sizeof *families };

enum { VOCABULARY_MULTIPLE = 64, MAX_LAYERS = 10000 }; /* far more layers than any model has */
#define MAX_LOCAL (1ull << 40) /* elements along a dimension; products with numbers of heads and ranks fit 64 bits */

/* ---- names ---- */

static bool is_vocabulary(const char *name)
{
    return strcmp(name, "model.embed_tokens.weight") == 0 || strcmp(name, "lm_head.weight") == 0;
}

/* Beside weights and biases of modules, the only parameters that vLLM holds are stacks of experts and the correction of
 * a router. */
static bool is_parameter(const char *name, const struct fsdpck_family_cut *cut)
{
    const char *dot = strrchr(name, '.'), *leaf = dot ? dot + 1 : name;
    return cut->experts == FSDPCK_EXPERTS_STACK || strcmp(leaf, "weight") == 0 || strcmp(leaf, "bias") == 0 ||
           strcmp(leaf, "e_score_correction_bias") == 0;
}

enum fsdpck_vllm_use fsdpck_vllm_cut_of(const struct fsdpck_vllm_ranks *r, const struct fsdpck_tensor *t,
                                        struct fsdpck_vllm_cut *out)
{
    static const char *const others[] = { "mtp.", "model.visual.", "visual." };
    const struct fsdpck_family *f = &r->family;
    uint64_t layer;
    const bool known = fsdpck_family_find(f, t, &out->cut);
    out->vocabulary = is_vocabulary(t->name);
    out->whole_experts = r->expert_parallel && out->cut.experts == FSDPCK_EXPERTS_STACK;
    if (out->whole_experts) {
        out->cut.part = FSDPCK_PART_SLICE;
        out->cut.dim = 0;
        out->cut.nhalves = 1;
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strncmp(t->name, others[i], strlen(others[i])) == 0)
            return FSDPCK_VLLM_LEAVES;
    if (fsdpck_weight_in_layer(t->name, &layer) && layer >= f->nlayers)
        return layer - f->nlayers < f->nmtp ? FSDPCK_VLLM_LEAVES : FSDPCK_VLLM_UNKNOWN;
    return known && is_parameter(t->name, &out->cut) ? FSDPCK_VLLM_HOLDS : FSDPCK_VLLM_UNKNOWN;
}

int fsdpck_vllm_refuse(const struct fsdpck_vllm_ranks *r, const char *name, const char *source,
                       struct fsdpck_error *err)
{
    const struct fsdpck_family *f = &r->family;
    uint64_t layer;
    int rc;
    if (fsdpck_weight_in_layer(name, &layer) && layer >= f->nlayers) {
        rc = fsdpck_error_set(err, FSDPCK_ERR_FORMAT, source,
                              "is of layer %" PRIu64 ", and config.json names %" PRIu64 " layers and %" PRIu64
                              " for multi-token prediction",
                              layer, f->nlayers, f->nmtp);
        fsdpck_error_hint(err, "--exclude leaves it out");
    } else {
        rc = fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, source, "is no weight that vLLM holds of an unquantized %s",
                              f->model_type);
        fsdpck_error_hint(err, "--exclude leaves it out; quantized weights need --dequantize bf16");
    }
    fsdpck_error_tensor(err, name);
    return rc;
}

/* ---- sizes ---- */

static uint64_t padded(uint64_t vocab)
{
    return (vocab + VOCABULARY_MULTIPLE - 1) / VOCABULARY_MULTIPLE * VOCABULARY_MULTIPLE;
}

/* Heads of k or of v on one rank: fewer heads than ranks are held several times. */
static uint64_t local_kv_heads(const struct fsdpck_family *f, uint32_t nranks)
{
    return f->kv_heads >= nranks ? f->kv_heads / nranks : 1;
}

/* Earlier ranks have one expert more where the ranks do not divide them. */
static uint64_t local_experts(const struct fsdpck_vllm_ranks *r, uint32_t rank)
{
    return r->family.nexperts / r->n + (rank < r->family.nexperts % r->n);
}

static uint64_t first_expert(const struct fsdpck_vllm_ranks *r, uint32_t rank)
{
    const uint64_t more = r->family.nexperts % r->n;
    return r->family.nexperts / r->n * rank + (rank < more ? rank : more);
}

static int check_family(const struct fsdpck_vllm_ranks *r, const char *config, struct fsdpck_error *err)
{
    for (size_t i = 0; i < NFAMILIES; i++)
        if (strcmp(families[i], r->family.model_type) == 0)
            return 0;
    return fsdpck_config_refuse_family(config, r->family.model_type, "none whose weights are known by ranks of vLLM",
                                       families, NFAMILIES, sizeof *families, err);
}

int fsdpck_vllm_check_ranks(const struct fsdpck_vllm_ranks *r, const char *config, struct fsdpck_error *err)
{
    const struct fsdpck_family *f = &r->family;
    const uint32_t nranks = r->n;
    int rc = check_family(r, config, err);
    if (rc)
        return rc;
    const bool kv = f->kv_heads >= nranks ? f->kv_heads % nranks == 0 : nranks % f->kv_heads == 0;
    if (f->heads % nranks != 0 || !kv)
        return fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, config,
                                "%" PRIu64 " attention heads and %" PRIu64
                                " of k and v cannot be divided among %u ranks; vLLM wants the first to be a multiple "
                                "of the ranks, and the second a multiple or a divisor",
                                f->heads, f->kv_heads, nranks);
    if (!f->nlayers || f->nlayers > MAX_LAYERS || !f->vocab || f->vocab > MAX_LOCAL)
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, config, "has no usable num_hidden_layers and vocab_size");
    if (r->expert_parallel && f->nexperts < nranks)
        return fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, config,
                                "%" PRIu64 " expert%s cannot be spread over %u ranks, each of which has some",
                                f->nexperts, fsdpck_plural(f->nexperts), nranks);
    if (padded(f->vocab) % nranks != 0)
        return fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, config,
                                "a vocabulary of %" PRIu64 ", padded to %" PRIu64
                                ", cannot be divided among %u ranks, as vLLM does it",
                                f->vocab, padded(f->vocab), nranks);
    return 0;
}

uint64_t fsdpck_vllm_local(const struct fsdpck_vllm_ranks *r, const struct fsdpck_vllm_cut *c, uint32_t rank,
                           uint64_t whole)
{
    const struct fsdpck_family *f = &r->family;
    const uint32_t nranks = r->n;
    const uint64_t heads = f->heads + 2 * f->kv_heads, parts = (uint64_t)nranks * c->cut.nhalves;
    if (c->whole_experts)
        return whole == f->nexperts ? local_experts(r, rank) : 0;
    if (c->vocabulary)
        return whole == f->vocab ? padded(f->vocab) / nranks : 0;
    switch (c->cut.part) {
    case FSDPCK_PART_WHOLE: return whole;
    case FSDPCK_PART_QKV:
        return whole % heads ? 0 : whole / heads * (f->heads / nranks + 2 * local_kv_heads(f, nranks));
    default: return whole % parts ? 0 : whole / nranks;
    }
}

uint64_t fsdpck_vllm_whole(const struct fsdpck_vllm_ranks *r, const struct fsdpck_vllm_cut *c, uint64_t local)
{
    const struct fsdpck_family *f = &r->family;
    const uint32_t nranks = r->n;
    const uint64_t heads = f->heads / nranks + 2 * local_kv_heads(f, nranks);
    if (local > MAX_LOCAL)
        return 0;
    if (c->whole_experts)
        return local == local_experts(r, 0) ? f->nexperts : 0;
    if (c->vocabulary)
        return local == padded(f->vocab) / nranks ? f->vocab : 0;
    switch (c->cut.part) {
    case FSDPCK_PART_WHOLE: return local;
    case FSDPCK_PART_QKV: return local % heads ? 0 : local / heads * (f->heads + 2 * f->kv_heads);
    default: return local % c->cut.nhalves ? 0 : local * nranks;
    }
}

/* ---- slices ---- */

static size_t slices_of_heads(const struct fsdpck_family *f, uint32_t nranks, uint32_t rank, uint64_t whole,
                              struct fsdpck_vllm_slice out[3])
{
    const uint64_t dim = whole / (f->heads + 2 * f->kv_heads), nq = f->heads / nranks, nkv = local_kv_heads(f, nranks),
                   kv = f->kv_heads >= nranks ? rank * nkv : rank / (nranks / f->kv_heads);
    out[0] = (struct fsdpck_vllm_slice){ rank * nq * dim, 0, nq * dim };
    out[1] = (struct fsdpck_vllm_slice){ (f->heads + kv) * dim, nq * dim, nkv * dim };
    out[2] = (struct fsdpck_vllm_slice){ (f->heads + f->kv_heads + kv) * dim, (nq + nkv) * dim, nkv * dim };
    return 3;
}

size_t fsdpck_vllm_slices(const struct fsdpck_vllm_ranks *r, const struct fsdpck_vllm_cut *c, uint32_t rank,
                          uint64_t whole, struct fsdpck_vllm_slice out[3])
{
    const uint64_t local = fsdpck_vllm_local(r, c, rank, whole), n = local / c->cut.nhalves;
    if (c->cut.part == FSDPCK_PART_QKV)
        return slices_of_heads(&r->family, r->n, rank, whole, out);
    if (c->cut.part == FSDPCK_PART_WHOLE)
        out[0] = (struct fsdpck_vllm_slice){ 0, 0, whole };
    else if (c->whole_experts)
        out[0] = (struct fsdpck_vllm_slice){ first_expert(r, rank), 0, local };
    else if (c->vocabulary)
        out[0] = (struct fsdpck_vllm_slice){ rank * local, 0,
                                             rank * local >= whole          ? 0
                                             : whole - rank * local < local ? whole - rank * local
                                                                            : local };
    else
        for (uint32_t h = 0; h < c->cut.nhalves; h++)
            out[h] = (struct fsdpck_vllm_slice){ h * (whole / c->cut.nhalves) + rank * n, h * n, n };
    return c->cut.part == FSDPCK_PART_WHOLE || c->vocabulary ? 1 : c->cut.nhalves;
}
