/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the tensor of the base that each tensor of an adapter changes, and refuses tensors that do not fit. Drops
 * nothing silently and guesses nothing. */
#include "lora/merge_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/shape_text.h"

static struct lora_target **list_of(const struct fsdpck_lora_merge *m)
{
    return m->list.data;
}

/* ---- names of the base ---- */

const char *fsdpck_lora_merge_parameter(struct fsdpck_arena *a, const char *module, const char *leaf,
                                        struct fsdpck_error *err)
{
    size_t nbytes = strlen(module) + strlen(leaf) + 2;
    char *text = fsdpck_arena_alloc(a, nbytes, err);
    if (text)
        snprintf(text, nbytes, "%s%s%s", module, *module ? "." : "", leaf);
    return text;
}

static int index_base(struct fsdpck_lora_merge *m, struct fsdpck_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < m->selection->ntensors && !rc; i++) {
        struct fsdpck_lora_name n;
        size_t old;
        rc = fsdpck_lora_name_parse(&m->arena, m->selection->tensors[i].name, &n, err);
        const char *name = !rc ? fsdpck_lora_merge_parameter(&m->arena, n.module, n.leaf, err) : NULL;
        if (!rc)
            rc = name ? fsdpck_names_add(&m->names, name, i, &old, err) : FSDPCK_ERR_NOMEM;
    }
    return rc;
}

static int no_such_tensor(const struct fsdpck_lora_merge *m, int64_t position, const char *name,
                          struct fsdpck_error *err)
{
    int rc = fsdpck_lora_refuse(m->adapter, position, FSDPCK_ERR_MISSING, err, "the base %s has no tensor '%s' for it",
                                fsdpck_source_path(m->base), name);
    fsdpck_error_hint(err, "is this the model that the adapter was trained on?");
    return rc;
}

/* Gets the target for a parameter of the model; makes it if the tensor has none yet. Several names of a tensor share
 * one target. */
int fsdpck_lora_merge_target(struct fsdpck_lora_merge *m, const char *name, int64_t position, struct lora_target **out,
                             struct fsdpck_error *err)
{
    size_t at = fsdpck_names_find(&m->names, name);
    if (at == SIZE_MAX)
        return no_such_tensor(m, position, name, err);
    const struct fsdpck_chosen *c = &m->selection->tensors[at];
    size_t stored = c->alias_of >= 0 ? (size_t)c->alias_of : at;
    struct lora_target *t = m->targets[stored];
    if (!t) {
        struct lora_target **slot = fsdpck_vec_push(&m->list, err);
        if (!slot || !(t = fsdpck_arena_alloc(&m->arena, sizeof *t, err)))
            return FSDPCK_ERR_NOMEM;
        t->chosen = (uint32_t)stored;
        *slot = m->targets[stored] = t;
    }
    *out = t;
    enum fsdpck_dtype dtype = lora_base_tensor(m, t)->dtype;
    if (dtype == FSDPCK_FLOAT32 || dtype == FSDPCK_FLOAT16 || dtype == FSDPCK_BFLOAT16)
        return 0;
    return fsdpck_lora_refuse(m->adapter, position, FSDPCK_ERR_UNSUPPORTED, err,
                              "the base's '%s' is %s; float32, float16 and bfloat16 can be merged into", name,
                              fsdpck_dtype_info(dtype)->name);
}

/* ---- shapes ---- */

int fsdpck_lora_merge_misfit(const struct fsdpck_lora_merge *m, const struct lora_target *t, int64_t position,
                             const char *wanted, struct fsdpck_error *err)
{
    char base[200], own[200];
    const struct fsdpck_tensor *b = lora_base_tensor(m, t);
    return fsdpck_lora_refuse(m->adapter, position, FSDPCK_ERR_FORMAT, err, "%s does not fit the base's '%s' %s%s%s",
                              fsdpck_shape_text(lora_tensor(m->adapter, position), own, sizeof own), b->name,
                              fsdpck_shape_text(b, base, sizeof base), *wanted ? "; " : "", wanted);
}

/* (out, in, …), as linear layers and convolutions are stored. */
static bool fits_straight(const struct fsdpck_tensor *w, const struct fsdpck_tensor *a, const struct fsdpck_tensor *b)
{
    bool fits = w->ndim == a->ndim && w->shape[0] == b->shape[0];
    for (uint32_t d = 1; fits && d < w->ndim; d++)
        fits = w->shape[d] == a->shape[d];
    return fits;
}

/* (in, out), as embeddings and GPT-2's Conv1D are stored. */
static bool fits_transposed(const struct fsdpck_tensor *w, const struct fsdpck_tensor *a, const struct fsdpck_tensor *b)
{
    return w->ndim == 2 && a->ndim == 2 && w->shape[0] == a->shape[1] && w->shape[1] == b->shape[0];
}

/* A square layer fits both ways; then the configuration decides. */
static int choose_orientation(const struct fsdpck_lora_merge *m, const struct lora_target *t,
                              const struct fsdpck_lora_module *module, bool *transposed, struct fsdpck_error *err)
{
    const struct fsdpck_tensor *w = lora_base_tensor(m, t), *a = lora_tensor(m->adapter, module->a),
                               *b = lora_tensor(m->adapter, module->b);
    bool straight = fits_straight(w, a, b) && !module->embedding, turned = fits_transposed(w, a, b);
    *transposed = module->embedding || (m->adapter->config.fan_in_fan_out && turned);
    if (*transposed ? turned : straight)
        return 0;
    return fsdpck_lora_merge_misfit(m, t, module->b,
                                    turned ? "it would with \"fan_in_fan_out\": true in adapter_config.json"
                                           : "B is wanted as [out, r], A as [r, in]",
                                    err);
}

/* ---- targets ---- */

/* The list doubles, because a tensor of fused experts has a product for each. */
static struct fsdpck_operand *push_product(struct fsdpck_lora_merge *m, struct lora_target *t, struct fsdpck_error *err)
{
    if (!t->products)
        t->products = &m->sets[m->nsets++];
    struct fsdpck_operand_set *p = t->products;
    if ((p->count & (p->count - 1)) == 0) {
        struct fsdpck_operand *more = fsdpck_arena_array(&m->arena, 2 * p->count + 1, sizeof *more, err);
        if (!more)
            return NULL;
        if (p->count)
            memcpy(more, p->list, p->count * sizeof *more);
        p->list = more;
    }
    return &p->list[p->count++];
}

int fsdpck_lora_merge_product(struct fsdpck_lora_merge *m, struct lora_target *t, const struct fsdpck_operand *product,
                              struct fsdpck_error *err)
{
    const struct fsdpck_lora_module *module = product->module;
    struct fsdpck_operand *x = push_product(m, t, err);
    if (!x)
        return FSDPCK_ERR_NOMEM;
    *x = *product;
    m->used[module->a] = m->used[module->b] = true;
    if (module->magnitude >= 0)
        m->used[module->magnitude] = true;
    if (t->products->count > 1 && (module->magnitude >= 0 || t->products->list->module->magnitude >= 0))
        return fsdpck_lora_refuse(m->adapter, module->a, FSDPCK_ERR_UNSUPPORTED, err,
                                  "two DoRA modules share one tensor of the base");
    return 0;
}

static int count_product(struct fsdpck_lora_merge *m, const struct fsdpck_lora_module *module, struct fsdpck_error *err)
{
    struct fsdpck_operand x = { .module = module, .step = 1 };
    struct lora_target *t;
    bool done;
    const char *name = fsdpck_lora_merge_parameter(&m->arena, module->path, "weight", err);
    int rc = name ? 0 : FSDPCK_ERR_NOMEM;
    if (!rc && fsdpck_names_find(&m->names, name) == SIZE_MAX) {
        rc = fsdpck_lora_merge_expert(m, module, &done, err);
        if (rc || done)
            return rc;
        rc = fsdpck_lora_merge_router(m, module->path, &name, err);
    }
    if (!rc)
        rc = fsdpck_lora_merge_target(m, name, module->a, &t, err);
    if (!rc)
        rc = choose_orientation(m, t, module, &x.transposed, err);
    if (rc)
        return rc;
    const struct fsdpck_tensor *w = lora_base_tensor(m, t);
    x.nrow = w->shape[0];
    x.ncol = w->nelem / w->shape[0];
    x.nout = lora_tensor(m->adapter, module->b)->shape[0];
    return fsdpck_lora_merge_product(m, t, &x, err);
}

static int add_vector(struct fsdpck_lora_merge *m, const struct fsdpck_lora_module *module, struct fsdpck_error *err)
{
    struct lora_target *t;
    if (module->bias < 0)
        return 0;
    const char *name = fsdpck_lora_merge_parameter(&m->arena, module->path, "bias", err);
    int rc = name ? fsdpck_lora_merge_target(m, name, module->bias, &t, err) : FSDPCK_ERR_NOMEM;
    if (!rc && lora_base_tensor(m, t)->nelem != lora_tensor(m->adapter, module->bias)->nelem)
        rc = fsdpck_lora_merge_misfit(m, t, module->bias, "", err);
    if (!rc) {
        t->vector = module;
        m->used[module->bias] = true;
    }
    return rc;
}

static int build(struct fsdpck_lora_merge *m, struct fsdpck_error *err)
{
    struct fsdpck_lora_adapter *a = m->adapter;
    int rc = index_base(m, err);
    for (size_t i = 0; i < a->modules.count && !rc; i++) {
        rc = count_product(m, &lora_modules(a)[i], err);
        if (!rc)
            rc = add_vector(m, &lora_modules(a)[i], err);
    }
    if (!rc)
        rc = fsdpck_lora_merge_whole(m, err);
    if (!rc)
        rc = fsdpck_lora_merge_tokens(m, err);
    if (!rc)
        rc = fsdpck_lora_merge_frozen(m, err);
    return rc ? rc : fsdpck_lora_adapter_check_used(a, m->used, m->opt, err);
}

static void note_ties(const struct fsdpck_lora_merge *m)
{
    for (size_t i = 0; i < m->list.count; i++)
        if (lora_base_nnames(m, list_of(m)[i]) > 1)
            fsdpck_lora_note(m->opt, "'%s' has two names in the base: the change is seen under both, as in PEFT",
                             lora_base_tensor(m, list_of(m)[i])->name);
}

/* PEFT replaces these parameters silently. */
static void note_whole(const struct fsdpck_lora_merge *m)
{
    const char *first;
    size_t n = fsdpck_lora_unnamed(m->adapter, &first);
    if (n == 1)
        fsdpck_lora_note(m->opt,
                         "the adapter's '%s' is a whole parameter that its configuration does not name: it replaces "
                         "the base's, as in PEFT",
                         first);
    else if (n)
        fsdpck_lora_note(m->opt,
                         "%zu tensors of the adapter, '%s' the first, are whole parameters that its configuration does "
                         "not name: they replace the base's, as in "
                         "PEFT",
                         n, first);
}

/* ---- the edit ---- */

static int begin(void *ctx, const struct fsdpck_selection *selection, struct fsdpck_error *err)
{
    struct fsdpck_lora_merge *m = ctx;
    m->selection = selection;
    m->targets = fsdpck_arena_array(&m->arena, selection->ntensors, sizeof(struct lora_target *), err);
    m->sets = fsdpck_arena_array(&m->arena, 2 * m->adapter->modules.count, sizeof *m->sets, err);
    m->used = fsdpck_arena_array(&m->arena, m->adapter->selection.ntensors, sizeof *m->used, err);
    int rc = m->targets && m->sets && m->used ? build(m, err) : FSDPCK_ERR_NOMEM;
    if (!rc)
        rc = fsdpck_operands_new(m->adapter, m->sets, m->nsets, m->memory_nbytes, &m->operands, err);
    if (!rc) {
        note_ties(m);
        note_whole(m);
        fsdpck_lora_note_config(m->adapter, m->opt);
        rc = fsdpck_lora_merge_factors(m, err);
    }
    return rc;
}

static bool wants(void *ctx, uint32_t tensor)
{
    const struct fsdpck_lora_merge *m = ctx;
    return m->targets[tensor] != NULL;
}

/* Before the commit: verifies that all bytes read from the adapter match its checksums. */
static int end(void *ctx, struct fsdpck_error *err)
{
    const struct fsdpck_lora_merge *m = ctx;
    return fsdpck_source_check(m->adapter->src, err);
}

int fsdpck_lora_merge_new(struct fsdpck_source *base, struct fsdpck_lora_adapter *a, const struct fsdpck_options *opt,
                          uint64_t memory_nbytes, struct fsdpck_lora_merge **out, struct fsdpck_error *err)
{
    int rc = a->config.doc ? fsdpck_lora_config_mergeable(&a->config, err) : 0;
    struct fsdpck_lora_merge *m = !rc ? calloc(1, sizeof *m) : NULL;
    *out = NULL;
    if (!m)
        return rc ? rc : fsdpck_error_nomem(err, sizeof *m);
    *m = (struct fsdpck_lora_merge){
        .base = base, .adapter = a, .opt = opt, .memory_nbytes = memory_nbytes, .list = FSDPCK_VEC(struct lora_target *)
    };
    m->edit =
        (struct fsdpck_edit){ .ctx = m, .begin = begin, .end = end, .wants = wants, .apply = fsdpck_lora_merge_apply };
    *out = m;
    return 0;
}

void fsdpck_lora_merge_free(struct fsdpck_lora_merge *m)
{
    if (!m)
        return;
    fsdpck_operands_free(m->operands);
    fsdpck_vec_free(&m->list);
    fsdpck_names_free(&m->names);
    fsdpck_arena_free(&m->arena);
    free(m);
}

const struct fsdpck_edit *fsdpck_lora_merge_edit(struct fsdpck_lora_merge *m)
{
    return &m->edit;
}
