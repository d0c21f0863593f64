/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters of the base that an adapter replaces, whole or by rows, as PEFT does when it loads the adapter. Checks
 * which copies fit, and how tied tensors affect them. */
#include "lora/merge_impl.h"

#include <string.h>

/* Checks that two tensors with the same target and shape hold the same values. */
static int check_same(const struct fsdpck_lora_merge *m, int64_t position, int64_t other, const struct lora_target *t,
                      struct fsdpck_error *err)
{
    bool same;
    int rc = fsdpck_lora_same(m->adapter, position, other, &same, err);
    if (rc || same)
        return rc;
    return fsdpck_lora_refuse(m->adapter, position, FSDPCK_ERR_UNSUPPORTED, err,
                              "the base ties '%s' to another tensor, and '%s' holds other values for the two",
                              lora_base_tensor(m, t)->name, lora_tensor(m->adapter, other)->name);
}

/* ---- whole parameters ---- */

static bool has_shape_of(const struct fsdpck_tensor *a, const struct fsdpck_tensor *b)
{
    bool same = a->ndim == b->ndim;
    for (uint32_t d = 0; same && d < a->ndim; d++)
        same = a->shape[d] == b->shape[d];
    return same;
}

/* The adapter may replace the layer inside an adapted one (base_layer); LoRA is then added to the copy. In PEFT an
 * adapted module has no other parameter of that name. */
static int check_products(const struct fsdpck_lora_merge *m, const struct fsdpck_lora_whole *w,
                          const struct lora_target *t, struct fsdpck_error *err)
{
    if (!t->products || m->adapter->names[w->position].role == LORA_BASE || lora_base_nnames(m, t) > 1)
        return 0;
    return fsdpck_lora_refuse(m->adapter, w->position, FSDPCK_ERR_FORMAT, err,
                              "LoRA of the adapter changes '%s' too; what lies below it is called "
                              "base_layer",
                              w->name);
}

static int replace(struct fsdpck_lora_merge *m, const struct fsdpck_lora_whole *w, struct fsdpck_error *err)
{
    struct lora_target *t;
    int rc = fsdpck_lora_merge_target(m, w->name, w->position, &t, err);
    if (!rc && !has_shape_of(lora_tensor(m->adapter, w->position), lora_base_tensor(m, t)))
        rc = fsdpck_lora_merge_misfit(m, t, w->position, "a model that was resized must be resized before", err);
    if (!rc)
        rc = check_products(m, w, t, err);
    if (!rc && t->whole)
        rc = check_same(m, w->position, t->whole->position, t, err);
    if (rc)
        return rc;
    t->whole = t->whole && t->whole->saved ? t->whole : w;
    t->nwhole++;
    m->used[w->position] = true;
    return 0;
}

/* PEFT trains a copy of a saved module; a copy of one tied tensor breaks the tie. */
static int check_tied(struct fsdpck_lora_merge *m, const struct fsdpck_lora_whole *w, struct fsdpck_error *err)
{
    struct lora_target *t;
    int rc = fsdpck_lora_merge_target(m, w->name, w->position, &t, err);
    if (rc || !w->saved || t->nwhole == lora_base_nnames(m, t) || m->adapter->config.ensure_tying)
        return rc;
    fsdpck_lora_refuse(m->adapter, w->position, FSDPCK_ERR_UNSUPPORTED, err,
                       "the base ties '%s' to another tensor; a copy for one of the two cannot be merged", w->name);
    fsdpck_error_hint(
        err, "merge into an untied base: with an lm_head.weight of its own and \"tie_word_embeddings\": false");
    return FSDPCK_ERR_UNSUPPORTED;
}

static int fail_missing(const struct fsdpck_lora_merge *m, const char *name, const char *saved,
                        struct fsdpck_error *err)
{
    const char *file = fsdpck_source_path(m->adapter->src);
    if (saved)
        return fsdpck_error_set(
            err, FSDPCK_ERR_MISSING, file,
            "has no tensor for the base's '%s', which modules_to_save trains: PEFT compares '%s' with the ends of "
            "modules' names",
            name, saved);
    return fsdpck_error_set(err, FSDPCK_ERR_MISSING, file, "has no tensor for the base's '%s', which 'bias' trains",
                            name);
}

/* Every parameter that the configuration calls trained must have a tensor; otherwise the base's untrained one would be
 * kept. */
static int check_there(struct fsdpck_lora_merge *m, size_t i, size_t *untouched, const char **first,
                       struct fsdpck_error *err)
{
    const struct fsdpck_lora_config *config = &m->adapter->config;
    const struct fsdpck_chosen *c = &m->selection->tensors[i];
    const struct lora_target *t = m->targets[c->alias_of >= 0 ? (size_t)c->alias_of : i];
    struct fsdpck_lora_name n;
    int rc = fsdpck_lora_name_parse(&m->arena, c->name, &n, err);
    const char *saved = !rc ? fsdpck_lora_config_saves(config, n.module) : NULL;
    if (rc)
        return rc;
    if ((saved || fsdpck_lora_trains_bias(m->adapter, &n)) && !(t && t->whole))
        return fail_missing(m, c->name, saved, err);
    if (t || saved || strcmp(n.leaf, "weight") != 0 || !fsdpck_lora_config_has_targets(config) ||
        !fsdpck_lora_config_targets(config, n.module) || fsdpck_lora_config_leaves_out(config, n.module))
        return 0;
    *first = *untouched ? *first : c->name;
    ++*untouched;
    return 0;
}

/* target_modules may match layers that the trained model did not have: extra heads, towers. */
static int check_all_there(struct fsdpck_lora_merge *m, struct fsdpck_error *err)
{
    const char *first = NULL;
    size_t untouched = 0;
    int rc = 0;
    for (size_t i = 0; i < m->selection->ntensors && !rc; i++)
        rc = check_there(m, i, &untouched, &first, err);
    if (!rc && untouched)
        fsdpck_lora_note(m->opt,
                         "target_modules reaches %zu of the base's tensors that the adapter has nothing for, '%s' the "
                         "first: they stay as they are",
                         untouched, first);
    return rc;
}

int fsdpck_lora_merge_whole(struct fsdpck_lora_merge *m, struct fsdpck_error *err)
{
    const struct fsdpck_lora_adapter *a = m->adapter;
    int rc = 0;
    for (size_t i = 0; i < a->whole.count && !rc; i++)
        rc = replace(m, &lora_whole(a)[i], err);
    for (size_t i = 0; i < a->whole.count && !rc; i++)
        rc = check_tied(m, &lora_whole(a)[i], err);
    return rc || !a->config.doc || a->config.only_tokens ? rc : check_all_there(m, err);
}

/* ---- trained tokens ---- */

static int check_fit(const struct fsdpck_lora_merge *m, const struct fsdpck_lora_tokens *k, const struct lora_target *t,
                     struct fsdpck_error *err)
{
    const struct fsdpck_tensor *own = lora_tensor(m->adapter, k->position), *base = lora_base_tensor(m, t);
    if (base->ndim != 2 || base->shape[1] != own->shape[1])
        return fsdpck_lora_merge_misfit(m, t, k->position, "rows of the base's are wanted", err);
    for (size_t i = 0; i < k->nrows; i++)
        if (k->rows[i] >= base->shape[0])
            return fsdpck_lora_refuse(m->adapter, k->position, FSDPCK_ERR_FORMAT, err,
                                      "is for token %llu, and the base's '%s' has %llu rows; a model that was resized "
                                      "must be resized before",
                                      (unsigned long long)k->rows[i], base->name, (unsigned long long)base->shape[0]);
    if (t->products)
        return fsdpck_lora_refuse(m->adapter, k->position, FSDPCK_ERR_UNSUPPORTED, err,
                                  "LoRA of the adapter changes '%s' too", base->name);
    return 0;
}

/* A tied head gets the embedding's rows. If the rows are the head's, PEFT unties the two. */
static int check_tokens_tied(const struct fsdpck_lora_merge *m, const struct fsdpck_lora_tokens *k,
                             const struct lora_target *t, struct fsdpck_error *err)
{
    const struct fsdpck_lora_tokens *other = t->tokens;
    bool same = other && other->nrows == k->nrows && memcmp(other->rows, k->rows, k->nrows * sizeof *k->rows) == 0;
    if (!other)
        return 0;
    if (!same)
        return fsdpck_lora_refuse(m->adapter, k->position, FSDPCK_ERR_UNSUPPORTED, err,
                                  "the base ties '%s' to another tensor, and '%s' is for other tokens",
                                  lora_base_tensor(m, t)->name, lora_tensor(m->adapter, other->position)->name);
    return check_same(m, k->position, other->position, t, err);
}

static bool is_second_name(const struct fsdpck_lora_merge *m, const char *name)
{
    return m->selection->tensors[fsdpck_names_find(&m->names, name)].alias_of >= 0;
}

static int replace_rows(struct fsdpck_lora_merge *m, const struct fsdpck_lora_tokens *k, bool second,
                        struct fsdpck_error *err)
{
    struct lora_target *t;
    const char *name = fsdpck_lora_merge_parameter(&m->arena, k->module, "weight", err);
    int rc = name ? fsdpck_lora_merge_target(m, name, k->position, &t, err) : FSDPCK_ERR_NOMEM;
    if (rc || is_second_name(m, name) != second)
        return rc;
    rc = check_fit(m, k, t, err);
    if (!rc && second && !t->tokens)
        rc = fsdpck_lora_refuse(m->adapter, k->position, FSDPCK_ERR_UNSUPPORTED, err,
                                "the base ties '%s' to '%s'; rows for one of the two cannot be merged", name,
                                lora_base_tensor(m, t)->name);
    if (!rc)
        rc = check_tokens_tied(m, k, t, err);
    if (rc)
        return rc;
    t->tokens = t->tokens ? t->tokens : k;
    m->used[k->position] = true;
    return 0;
}

int fsdpck_lora_merge_tokens(struct fsdpck_lora_merge *m, struct fsdpck_error *err)
{
    const struct fsdpck_lora_adapter *a = m->adapter;
    int rc = 0;
    for (int second = 0; second < 2; second++)
        for (size_t i = 0; i < a->tokens.count && !rc; i++)
            rc = replace_rows(m, &lora_tokens(a)[i], second, err);
    return rc;
}
