/* SPDX-License-Identifier: Apache-2.0 */
/* Derives the lists of adapter_config.json from tensors. A module gets one key, the same in rank_pattern and
 * alpha_pattern, because old PEFT takes the first matching key of either. The key is the last part of the module's path
 * if all modules of that name agree, else the whole path. */
#include "lora/facts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- groups of modules ---- */

struct group {
    const char *key;
    const struct fsdpck_lora_module *first;
    size_t count;
    bool agree; /* they agree on rank and scaling */
};

struct groups {
    struct fsdpck_names names;
    struct fsdpck_vec list; /* struct group */
};

static const char *last_part(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

static struct group *group_of(struct groups *g, const char *key, struct fsdpck_error *err)
{
    size_t old;
    if (fsdpck_names_add(&g->names, key, g->list.count, &old, err) != 0)
        return NULL;
    if (old != SIZE_MAX)
        return (struct group *)g->list.data + old;
    struct group *new = fsdpck_vec_push(&g->list, err);
    if (new)
        *new = (struct group){ .key = key, .agree = true };
    return new;
}

static void free_groups(struct groups *g)
{
    fsdpck_names_free(&g->names);
    fsdpck_vec_free(&g->list);
}

static int group_modules(const struct fsdpck_lora_adapter *a, struct groups *g, struct fsdpck_error *err)
{
    const struct fsdpck_lora_module *m = lora_modules(a);
    for (size_t i = 0; i < a->modules.count; i++) {
        struct group *x = group_of(g, last_part(m[i].path), err);
        if (!x)
            return FSDPCK_ERR_NOMEM;
        if (!x->first)
            x->first = &m[i];
        x->agree = x->agree && m[i].r == x->first->r && m[i].alpha == x->first->alpha;
        x->count++;
    }
    return 0;
}

/* ---- layers ---- */

/* Returns the module's path with '#' for the layer's number: "model.layers.#.self_attn.q_proj". */
static const char *module_pattern(struct fsdpck_arena *a, const char *path, const struct fsdpck_lora_layer *p,
                                  struct fsdpck_error *err)
{
    size_t nbytes = strlen(path) + 3;
    char *text = fsdpck_arena_alloc(a, nbytes, err);
    if (text)
        snprintf(text, nbytes, "%.*s#%s", (int)p->before, path, path + p->after);
    return text;
}

/* Experts that were cut out are not counted: a layer has all of them, or is no mixture. Counts the layers of each stack
 * (stacks), and the layers that have each module (modules). */
static int count_layers(struct fsdpck_lora_adapter *a, struct groups *layers, struct groups *stacks,
                        struct groups *modules, struct fsdpck_error *err)
{
    const struct fsdpck_lora_module *m = lora_modules(a);
    struct fsdpck_lora_layer p;
    for (size_t i = 0; i < a->modules.count; i++) {
        if (m[i].named != m[i].path || !fsdpck_lora_layer_find(m[i].path, &p))
            continue;
        const char *layer = fsdpck_arena_strndup(&a->arena, m[i].path, p.after, err),
                   *module = layer ? module_pattern(&a->arena, m[i].path, &p, err) : NULL;
        const char *stack = module ? fsdpck_arena_strndup(&a->arena, module, p.before, err) : NULL;
        struct group *l = layer ? group_of(layers, layer, err) : NULL, *s = stack ? group_of(stacks, stack, err) : NULL;
        struct group *x = l && s ? group_of(modules, module, err) : NULL;
        if (!x)
            return FSDPCK_ERR_NOMEM;
        s->count += l->count++ == 0;
        x->count++;
        x->first = &m[i];
    }
    return 0;
}

/* Gives a note about one module that only some layers have. */
static bool find_gap(struct fsdpck_lora_adapter *a, const struct groups *stacks, const struct groups *modules,
                     const struct fsdpck_options *opt)
{
    const struct group *x = modules->list.data, *s = stacks->list.data;
    struct fsdpck_lora_layer p;
    for (size_t i = 0; i < modules->list.count; i++) {
        size_t before = fsdpck_lora_layer_find(x[i].first->path, &p) ? p.before : 0;
        for (size_t k = 0; k < stacks->list.count; k++)
            if (strlen(s[k].key) == before && strncmp(s[k].key, x[i].key, before) == 0 && x[i].count < s[k].count) {
                if (!fsdpck_lora_config_picks_layers(&a->config))
                    fsdpck_lora_note(opt,
                                     "'%s' has LoRA in %zu of %zu layers: where the model has it in all of them, "
                                     "tensors are missing",
                                     x[i].key, x[i].count, s[k].count);
                return true;
            }
    }
    return false;
}

/* Returns whether the model has a module with the name of an adapted one, but without an adapter. */
static bool has_unadapted(const struct fsdpck_lora_adapter *a, const struct groups *g)
{
    for (size_t i = 0; i < a->selection.ntensors; i++)
        if (a->names[i].role <= LORA_BASE && strcmp(a->names[i].leaf, "weight") == 0 &&
            fsdpck_names_find(&a->index, a->names[i].module) == SIZE_MAX &&
            fsdpck_names_find(&g->names, last_part(a->names[i].module)) != SIZE_MAX)
            return true;
    return false;
}

static int is_regular(struct fsdpck_lora_adapter *a, const struct groups *g, const struct fsdpck_options *opt,
                      bool *regular, struct fsdpck_error *err)
{
    struct groups layers = { .list = FSDPCK_VEC(struct group) }, stacks = { .list = FSDPCK_VEC(struct group) },
                  modules = { .list = FSDPCK_VEC(struct group) };
    int rc = count_layers(a, &layers, &stacks, &modules, err);
    if (!rc)
        *regular = !find_gap(a, &stacks, &modules, opt) && !has_unadapted(a, g);
    free_groups(&layers);
    free_groups(&stacks);
    free_groups(&modules);
    return rc;
}

/* ---- as JSON ---- */

static int keep(struct fsdpck_lora_adapter *a, struct fsdpck_text *t, const char **out, struct fsdpck_error *err)
{
    int rc = fsdpck_text_check(t, err);
    if (!rc && !(*out = fsdpck_arena_strndup(&a->arena, t->data, t->nbytes, err)))
        rc = FSDPCK_ERR_NOMEM;
    fsdpck_text_free(t);
    return rc;
}

static int by_number(const void *x, const void *y)
{
    uint64_t a = *(const uint64_t *)x, b = *(const uint64_t *)y;
    return a < b ? -1 : a > b;
}

/* Uses the configuration's rank, or the most common one if no module has it. */
static int default_rank(struct fsdpck_lora_adapter *a, uint64_t *best, struct fsdpck_error *err)
{
    uint64_t *r = fsdpck_arena_array(&a->arena, a->modules.count, sizeof *r, err);
    size_t most = 0, run = 0;
    if (!r)
        return FSDPCK_ERR_NOMEM;
    for (size_t i = 0; i < a->modules.count; i++)
        r[i] = lora_modules(a)[i].r;
    qsort(r, a->modules.count, sizeof *r, by_number);
    for (size_t i = 0; i < a->modules.count; i++) {
        run = i && r[i] == r[i - 1] ? run + 1 : 1;
        if (run > most || r[i] == a->config.r) {
            *best = r[i];
            most = r[i] == a->config.r ? SIZE_MAX : run;
        }
    }
    return 0;
}

/* Whether PEFT adapts the module's weight as a parameter: as the configuration has it, beside fused experts. */
static bool is_parameter(const struct fsdpck_lora_adapter *a, const struct fsdpck_lora_module *m)
{
    bool fused = false;
    for (size_t i = 0; i < a->modules.count && !fused; i++)
        fused = lora_modules(a)[i].wrapper != NULL;
    return fused && !m->wrapper && fsdpck_lora_config_targets_weight(&a->config, m->path);
}

/* The key of a module in patterns and lists, given its path or the last part of that; NULL: no memory. */
static const char *key_of(struct fsdpck_lora_adapter *a, const struct fsdpck_lora_module *m, const char *path,
                          struct fsdpck_error *err)
{
    const size_t nbytes = strlen(path) + sizeof ".weight";
    char *text = is_parameter(a, m) ? fsdpck_arena_alloc(&a->arena, nbytes, err) : NULL;
    if (!text)
        return is_parameter(a, m) ? NULL : path;
    snprintf(text, nbytes, "%s.weight", path);
    return text;
}

static int add_pattern(struct fsdpck_lora_adapter *a, struct fsdpck_text *t, const char *path, bool rank,
                       const struct fsdpck_lora_module *m, struct fsdpck_error *err)
{
    const char *key = key_of(a, m, path, err);
    if (!key)
        return FSDPCK_ERR_NOMEM;
    fsdpck_text_printf(t, t->nbytes > 1 ? "," : "");
    fsdpck_text_json(t, key);
    fsdpck_text_printf(t, ":");
    if (rank)
        fsdpck_text_printf(t, "%llu", (unsigned long long)m->r);
    else
        fsdpck_lora_config_number(t, m->alpha);
    return 0;
}

static int write_pattern(struct fsdpck_lora_adapter *a, const struct groups *g, bool rank,
                         const struct fsdpck_lora_facts *f, const char **out, struct fsdpck_error *err)
{
    struct fsdpck_text t = { 0 };
    const struct fsdpck_lora_module *m = lora_modules(a);
    const struct group *list = g->list.data;
    int rc = 0;
    fsdpck_text_printf(&t, "{");
    for (size_t i = 0; i < g->list.count && !rc; i++)
        if (list[i].agree && (rank ? list[i].first->r != f->r : list[i].first->alpha != f->alpha))
            rc = add_pattern(a, &t, list[i].key, rank, list[i].first, err);
    for (size_t i = 0; i < a->modules.count && !rc; i++)
        if (!list[fsdpck_names_find(&g->names, last_part(m[i].path))].agree &&
            (rank ? m[i].r != f->r : m[i].alpha != f->alpha))
            rc = add_pattern(a, &t, m[i].path, rank, &m[i], err);
    fsdpck_text_printf(&t, "}");
    if (!rc)
        return keep(a, &t, out, err);
    fsdpck_text_free(&t);
    return rc;
}

static int by_text(const void *x, const void *y)
{
    return strcmp(*(const char *const *)x, *(const char *const *)y);
}

static int write_list(struct fsdpck_lora_adapter *a, const char **names, size_t count, const char **out,
                      struct fsdpck_error *err)
{
    struct fsdpck_text t = { 0 };
    if (count)
        qsort(names, count, sizeof *names, by_text);
    fsdpck_text_printf(&t, "[");
    for (size_t i = 0; i < count; i++)
        if (i == 0 || strcmp(names[i], names[i - 1]) != 0) {
            fsdpck_text_printf(&t, i ? "," : "");
            fsdpck_text_json(&t, names[i]);
        }
    fsdpck_text_printf(&t, "]");
    return keep(a, &t, out, err);
}

/* "experts.gate_up_proj", "gate.weight": of modules that are parameters to PEFT. */
static int write_parameters(struct fsdpck_lora_adapter *a, bool regular, const char **out, struct fsdpck_error *err)
{
    const char **names = fsdpck_arena_array(&a->arena, a->modules.count, sizeof *names, err);
    size_t n = 0;
    for (size_t i = 0; names && i < a->modules.count; i++) {
        const struct fsdpck_lora_module *m = &lora_modules(a)[i];
        if (m->wrapper)
            names[n++] = strrchr(m->path, '.') - strlen("experts");
        else if (is_parameter(a, m) && !(names[n++] = key_of(a, m, regular ? last_part(m->path) : m->path, err)))
            return FSDPCK_ERR_NOMEM;
    }
    return !names ? FSDPCK_ERR_NOMEM : n ? write_list(a, names, n, out, err) : 0;
}

static int write_targets(struct fsdpck_lora_adapter *a, bool regular, const char **out, struct fsdpck_error *err)
{
    const char **names = fsdpck_arena_array(&a->arena, a->modules.count, sizeof *names, err);
    size_t n = 0;
    for (size_t i = 0; names && i < a->modules.count; i++)
        if (!lora_modules(a)[i].wrapper && !is_parameter(a, &lora_modules(a)[i]))
            names[n++] = regular ? last_part(lora_modules(a)[i].path) : lora_modules(a)[i].path;
    return names ? write_list(a, names, n, out, err) : FSDPCK_ERR_NOMEM;
}

/* Lists the configuration's names that have tensors, and the modules that it does not name. */
static int write_saved(struct fsdpck_lora_adapter *a, const char **out, struct fsdpck_error *err)
{
    const char *name, **names;
    size_t n = 0, most = a->whole.count;
    for (size_t i = 0; a->config.doc && fsdpck_lora_config_saved_name(&a->config, i); i++)
        most++;
    if (!(names = fsdpck_arena_array(&a->arena, most, sizeof *names, err)))
        return FSDPCK_ERR_NOMEM;
    for (size_t i = 0; i < a->whole.count; i++)
        if (lora_whole(a)[i].saved)
            names[n++] = lora_whole(a)[i].saved;
    for (size_t i = 0; a->config.doc && (name = fsdpck_lora_config_saved_name(&a->config, i)); i++)
        if (fsdpck_lora_is_saved(a, name))
            names[n++] = name;
    *out = "null";
    return n ? write_list(a, names, n, out, err) : 0;
}

int fsdpck_lora_facts(struct fsdpck_lora_adapter *a, const struct fsdpck_options *opt, struct fsdpck_lora_facts *out,
                      struct fsdpck_error *err)
{
    struct groups g = { .list = FSDPCK_VEC(struct group) };
    bool regular = true;
    *out = (struct fsdpck_lora_facts){ .alpha = a->config.alpha, .one_by_one = a->split.nexperts > 0 || a->joined };
    if (!a->modules.count) /* trained tokens alone: the configuration already states them */
        return 0;
    out->dora = lora_modules(a)->magnitude >= 0;
    int rc = default_rank(a, &out->r, err);
    if (!rc)
        rc = group_modules(a, &g, err);
    if (!rc)
        rc = is_regular(a, &g, opt, &regular, err);
    if (!rc)
        rc = write_pattern(a, &g, true, out, &out->rank_pattern, err);
    if (!rc)
        rc = write_pattern(a, &g, false, out, &out->alpha_pattern, err);
    if (!rc && (out->one_by_one || !fsdpck_lora_config_has_targets(&a->config)))
        rc = write_targets(a, regular, &out->target_modules, err);
    if (!rc)
        rc = write_parameters(a, regular, &out->target_parameters, err);
    if (!rc)
        rc = write_saved(a, &out->modules_to_save, err);
    free_groups(&g);
    return rc;
}
