/* SPDX-License-Identifier: Apache-2.0 */
/* Checks an adapter's tensors against each other and against its configuration. Refuses everything that PEFT would
 * silently drop, fill in or misread. Reads shapes only, no payload. */
#include "lora/adapter.h"

#include <math.h>
#include <string.h>

double fsdpck_lora_scale(const struct fsdpck_lora_adapter *a, const struct fsdpck_lora_module *m)
{
    return m->alpha / (a->config.rslora ? sqrt((double)m->r) : (double)m->r);
}

/* ---- tensors ---- */

static int check_one(const struct fsdpck_lora_adapter *a, int64_t at, struct fsdpck_error *err)
{
    const struct fsdpck_tensor *t = lora_tensor(a, at);
    if (t->dtype > FSDPCK_BFLOAT16)
        return fsdpck_lora_refuse(a, at, FSDPCK_ERR_UNSUPPORTED, err,
                                  "an adapter tensor of dtype %s; float64, float32, float16 and bfloat16 are supported",
                                  fsdpck_dtype_info(t->dtype)->name);
    if (t->nelem == 0)
        return fsdpck_lora_refuse(a, at, FSDPCK_ERR_FORMAT, err, "an adapter tensor without elements");
    return 0;
}

static int check_shapes(const struct fsdpck_lora_adapter *a, const struct fsdpck_lora_module *m,
                        struct fsdpck_error *err)
{
    const struct fsdpck_tensor *ta = lora_tensor(a, m->a), *tb = lora_tensor(a, m->b);
    if (ta->ndim < 2 || (m->embedding && ta->ndim != 2))
        return fsdpck_lora_refuse(a, m->a, FSDPCK_ERR_FORMAT, err, "has %u dimensions, LoRA's A has %s", ta->ndim,
                                  m->embedding ? "2" : "2 and more");
    if (tb->ndim != ta->ndim)
        return fsdpck_lora_refuse(a, m->b, FSDPCK_ERR_FORMAT, err, "has %u dimensions, its A '%s' has %u", tb->ndim,
                                  ta->name, ta->ndim);
    if (tb->shape[1] != ta->shape[0])
        return fsdpck_lora_refuse(a, m->b, FSDPCK_ERR_FORMAT, err,
                                  "B is [%llu, %llu], A '%s' is [%llu, %llu]: ranks %llu and %llu do not fit",
                                  (unsigned long long)tb->shape[0], (unsigned long long)tb->shape[1], ta->name,
                                  (unsigned long long)ta->shape[0], (unsigned long long)ta->shape[1],
                                  (unsigned long long)tb->shape[1], (unsigned long long)ta->shape[0]);
    for (uint32_t d = 2; d < tb->ndim; d++)
        if (tb->shape[d] != 1)
            return fsdpck_lora_refuse(a, m->b, FSDPCK_ERR_FORMAT, err,
                                      "a convolution's B has size %llu in dimension %u, 1 is wanted",
                                      (unsigned long long)tb->shape[d], d);
    return 0;
}

/* Checks a vector with one value for each output. */
static int check_vector(const struct fsdpck_lora_adapter *a, const struct fsdpck_lora_module *m, int64_t at,
                        struct fsdpck_error *err)
{
    uint64_t nout = lora_tensor(a, m->b)->shape[0], n = lora_tensor(a, at)->nelem;
    int rc = check_one(a, at, err);
    if (!rc && n != nout)
        rc = fsdpck_lora_refuse(a, at, FSDPCK_ERR_FORMAT, err, "has %llu values, the module has %llu outputs",
                                (unsigned long long)n, (unsigned long long)nout);
    return rc;
}

static int check_pair(const struct fsdpck_lora_adapter *a, const struct fsdpck_lora_module *m, struct fsdpck_error *err)
{
    if (m->a < 0 || m->b < 0) {
        int64_t there = m->a >= 0 ? m->a : m->b >= 0 ? m->b : m->magnitude >= 0 ? m->magnitude : m->bias;
        return fsdpck_lora_refuse(a, there, FSDPCK_ERR_MISSING, err, "its module has no %s",
                                  m->a < 0 ? "lora_A" : "lora_B");
    }
    if ((a->names[m->a].role == LORA_A) != (a->names[m->b].role == LORA_B))
        return fsdpck_lora_refuse(a, m->b, FSDPCK_ERR_FORMAT, err,
                                  "its A is '%s': one is an embedding's, the other not", lora_tensor(a, m->a)->name);
    int rc = check_one(a, m->a, err);
    if (!rc)
        rc = check_one(a, m->b, err);
    if (!rc)
        rc = check_shapes(a, m, err);
    if (!rc && m->bias >= 0)
        rc = check_vector(a, m, m->bias, err);
    if (!rc && m->magnitude >= 0)
        rc = check_vector(a, m, m->magnitude, err);
    return rc;
}

/* ---- tensors against the configuration ---- */

static int contradicts(const struct fsdpck_lora_adapter *a, int64_t at, struct fsdpck_error *err, const char *fmt,
                       unsigned long long x, unsigned long long y)
{
    int rc = fsdpck_lora_refuse(a, at, FSDPCK_ERR_FORMAT, err, fmt, x, y);
    fsdpck_error_hint(err, "the configuration is that of another adapter: %s", a->config.file);
    return rc;
}

static int check_rank(struct fsdpck_lora_adapter *a, struct fsdpck_lora_module *m, struct fsdpck_error *err)
{
    uint64_t r;
    m->r = lora_tensor(a, m->a)->shape[0];
    m->alpha = a->config.alpha;
    if (!a->config.doc)
        return 0;
    int rc = fsdpck_lora_config_rank(&a->config, m->named, &r, err);
    if (!rc && r != m->r)
        rc = contradicts(a, m->a, err, "has rank %llu, " FSDPCK_LORA_CONFIG_NAME " says %llu", m->r, r);
    return rc ? rc : fsdpck_lora_config_alpha(&a->config, m->named, &m->alpha, err);
}

static int check_features(const struct fsdpck_lora_adapter *a, const struct fsdpck_lora_module *m,
                          struct fsdpck_error *err)
{
    const struct fsdpck_lora_module *first = lora_modules(a);
    bool dora = a->config.doc ? a->config.dora : first->magnitude >= 0,
         bias = a->config.doc ? a->config.lora_bias : first->bias >= 0;
    const char *who = a->config.doc ? FSDPCK_LORA_CONFIG_NAME " says" : "other modules say";
    if (dora != (m->magnitude >= 0))
        return fsdpck_lora_refuse(a, m->magnitude >= 0 ? m->magnitude : m->a, FSDPCK_ERR_FORMAT, err,
                                  "%s %s, but its module has %s lora_magnitude_vector", who, dora ? "DoRA" : "no DoRA",
                                  dora ? "no" : "a");
    if (!m->embedding && bias != (m->bias >= 0))
        return fsdpck_lora_refuse(a, m->bias >= 0 ? m->bias : m->a, FSDPCK_ERR_FORMAT, err,
                                  "%s %s, but its module has %s lora_B.bias", who, bias ? "lora_bias" : "no lora_bias",
                                  bias ? "no" : "a");
    if (a->config.doc && m->named == m->path && !fsdpck_lora_config_targets(&a->config, m->path))
        return contradicts(a, m->a, err, FSDPCK_LORA_CONFIG_NAME "'s target_modules do not reach this module", 0, 0);
    const char *key = a->config.doc ? fsdpck_lora_config_leaves_out(&a->config, m->path) : NULL;
    int rc = key ? fsdpck_lora_refuse(a, m->a, FSDPCK_ERR_FORMAT, err,
                                      FSDPCK_LORA_CONFIG_NAME "'s %s leaves this module out", key)
                 : 0;
    if (rc)
        fsdpck_error_hint(err, "the configuration is that of another adapter: %s", a->config.file);
    return rc;
}

/* ---- trained tokens ---- */

static int check_tokens(const struct fsdpck_lora_adapter *a, const struct fsdpck_lora_tokens *t,
                        struct fsdpck_error *err)
{
    const struct fsdpck_tensor *own = lora_tensor(a, t->position);
    const char *key = a->config.only_tokens ? "token_indices" : "trainable_token_indices";
    if (!t->rows)
        return fsdpck_lora_refuse(
            a, t->position, FSDPCK_ERR_MISSING, err, "nothing says which tokens its rows are of: %s has no %s for it",
            a->config.doc ? FSDPCK_LORA_CONFIG_NAME : "no " FSDPCK_LORA_CONFIG_NAME " was given, and so", key);
    int rc = check_one(a, t->position, err);
    if (!rc && own->ndim != 2)
        rc = fsdpck_lora_refuse(a, t->position, FSDPCK_ERR_FORMAT, err,
                                "has %u dimensions, rows of an embedding have 2", own->ndim);
    if (!rc && own->shape[0] != t->nrows)
        rc = fsdpck_lora_refuse(a, t->position, FSDPCK_ERR_FORMAT, err,
                                "has %llu rows, " FSDPCK_LORA_CONFIG_NAME "'s %s has %zu token%s",
                                (unsigned long long)own->shape[0], key, t->nrows, fsdpck_plural(t->nrows));
    return rc;
}

static int check_all_tokens(const struct fsdpck_lora_adapter *a, struct fsdpck_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < a->tokens.count && !rc; i++)
        rc = check_tokens(a, &lora_tokens(a)[i], err);
    if (rc || a->tokens.count || !a->config.doc || !fsdpck_lora_config_has(&a->config, "trainable_token_indices"))
        return rc;
    return fsdpck_error_set(err, FSDPCK_ERR_MISSING, fsdpck_source_path(a->src),
                            "%s has trainable_token_indices, but there is no tensor trainable_tokens_delta",
                            a->config.file);
}

/* Besides LoRA, an adapted layer has a base_layer and its bias. Any other tensor belongs to another method or another
 * program, for example a scaling. */
static int check_whole(const struct fsdpck_lora_adapter *a, const struct fsdpck_lora_whole *w, struct fsdpck_error *err)
{
    const struct fsdpck_lora_name *n = &a->names[w->position];
    if (n->role == LORA_PLAIN && !w->saved && strcmp(n->leaf, "bias") != 0 &&
        fsdpck_names_find(&a->index, n->module) != SIZE_MAX)
        return fsdpck_lora_refuse(
            a, w->position, FSDPCK_ERR_UNSUPPORTED, err,
            "its module is adapted: PEFT has no such tensor there, and calls the layer below base_layer");
    return check_one(a, w->position, err);
}

/* A frozen layer that is wrapped for an adapter must have that adapter's tensors beside it; otherwise they were
 * lost. */
static int check_wrapped(const struct fsdpck_lora_adapter *a, struct fsdpck_error *err)
{
    struct fsdpck_names any = { 0 };
    size_t old;
    int rc = 0;
    for (size_t i = 0; i < a->selection.ntensors && !rc; i++)
        if (a->names[i].role > LORA_BASE)
            rc = fsdpck_names_add(&any, a->names[i].module, i, &old, err);
    for (size_t i = 0; i < a->selection.ntensors && !rc; i++)
        if ((a->names[i].role == LORA_BASE || a->names[i].role == LORA_ORIGINAL) &&
            fsdpck_names_find(&any, a->names[i].module) == SIZE_MAX)
            rc = fsdpck_lora_refuse(a, (int64_t)i, FSDPCK_ERR_MISSING, err,
                                    "the layer is adapted, but its module has no LoRA tensors");
    fsdpck_names_free(&any);
    return rc;
}

int fsdpck_lora_adapter_check(struct fsdpck_lora_adapter *a, struct fsdpck_error *err)
{
    struct fsdpck_lora_module *m = lora_modules(a);
    int rc = 0;
    if (a->config.only_tokens && a->modules.count)
        return contradicts(a, m->a >= 0 ? m->a : m->b, err,
                           "is LoRA's, and " FSDPCK_LORA_CONFIG_NAME "'s peft_type is TRAINABLE_TOKENS", 0, 0);
    if (a->modules.count == 0 && a->tokens.count == 0)
        return fsdpck_error_set(err, FSDPCK_ERR_MISSING, fsdpck_source_path(a->src),
                                "adapter '%s' has no pair of lora_A and lora_B", a->name);
    for (size_t i = 0; i < a->modules.count && !rc; i++)
        rc = check_pair(a, &m[i], err);
    for (size_t i = 0; i < a->modules.count && !rc; i++)
        if ((rc = check_rank(a, &m[i], err)) == 0)
            rc = check_features(a, &m[i], err);
    for (size_t i = 0; i < a->whole.count && !rc; i++)
        rc = check_whole(a, &lora_whole(a)[i], err);
    if (!rc)
        rc = check_all_tokens(a, err);
    return rc ? rc : check_wrapped(a, err);
}
