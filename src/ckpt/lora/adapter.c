/* SPDX-License-Identifier: Apache-2.0 */
/* Finds an adapter among a source's tensors: parses every name, selects the adapter, and joins A, B and the tensors
 * that belong to them. adapter_open.c takes all steps in order. */
#include "lora/adapter.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int fsdpck_lora_refuse(const struct fsdpck_lora_adapter *a, int64_t position, int code, struct fsdpck_error *err,
                       const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fsdpck_error_set(err, code, fsdpck_source_path(a->src), "%s", text);
    fsdpck_error_tensor(err, lora_tensor(a, position)->name);
    return code;
}

void fsdpck_lora_note(const struct fsdpck_options *opt, const char *fmt, ...)
{
    char line[1024];
    va_list ap;
    if (!opt->note)
        return;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    opt->note(opt->ctx, line);
}

/* ---- which adapter ---- */

static bool is_adapter(enum fsdpck_lora_role role)
{
    return role >= LORA_A;
}

static int parse_names(struct fsdpck_lora_adapter *a, struct fsdpck_error *err)
{
    int rc = 0;
    a->names = fsdpck_arena_array(&a->arena, a->selection.ntensors, sizeof *a->names, err);
    if (!a->names)
        return FSDPCK_ERR_NOMEM;
    for (size_t i = 0; i < a->selection.ntensors && !rc; i++) {
        rc = fsdpck_lora_name_parse(&a->arena, a->selection.tensors[i].name, &a->names[i], err);
        if (!rc && a->names[i].role == LORA_UNKNOWN)
            rc = fsdpck_lora_refuse(a, (int64_t)i, FSDPCK_ERR_UNSUPPORTED, err,
                                    "an adapter tensor of a kind that is not supported");
    }
    return rc;
}

/* PEFT uses the name "default" for an adapter without a name, and omits the name in files. */
static const char *name_or_default(const char *adapter)
{
    return *adapter ? adapter : "default";
}

static int no_adapter(const struct fsdpck_lora_adapter *a, struct fsdpck_error *err)
{
    fsdpck_error_set(err, FSDPCK_ERR_MISSING, fsdpck_source_path(a->src),
                     "none of the %zu tensor%s is a LoRA adapter's (….lora_A.weight, ….lora_B.weight)",
                     a->selection.ntensors, fsdpck_plural(a->selection.ntensors));
    if (a->selection.ntensors < fsdpck_source_ntensors(a->src))
        fsdpck_error_hint(err, "the source has %zu: --select, --include and --exclude say which of them are looked at",
                          fsdpck_source_ntensors(a->src));
    return FSDPCK_ERR_MISSING;
}

struct adapter_count {
    const char *name;
    int64_t first;
    size_t count;
};

static size_t count_adapters(const struct fsdpck_lora_adapter *a, struct adapter_count *seen, size_t most)
{
    size_t n = 0;
    for (size_t i = 0; i < a->selection.ntensors; i++) {
        const char *name = name_or_default(a->names[i].adapter);
        size_t k = 0;
        if (!is_adapter(a->names[i].role))
            continue;
        while (k < n && strcmp(seen[k].name, name) != 0)
            k++;
        if (k == n && n < most)
            seen[n++] = (struct adapter_count){ .name = name, .first = (int64_t)i };
        if (k < n)
            seen[k].count++;
    }
    return n;
}

/* The error names a tensor of the smallest adapter: if only one adapter was intended, this is the stray one. */
static int fail_ambiguous(const struct fsdpck_lora_adapter *a, const char *wanted, struct fsdpck_error *err)
{
    struct adapter_count seen[8];
    char list[300] = "";
    size_t n = count_adapters(a, seen, 8), at = 0, least = 0;
    for (size_t i = 0; i < n && at < sizeof list - 1; i++) {
        at += (size_t)snprintf(list + at, sizeof list - at, "%s'%s'", i ? ", " : "", seen[i].name);
        least = seen[i].count < seen[least].count || (seen[i].count == seen[least].count && i == 1) ? i : least;
    }
    if (wanted)
        fsdpck_error_set(err, FSDPCK_ERR_USAGE, fsdpck_source_path(a->src), "there is no adapter '%s'; there is %s",
                         wanted, list);
    else
        fsdpck_lora_refuse(a, seen[least].first, FSDPCK_ERR_USAGE, err,
                           "is one adapter's of several (%s): which one is meant?", list);
    fsdpck_error_hint(err, "choose one: --adapter NAME");
    return FSDPCK_ERR_USAGE;
}

static int choose_adapter(struct fsdpck_lora_adapter *a, const char *wanted, struct fsdpck_error *err)
{
    const char *only = NULL;
    bool found = false, more = false;
    for (size_t i = 0; i < a->selection.ntensors; i++) {
        if (!is_adapter(a->names[i].role))
            continue;
        const char *name = name_or_default(a->names[i].adapter);
        found = found || (wanted && strcmp(name, wanted) == 0);
        more = more || (only && strcmp(only, name) != 0);
        only = only ? only : name;
    }
    if (!only)
        return no_adapter(a, err);
    if (wanted ? !found : more)
        return fail_ambiguous(a, wanted, err);
    a->name = wanted ? wanted : only;
    return 0;
}

/* ---- its tensors ---- */

static struct fsdpck_lora_module *module_of(struct fsdpck_lora_adapter *a, const char *path, struct fsdpck_error *err)
{
    size_t old;
    if (fsdpck_names_add(&a->index, path, a->modules.count, &old, err) != 0)
        return NULL;
    if (old != SIZE_MAX)
        return &lora_modules(a)[old];
    struct fsdpck_lora_module *m = fsdpck_vec_push(&a->modules, err);
    if (m)
        *m = (struct fsdpck_lora_module){ .path = path, .named = path, .a = -1, .b = -1, .bias = -1, .magnitude = -1 };
    return m;
}

static int add_part(struct fsdpck_lora_adapter *a, size_t i, struct fsdpck_error *err)
{
    const struct fsdpck_lora_name *n = &a->names[i];
    struct fsdpck_lora_module *m = module_of(a, n->module, err);
    if (!m)
        return FSDPCK_ERR_NOMEM;
    bool is_a = n->role == LORA_A || n->role == LORA_EMBEDDING_A,
         is_b = n->role == LORA_B || n->role == LORA_EMBEDDING_B;
    int64_t *place = is_a ? &m->a : is_b ? &m->b : n->role == LORA_B_BIAS ? &m->bias : &m->magnitude;
    if (*place >= 0)
        return fsdpck_lora_refuse(a, (int64_t)i, FSDPCK_ERR_FORMAT, err, "there are two of it: '%s' means the same",
                                  lora_tensor(a, *place)->name);
    m->embedding = m->embedding || n->role == LORA_EMBEDDING_A || n->role == LORA_EMBEDDING_B;
    *place = (int64_t)i;
    return 0;
}

static const char *dotted(struct fsdpck_lora_adapter *a, const char *x, const char *y, const char *z,
                          struct fsdpck_error *err)
{
    size_t nbytes = strlen(x) + strlen(y) + strlen(z) + 3;
    char *text = fsdpck_arena_alloc(&a->arena, nbytes, err);
    if (text)
        snprintf(text, nbytes, "%s%s%s%s%s", x, *x ? "." : "", y, *y ? "." : "", z);
    return text;
}

static int add_whole(struct fsdpck_lora_adapter *a, size_t i, const char *saved, bool bias, struct fsdpck_error *err)
{
    const struct fsdpck_lora_name *n = &a->names[i];
    size_t old;
    const char *name = dotted(a, n->module, "", n->leaf, err), *key = dotted(a, n->module, n->between, n->leaf, err);
    if (!name || !key || fsdpck_names_add(&a->whole_index, name, a->whole.count, &old, err) != 0)
        return FSDPCK_ERR_NOMEM;
    if (old != SIZE_MAX)
        return fsdpck_lora_refuse(a, (int64_t)i, FSDPCK_ERR_FORMAT, err, "there are two of it: '%s' means the same",
                                  lora_tensor(a, lora_whole(a)[old].position)->name);
    struct fsdpck_lora_whole *w = fsdpck_vec_push(&a->whole, err);
    if (!w)
        return FSDPCK_ERR_NOMEM;
    *w = (struct fsdpck_lora_whole){ .name = name, .key = key, .saved = saved, .bias = bias, .position = (int64_t)i };
    return 0;
}

bool fsdpck_lora_trains_bias(const struct fsdpck_lora_adapter *a, const struct fsdpck_lora_name *n)
{
    bool adapted = fsdpck_names_find(&a->index, n->module) != SIZE_MAX;
    return strcmp(n->leaf, "bias") == 0 &&
           (a->config.bias == LORA_BIAS_ALL || (a->config.bias == LORA_BIAS_LORA_ONLY && adapted));
}

/* Adds a tensor outside of lora_ and modules_to_save. In a source with the model, only the tensors that the
 * configuration claims belong to the adapter; in an adapter's own file, all do. */
static int add_plain(struct fsdpck_lora_adapter *a, size_t i, struct fsdpck_error *err)
{
    const struct fsdpck_lora_name *n = &a->names[i];
    const char *saved = n->role == LORA_PLAIN ? fsdpck_lora_config_saves(&a->config, n->module) : NULL;
    bool bias = fsdpck_lora_trains_bias(a, n);
    return saved || bias || !a->beside_model ? add_whole(a, i, saved, !saved && bias, err) : 0;
}

static int add_saved(struct fsdpck_lora_adapter *a, size_t i, struct fsdpck_error *err)
{
    const char *name = fsdpck_lora_config_saves(&a->config, a->names[i].module);
    return add_whole(a, i, name ? name : a->names[i].module, false, err);
}

static int add_tokens(struct fsdpck_lora_adapter *a, size_t i, struct fsdpck_error *err)
{
    const struct fsdpck_lora_name *n = &a->names[i];
    uint64_t *rows;
    size_t nrows;
    const char *key = dotted(a, n->module, n->between, n->leaf, err);
    int rc = key ? fsdpck_lora_config_tokens(&a->config, &a->arena, n->module, &rows, &nrows, err) : FSDPCK_ERR_NOMEM;
    struct fsdpck_lora_tokens *t = !rc ? fsdpck_vec_push(&a->tokens, err) : NULL;
    if (t)
        *t = (struct fsdpck_lora_tokens){
            .module = n->module, .key = key, .position = (int64_t)i, .rows = rows, .nrows = nrows
        };
    return rc || t ? rc : FSDPCK_ERR_NOMEM;
}

bool fsdpck_lora_is_part(const struct fsdpck_lora_adapter *a, size_t i)
{
    return is_adapter(a->names[i].role) && strcmp(name_or_default(a->names[i].adapter), a->name) == 0;
}

static int gather_modules(struct fsdpck_lora_adapter *a, struct fsdpck_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < a->selection.ntensors && !rc; i++)
        if (fsdpck_lora_is_part(a, i) && a->names[i].role < LORA_TOKENS)
            rc = add_part(a, i, err);
    return rc ? rc : fsdpck_lora_find_model(a, err);
}

int fsdpck_lora_adapter_rest(struct fsdpck_lora_adapter *a, struct fsdpck_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < a->selection.ntensors && !rc; i++) {
        enum fsdpck_lora_role role = a->names[i].role;
        if (role == LORA_PLAIN || role == LORA_BASE)
            rc = add_plain(a, i, err);
        else if (fsdpck_lora_is_part(a, i) && role >= LORA_TOKENS)
            rc = role == LORA_SAVED ? add_saved(a, i, err) : add_tokens(a, i, err);
    }
    return rc;
}

/* ---- the whole adapter ---- */

int fsdpck_lora_adapter_find(struct fsdpck_lora_adapter *a, struct fsdpck_source *src,
                             const struct fsdpck_select *select, const char *name, struct fsdpck_error *err)
{
    *a = (struct fsdpck_lora_adapter){ .src = src,
                                       .modules = FSDPCK_VEC(struct fsdpck_lora_module),
                                       .whole = FSDPCK_VEC(struct fsdpck_lora_whole),
                                       .tokens = FSDPCK_VEC(struct fsdpck_lora_tokens) };
    int rc = fsdpck_selection_make(src, select, FSDPCK_TREE_MODEL, &a->selection, err);
    if (!rc)
        rc = parse_names(a, err);
    if (!rc)
        rc = choose_adapter(a, name, err);
    return rc ? rc : gather_modules(a, err);
}

void fsdpck_lora_adapter_free(struct fsdpck_lora_adapter *a)
{
    fsdpck_lora_config_free(&a->config);
    fsdpck_vec_free(&a->modules);
    fsdpck_vec_free(&a->whole);
    fsdpck_vec_free(&a->tokens);
    fsdpck_names_free(&a->index);
    fsdpck_names_free(&a->whole_index);
    fsdpck_arena_free(&a->arena);
    fsdpck_selection_free(&a->selection);
}

size_t fsdpck_lora_unnamed(const struct fsdpck_lora_adapter *a, const char **first)
{
    size_t n = 0;
    *first = NULL;
    for (size_t i = 0; i < a->whole.count; i++)
        if (!lora_whole(a)[i].saved && !lora_whole(a)[i].bias) {
            *first = *first ? *first : lora_tensor(a, lora_whole(a)[i].position)->name;
            n++;
        }
    return n;
}
