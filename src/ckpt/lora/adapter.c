/* Finds an adapter among a source's tensors: parses every name, settles which adapter is meant, brings A, B and what belongs to them together, finds the
 * configuration. What the tensors must be like is checked in adapter_check.c. */
#include "lora/adapter.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/ioutil.h"

int fsdpck_lora_refuse(const struct fsdpck_lora_adapter *a, int64_t position, int code, struct fsdpck_error *err, const char *fmt, ...)
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

void fsdpck_lora_say(const struct fsdpck_options *opt, const char *fmt, ...)
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

static bool is_adapter(enum fsdpck_lora_role role) { return role >= LORA_A; }

static int parse_names(struct fsdpck_lora_adapter *a, struct fsdpck_error *err)
{
    int rc = 0;
    a->names = fsdpck_arena_array(&a->arena, a->selection.ntensors, sizeof *a->names, err);
    if (!a->names)
        return FSDPCK_ERR_NOMEM;
    for (size_t i = 0; i < a->selection.ntensors && rc == 0; i++) {
        rc = fsdpck_lora_name_parse(&a->arena, a->selection.tensors[i].name, &a->names[i], err);
        if (rc == 0 && a->names[i].role == LORA_UNKNOWN)
            rc = fsdpck_lora_refuse(a, (int64_t)i, FSDPCK_ERR_UNSUPPORTED, err, "an adapter tensor of a kind that is not supported");
    }
    return rc;
}

/* "default" is what PEFT calls an adapter that was given no name, and what it leaves out of the names in files. */
static const char *called(const char *adapter) { return *adapter ? adapter : "default"; }

static int no_adapter(const struct fsdpck_lora_adapter *a, struct fsdpck_error *err)
{
    return fsdpck_error_set(err, FSDPCK_ERR_MISSING, fsdpck_source_path(a->src), "none of the %zu tensors is a LoRA adapter's (….lora_A.weight, ….lora_B.weight)",
                            a->selection.ntensors);
}

static int several(const struct fsdpck_lora_adapter *a, const char *wanted, struct fsdpck_error *err)
{
    const char *seen[8];
    char list[300] = "";
    size_t n = 0, at = 0;
    for (size_t i = 0; i < a->selection.ntensors && n < 8; i++) {
        bool new = is_adapter(a->names[i].role);
        for (size_t k = 0; k < n; k++)
            new = new && strcmp(seen[k], called(a->names[i].adapter)) != 0;
        if (new)
            seen[n++] = called(a->names[i].adapter);
    }
    for (size_t i = 0; i < n && at < sizeof list - 1; i++)
        at += (size_t)snprintf(list + at, sizeof list - at, "%s'%s'", i ? ", " : "", seen[i]);
    if (wanted)
        fsdpck_error_set(err, FSDPCK_ERR_USAGE, fsdpck_source_path(a->src), "there is no adapter '%s'; there is %s", wanted, list);
    else
        fsdpck_error_set(err, FSDPCK_ERR_USAGE, fsdpck_source_path(a->src), "has several adapters (%s): which one is meant?", list);
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
        const char *name = called(a->names[i].adapter);
        found = found || (wanted && strcmp(name, wanted) == 0);
        more = more || (only && strcmp(only, name) != 0);
        only = only ? only : name;
    }
    if (!only)
        return no_adapter(a, err);
    if (wanted ? !found : more)
        return several(a, wanted, err);
    a->name = wanted ? wanted : only;
    return 0;
}

/* ---- its configuration ---- */

/* Among the assets: the adapter's own folder first, as PEFT lays out several adapters. */
static const struct source_asset *find_config(const struct fsdpck_lora_adapter *a)
{
    char own[512];
    const struct source_asset *list = source_assets(a->src), *plain = NULL;
    snprintf(own, sizeof own, "%s/" FSDPCK_LORA_CONFIG_NAME, a->name);
    for (size_t i = 0; i < a->src->assets.count; i++) {
        if (strcmp(list[i].pub.path, own) == 0)
            return &list[i];
        if (strcmp(list[i].pub.path, FSDPCK_LORA_CONFIG_NAME) == 0)
            plain = &list[i];
    }
    return plain;
}

static int load_config(struct fsdpck_lora_adapter *a, const char *path, const struct source_asset *asset, struct fsdpck_error *err)
{
    char *text = NULL;
    uint64_t nbytes;
    struct fsdpck_hash128 hash;
    int rc = fsdpck_read_file(a->src->io, path, FSDPCK_LORA_CONFIG_MAX_NBYTES, &text, &nbytes, err);
    if (rc == 0 && asset && asset->has_hash) {
        fsdpck_hash(text, nbytes, &hash);
        if (memcmp(hash.bytes, asset->hash, sizeof asset->hash) != 0)
            rc = fsdpck_error_set(err, FSDPCK_ERR_DAMAGED, path, "its hash is not the one that the checkpoint has for it");
    }
    if (rc == 0)
        rc = fsdpck_lora_config_parse(&a->config, path, text, nbytes, err);
    free(text);
    return rc;
}

/* A file of tensors has its configuration beside it. */
static char *beside(const struct fsdpck_lora_adapter *a, struct fsdpck_error *err)
{
    const char *path = fsdpck_source_path(a->src), *slash = strrchr(path, '/');
    char *dir = strndup(path, slash ? (size_t)(slash - path) : 0), *file = NULL;
    if (dir)
        file = fsdpck_path_join(slash == path ? "/" : dir, FSDPCK_LORA_CONFIG_NAME, err);
    else
        fsdpck_error_nomem(err, strlen(path));
    free(dir);
    return file;
}

static int find_beside(struct fsdpck_lora_adapter *a, bool *found, struct fsdpck_error *err)
{
    char *path = beside(a, err);
    int rc = path ? 0 : FSDPCK_ERR_NOMEM;
    *found = rc == 0 && fsdpck_is_file(a->src->io, path);
    if (*found)
        rc = load_config(a, path, NULL, err);
    free(path);
    return rc;
}

static int configure(struct fsdpck_lora_adapter *a, const struct fsdpck_lora_request *req, struct fsdpck_error *err)
{
    const struct source_asset *asset = find_config(a);
    bool found = false;
    if (req->config)
        return load_config(a, req->config, NULL, err);
    if (asset)
        return load_config(a, asset->from, asset, err);
    int rc = strcmp(fsdpck_source_kind(a->src), "safetensors") == 0 ? find_beside(a, &found, err) : 0;
    if (rc || found)
        return rc;
    a->config.alpha = req->alpha;
    if (req->has_alpha)
        return 0;
    fsdpck_error_set(err, FSDPCK_ERR_USAGE, fsdpck_source_path(a->src), "has no adapter_config.json: nothing says how the adapter '%s' is scaled", a->name);
    fsdpck_error_hint(err, "give --adapter-config FILE, or --alpha A where scaling is alpha / rank");
    return FSDPCK_ERR_USAGE;
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
        *m = (struct fsdpck_lora_module){ .path = path, .a = -1, .b = -1, .bias = -1, .magnitude = -1 };
    return m;
}

static int add_part(struct fsdpck_lora_adapter *a, size_t i, struct fsdpck_error *err)
{
    const struct fsdpck_lora_name *n = &a->names[i];
    struct fsdpck_lora_module *m = module_of(a, n->module, err);
    if (!m)
        return FSDPCK_ERR_NOMEM;
    bool is_a = n->role == LORA_A || n->role == LORA_EMBEDDING_A, is_b = n->role == LORA_B || n->role == LORA_EMBEDDING_B;
    int64_t *place = is_a ? &m->a : is_b ? &m->b : n->role == LORA_B_BIAS ? &m->bias : &m->magnitude;
    if (*place >= 0)
        return fsdpck_lora_refuse(a, (int64_t)i, FSDPCK_ERR_FORMAT, err, "there are two of it: '%s' means the same", lora_tensor(a, *place)->name);
    m->embedding = m->embedding || n->role == LORA_EMBEDDING_A || n->role == LORA_EMBEDDING_B;
    *place = (int64_t)i;
    return 0;
}

static const char *dotted(struct fsdpck_lora_adapter *a, const char *x, const char *y, const char *z, struct fsdpck_error *err)
{
    size_t nbytes = strlen(x) + strlen(y) + strlen(z) + 3;
    char *text = fsdpck_arena_alloc(&a->arena, nbytes, err);
    if (text)
        snprintf(text, nbytes, "%s%s%s%s%s", x, *x ? "." : "", y, *y ? "." : "", z);
    return text;
}

static int add_whole(struct fsdpck_lora_adapter *a, size_t i, const char *between, const char *saved, struct fsdpck_error *err)
{
    const struct fsdpck_lora_name *n = &a->names[i];
    struct fsdpck_lora_whole *w = fsdpck_vec_push(&a->whole, err);
    if (!w)
        return FSDPCK_ERR_NOMEM;
    *w = (struct fsdpck_lora_whole){ .name = dotted(a, n->module, "", n->leaf, err), .key = dotted(a, n->module, between, n->leaf, err), .saved = saved,
                                     .position = (int64_t)i };
    return w->name && w->key ? 0 : FSDPCK_ERR_NOMEM;
}

static const char *last_part(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

static bool is_copy(const struct fsdpck_lora_adapter *a, const char *name)
{
    for (size_t i = 0; i < a->whole.count; i++)
        if (strcmp(lora_whole(a)[i].name, name) == 0)
            return true;
    return false;
}

/* Outside of lora_ and modules_to_save: a saved module of an adapter file, whose names say nothing, or a bias. */
static int add_plain(struct fsdpck_lora_adapter *a, size_t i, struct fsdpck_error *err)
{
    const struct fsdpck_lora_name *n = &a->names[i];
    const char *saved = n->role == LORA_PLAIN ? fsdpck_lora_config_saves(&a->config, n->module) : NULL;
    bool adapted = fsdpck_names_find(&a->index, n->module) != SIZE_MAX, bias = strcmp(n->leaf, "bias") == 0;
    if (!saved && !(bias && (a->config.bias == LORA_BIAS_ALL || (a->config.bias == LORA_BIAS_LORA_ONLY && adapted))))
        return 0;
    const char *name = dotted(a, n->module, "", n->leaf, err);
    if (!name || is_copy(a, name))
        return name ? 0 : FSDPCK_ERR_NOMEM;
    return add_whole(a, i, n->role == LORA_BASE ? "base_layer" : "", saved, err);
}

static bool is_mine(const struct fsdpck_lora_adapter *a, size_t i)
{
    return is_adapter(a->names[i].role) && strcmp(called(a->names[i].adapter), a->name) == 0;
}

static int add_saved(struct fsdpck_lora_adapter *a, size_t i, struct fsdpck_error *err)
{
    const char *name = fsdpck_lora_config_saves(&a->config, a->names[i].module);
    return add_whole(a, i, "", name ? name : last_part(a->names[i].module), err);
}

static int gather(struct fsdpck_lora_adapter *a, struct fsdpck_error *err)
{
    size_t n = a->selection.ntensors, i;
    int rc = 0;
    for (i = 0; i < n && rc == 0; i++)
        if (is_mine(a, i))
            rc = a->names[i].role == LORA_SAVED ? add_saved(a, i, err) : add_part(a, i, err);
    for (i = 0; i < n && rc == 0; i++)
        if (!is_adapter(a->names[i].role))
            rc = add_plain(a, i, err);
    return rc;
}

/* ---- all of it ---- */

int fsdpck_lora_adapter_open(struct fsdpck_lora_adapter *a, struct fsdpck_source *src, const struct fsdpck_lora_request *req, struct fsdpck_error *err)
{
    *a = (struct fsdpck_lora_adapter){ .src = src, .modules = FSDPCK_VEC(struct fsdpck_lora_module), .whole = FSDPCK_VEC(struct fsdpck_lora_whole) };
    int rc = fsdpck_selection_make(src, req->select, FSDPCK_TREE_MODEL, &a->selection, err);
    if (rc == 0)
        rc = parse_names(a, err);
    if (rc == 0)
        rc = choose_adapter(a, req->name, err);
    if (rc == 0)
        rc = configure(a, req, err);
    if (rc == 0)
        rc = gather(a, err);
    return rc ? rc : fsdpck_lora_adapter_check(a, err);
}

void fsdpck_lora_adapter_free(struct fsdpck_lora_adapter *a)
{
    fsdpck_lora_config_free(&a->config);
    fsdpck_vec_free(&a->modules);
    fsdpck_vec_free(&a->whole);
    fsdpck_names_free(&a->index);
    fsdpck_arena_free(&a->arena);
    fsdpck_selection_free(&a->selection);
}
