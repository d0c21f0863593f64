/* SPDX-License-Identifier: Apache-2.0 */
/* Turns a user's selection (trees, globs, renames, aliases, a dtype) into the list of tensors and items to write. Reads
 * a source's catalogue, never payload, and knows nothing of outputs. */
#include "engine/selection.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/names.h"
#include "engine/rename.h"
#include "engine/source_impl.h"
#include "engine/unmatched.h"

struct choice {
    const struct fsdpck_source *src;
    const struct fsdpck_select *select;
    struct fsdpck_selection *out;
    struct fsdpck_names names; /* of the output: position, or ntensors + position for items */
    bool flat_only;            /* only names outside all trees */
    char *tree;                /* or NULL */
    bool *kept;                /* (tensors of the source) */
    int64_t *position;         /* (tensors of the source) position of its bytes in the selection, or -1 */
    enum use {
        UNMATCHED,
        SHADOWED,
        USED
    } *
        renamed; /* (select->nrename) SHADOWED: an earlier FROM matches every name that this one matches */
    struct fsdpck_error *err;
};

/* ---- filters ---- */

static bool any_match(const char *const *globs, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (fsdpck_glob_match(globs[i], name))
            return true;
    return false;
}

static bool globs_keep(const struct fsdpck_select *s, const char *name)
{
    return (s->ninclude == 0 || any_match(s->include, s->ninclude, name)) && !any_match(s->exclude, s->nexclude, name);
}

static bool tree_keeps(const struct choice *c, const struct fsdpck_named *n)
{
    if (c->flat_only)
        return n->npath == 1;
    return !c->tree || fsdpck_named_in_tree(n, c->tree) > 0;
}

static struct fsdpck_named named_tensor(const struct choice *c, size_t ordinal)
{
    const struct fsdpck_tensor *t = fsdpck_source_tensor(c->src, ordinal);
    return (struct fsdpck_named){ t->name, t->path, t->npath };
}

/* ---- trees ---- */

#define MAX_TREES 16

/* The contents below some leading keys: whether names end there, and the trees, each represented by one of its
 * tensors. */
struct level {
    bool flat;
    size_t ntrees; /* up to MAX_TREES + 1 */
    struct fsdpck_named trees[MAX_TREES];
    bool has_model;
};

static bool same_key(const struct fsdpck_key *a, const struct fsdpck_key *b)
{
    return a->str && b->str ? strcmp(a->str, b->str) == 0 : !a->str && !b->str && a->position == b->position;
}

static void add_to_level(struct level *l, const struct fsdpck_named *n, uint32_t depth)
{
    if (n->npath <= depth + 1) {
        l->flat = true;
        return;
    }
    for (size_t i = 0; i < l->ntrees && i < MAX_TREES; i++)
        if (same_key(&l->trees[i].path[depth], &n->path[depth]))
            return;
    if (n->path[depth].str && strcmp(n->path[depth].str, "model") == 0)
        l->has_model = true;
    if (l->ntrees < MAX_TREES)
        l->trees[l->ntrees] = *n;
    l->ntrees += l->ntrees <= MAX_TREES;
}

/* Lists the trees below the keys that c->tree spells (all, if it is NULL). */
static void list_trees(const struct choice *c, uint32_t depth, struct level *l)
{
    *l = (struct level){ 0 };
    for (size_t i = 0; i < fsdpck_source_ntensors(c->src); i++) {
        struct fsdpck_named n = named_tensor(c, i);
        if (globs_keep(c->select, n.name) && tree_keeps(c, &n))
            add_to_level(l, &n, depth);
    }
}

/* Goes one key deeper. */
static int enter_tree(struct choice *c, const struct fsdpck_key *key)
{
    char buf[24];
    const char *text = fsdpck_key_text(key, buf);
    size_t before = c->tree ? strlen(c->tree) + 1 : 0;
    char *tree = malloc(before + strlen(text) + 1);
    if (!tree)
        return fsdpck_error_nomem(c->err, before + strlen(text) + 1);
    if (c->tree)
        sprintf(tree, "%s.%s", c->tree, text);
    else
        strcpy(tree, text);
    free(c->tree);
    c->tree = tree;
    return 0;
}

static int ask_which_tree(const struct choice *c, const struct level *l, uint32_t depth)
{
    char list[400] = "", buf[24];
    size_t at = 0, shown = l->ntrees < MAX_TREES ? l->ntrees : MAX_TREES;
    for (size_t i = 0; i < shown && at < sizeof list - 1; i++) {
        int n = snprintf(list + at, sizeof list - at, "%s'%s%s%s'", i ? ", " : "", c->tree ? c->tree : "",
                         c->tree ? "." : "", fsdpck_key_text(&l->trees[i].path[depth], buf));
        at += n > 0 ? (size_t)n : 0;
    }
    fsdpck_error_set(c->err, FSDPCK_ERR_USAGE, fsdpck_source_path(c->src),
                     "has several trees of tensors (%s%s) and none is called 'model': which one is meant?", list,
                     l->ntrees > MAX_TREES ? ", …" : "");
    fsdpck_error_hint(c->err, "choose one: --select TREE");
    return FSDPCK_ERR_USAGE;
}

/* The model of a training checkpoint: {"model": …}, {"app": {"model": …}}, or a single tree of any name. */
static int find_model_tree(struct choice *c)
{
    static const struct fsdpck_key model = { "model", 0 };
    struct level l;
    for (uint32_t depth = 0; depth < 2; depth++) {
        list_trees(c, depth, &l);
        if (l.has_model)
            return enter_tree(c, &model);
        if (l.flat || l.ntrees == 0) {
            c->flat_only = depth == 0 && l.ntrees > 0;
            return 0;
        }
        if (l.ntrees > 1)
            return ask_which_tree(c, &l, depth);
        if (depth == 0) {
            struct fsdpck_key only = l.trees[0].path[0];
            int rc = enter_tree(c, &only);
            if (rc)
                return rc;
        }
    }
    return 0;
}

static int choose_tree(struct choice *c, enum fsdpck_tree_policy policy)
{
    const struct fsdpck_key key = { c->select->tree, 0 };
    if (c->select->tree)
        return enter_tree(c, &key);
    return policy == FSDPCK_TREE_MODEL ? find_model_tree(c) : 0;
}

/* ---- names ---- */

/* Makes the output name: drops the tree, replaces the prefix. */
static int rename_one(struct choice *c, struct fsdpck_named *n)
{
    const struct fsdpck_select *s = c->select;
    int rc = c->tree ? fsdpck_named_drop(&c->out->arena, n, fsdpck_named_in_tree(n, c->tree), c->err) : 0;
    const char *old = n->name;
    for (size_t i = 0, done = 0; i < s->nrename && !rc; i++) {
        if (strncmp(old, s->rename[i].key, strlen(s->rename[i].key)) != 0)
            continue;
        if (done++) {
            c->renamed[i] = c->renamed[i] == USED ? USED : SHADOWED;
            continue;
        }
        c->renamed[i] = USED;
        rc = fsdpck_named_exchange(&c->out->arena, n, s->rename[i].key, s->rename[i].value, c->err);
        if (!rc && !*n->name)
            rc = fsdpck_error_set(c->err, FSDPCK_ERR_USAGE, NULL, "renaming '%s' leaves no name", old);
    }
    return rc;
}

static int shadowed_rename(struct choice *c, const struct fsdpck_pair *pair)
{
    fsdpck_error_set(c->err, FSDPCK_ERR_USAGE, fsdpck_source_path(c->src),
                     "--rename: '%s=%s' is never used, as every name that begins so is taken by one before it",
                     pair->key, pair->value);
    fsdpck_error_hint(c->err, "the first FROM that a name begins with counts: the longer one goes first");
    return c->err->code;
}

/* A FROM that matches no name is a typo; one that earlier ones shadow has no effect. Both are refused. */
static int check_renames(struct choice *c)
{
    for (size_t i = 0; i < c->select->nrename; i++) {
        struct fsdpck_unmatched u = { .pattern = c->select->rename[i].key, .prefix = true };
        if (c->renamed[i] == USED)
            continue;
        if (c->renamed[i] == SHADOWED)
            return shadowed_rename(c, &c->select->rename[i]);
        for (size_t k = 0; k < fsdpck_source_ntensors(c->src); k++) {
            struct fsdpck_named n = named_tensor(c, k);
            if (c->kept[k] &&
                (!c->tree || fsdpck_named_drop(&c->out->arena, &n, fsdpck_named_in_tree(&n, c->tree), c->err) == 0))
                fsdpck_unmatched_try(&u, n.name);
        }
        return fsdpck_unmatched_error(&u, fsdpck_source_path(c->src), "--rename", c->err);
    }
    return 0;
}

static int claim_name(struct choice *c, const char *name, size_t position)
{
    size_t old;
    int rc = fsdpck_names_add(&c->names, name, position, &old, c->err);
    if (!rc && old != SIZE_MAX)
        rc = fsdpck_error_set(c->err, FSDPCK_ERR_USAGE, fsdpck_source_path(c->src),
                              "two entries would both be called '%s'", name);
    return rc;
}

/* ---- tensors ---- */

static bool castable(enum fsdpck_dtype d)
{
    return d == FSDPCK_FLOAT64 || d == FSDPCK_FLOAT32 || d == FSDPCK_FLOAT16 || d == FSDPCK_BFLOAT16;
}

static int push(struct choice *c, const struct fsdpck_named *n, size_t stored, int64_t alias_of)
{
    struct fsdpck_selection *out = c->out;
    enum fsdpck_dtype dtype = fsdpck_source_tensor(c->src, stored)->dtype;
    int rc = claim_name(c, n->name, out->ntensors);
    if (rc)
        return rc;
    out->tensors[out->ntensors++] = (struct fsdpck_chosen){
        .name = n->name,
        .path = n->path,
        .npath = n->npath,
        .source = stored,
        .alias_of = alias_of,
        .dtype = c->select->cast && castable(dtype) ? c->select->dtype : dtype,
    };
    return 0;
}

/* Adds a tensor of the source under its new name; of several names, the first selected one is stored. */
static int push_tensor(struct choice *c, size_t ordinal, size_t stored)
{
    struct fsdpck_named n = named_tensor(c, ordinal);
    int64_t position = c->position[stored];
    int rc = rename_one(c, &n);
    if (!rc && position < 0)
        c->position[stored] = (int64_t)c->out->ntensors;
    return rc ? rc : push(c, &n, stored, position);
}

/* late: the aliases that precede their target in the source. */
static int push_tensors(struct choice *c, bool late)
{
    int rc = 0;
    for (size_t i = 0; i < fsdpck_source_ntensors(c->src) && !rc; i++) {
        int64_t alias_of = fsdpck_source_tensor(c->src, i)->alias_of;
        size_t stored = alias_of >= 0 ? (size_t)alias_of : i;
        if (c->kept[i] && late == (stored > i && c->kept[stored]))
            rc = push_tensor(c, i, stored);
    }
    return rc;
}

static int no_such_target(const struct choice *c, const struct fsdpck_pair *alias)
{
    const char *best = NULL;
    fsdpck_error_set(c->err, FSDPCK_ERR_USAGE, fsdpck_source_path(c->src),
                     "alias '%s' is for tensor '%s', which is not among those selected", alias->key, alias->value);
    for (size_t i = 0; i < c->out->ntensors; i++) {
        const char *name = c->out->tensors[i].name;
        if (!best || fsdpck_name_distance(alias->value, name) < fsdpck_name_distance(alias->value, best))
            best = name;
    }
    if (best)
        fsdpck_error_hint(c->err, "the nearest name, as it goes out, is '%s'", best);
    return FSDPCK_ERR_USAGE;
}

static int push_aliases(struct choice *c)
{
    const struct fsdpck_select *s = c->select;
    int rc = 0;
    for (size_t i = 0; i < s->nalias && !rc; i++) {
        size_t old = fsdpck_names_find(&c->names, s->alias[i].value);
        struct fsdpck_named n;
        if (!*s->alias[i].key)
            return fsdpck_error_set(c->err, FSDPCK_ERR_USAGE, NULL, "an alias for '%s' without a name",
                                    s->alias[i].value);
        if (old == SIZE_MAX)
            return no_such_target(c, &s->alias[i]);
        const struct fsdpck_chosen *t = &c->out->tensors[old];
        const struct fsdpck_named target = { t->name, t->path, t->npath };
        rc = fsdpck_named_sibling(&c->out->arena, &target, s->alias[i].key, &n, c->err);
        if (!rc)
            rc = push(c, &n, t->source, t->alias_of >= 0 ? t->alias_of : (int64_t)old);
    }
    return rc;
}

static int push_items(struct choice *c)
{
    int rc = 0;
    for (size_t i = 0; i < fsdpck_source_nitems(c->src) && !rc; i++) {
        const struct fsdpck_item *item = fsdpck_source_item(c->src, i);
        struct fsdpck_named n = { item->name, item->path, item->npath };
        if (!globs_keep(c->select, n.name) || !tree_keeps(c, &n))
            continue;
        if ((rc = rename_one(c, &n)) == 0)
            rc = claim_name(c, n.name, c->out->ntensors + c->out->nitems);
        c->out->items[c->out->nitems++] = (struct fsdpck_chosen_item){ n.name, n.path, n.npath, i };
    }
    return rc;
}

/* ---- the whole selection ---- */

static int check_request(struct choice *c)
{
    if (c->select->cast && !castable(c->select->dtype))
        return fsdpck_error_set(c->err, FSDPCK_ERR_USAGE, NULL,
                                "tensors are cast to float64, float32, float16 or bfloat16, not to %s",
                                fsdpck_dtype_info(c->select->dtype)->name);
    int rc = fsdpck_globs_check(c->src, "--include", c->select->include, c->select->ninclude, c->err);
    return rc ? rc : fsdpck_globs_check(c->src, "--exclude", c->select->exclude, c->select->nexclude, c->err);
}

static int allocate(struct choice *c)
{
    struct fsdpck_arena *a = &c->out->arena;
    size_t n = fsdpck_source_ntensors(c->src);
    c->out->tensors = fsdpck_arena_array(a, n + c->select->nalias, sizeof *c->out->tensors, c->err);
    c->out->items = fsdpck_arena_array(a, fsdpck_source_nitems(c->src), sizeof *c->out->items, c->err);
    c->kept = calloc(n ? n : 1, sizeof *c->kept);
    c->position = malloc((n ? n : 1) * sizeof *c->position);
    c->renamed = calloc(c->select->nrename + 1, sizeof *c->renamed);
    if (!c->out->tensors || !c->out->items || !c->kept || !c->position || !c->renamed)
        return fsdpck_error_nomem(c->err, n * sizeof *c->position);
    return 0;
}

/* Spells the first `depth` keys, as "app.model"; false if the result is too long. */
static bool spell_tree(const struct fsdpck_named *n, uint32_t depth, char *out, size_t nbytes)
{
    char buf[24];
    size_t at = 0;
    for (uint32_t i = 0; i < depth && at < nbytes; i++)
        at += (size_t)snprintf(out + at, nbytes - at, "%s%s", i ? "." : "", fsdpck_key_text(&n->path[i], buf));
    return at < nbytes;
}

static int no_such_tree(const struct choice *c)
{
    char best[128] = "", tree[128];
    size_t n = fsdpck_source_ntensors(c->src);
    fsdpck_error_set(c->err, FSDPCK_ERR_USAGE, fsdpck_source_path(c->src),
                     "--select: none of the %zu tensors is in a tree '%s' and selected", n, c->select->tree);
    for (size_t i = 0; i < n; i++) {
        const struct fsdpck_named name = named_tensor(c, i);
        for (uint32_t depth = 1; depth < name.npath && spell_tree(&name, depth, tree, sizeof tree); depth++)
            if (!*best || fsdpck_name_distance(c->select->tree, tree) < fsdpck_name_distance(c->select->tree, best))
                memcpy(best, tree, sizeof best);
    }
    if (*best)
        fsdpck_error_hint(c->err, "the nearest tree is '%s'", best);
    else
        fsdpck_error_hint(c->err, "its names are flat: it has no trees, and --select is for sources that have");
    return FSDPCK_ERR_USAGE;
}

/* Returns whether the glob matches a name that would be selected without --exclude. */
static bool finds_one(const struct choice *c, const char *glob, const struct fsdpck_named *n)
{
    const struct fsdpck_select only_included = { .include = c->select->include, .ninclude = c->select->ninclude };
    return fsdpck_glob_match(glob, n->name) && tree_keeps(c, n) && globs_keep(&only_included, n->name);
}

static bool finds(const struct choice *c, const char *glob)
{
    for (size_t i = 0; i < fsdpck_source_ntensors(c->src); i++) {
        const struct fsdpck_named n = named_tensor(c, i);
        if (finds_one(c, glob, &n))
            return true;
    }
    for (size_t i = 0; i < fsdpck_source_nitems(c->src); i++) {
        const struct fsdpck_item *item = fsdpck_source_item(c->src, i);
        const struct fsdpck_named n = { item->name, item->path, item->npath };
        if (finds_one(c, glob, &n))
            return true;
    }
    return false;
}

/* An --exclude without effect is not an error, but may be a typo, so give a note. */
static void note_excludes(const struct choice *c)
{
    char line[512];
    for (size_t g = 0; c->src->opt.note && g < c->select->nexclude; g++) {
        if (finds(c, c->select->exclude[g]))
            continue;
        snprintf(line, sizeof line, "--exclude '%s' has no effect: nothing that it matches would go out without it",
                 c->select->exclude[g]);
        c->src->opt.note(c->src->opt.ctx, line);
    }
}

static int check_globs(const struct choice *c)
{
    for (size_t g = 0; c->tree && g < c->select->ninclude; g++) {
        if (finds(c, c->select->include[g]))
            continue;
        fsdpck_error_set(c->err, FSDPCK_ERR_USAGE, fsdpck_source_path(c->src),
                         "--include: '%s' matches nothing in the tree '%s', which goes out", c->select->include[g],
                         c->tree);
        fsdpck_error_hint(c->err, "--select TREE says which tree goes out");
        return FSDPCK_ERR_USAGE;
    }
    note_excludes(c);
    return 0;
}

static int keep_tensors(struct choice *c)
{
    size_t n = fsdpck_source_ntensors(c->src), nkept = 0;
    for (size_t i = 0; i < n; i++) {
        struct fsdpck_named name = named_tensor(c, i);
        c->kept[i] = globs_keep(c->select, name.name) && tree_keeps(c, &name);
        c->position[i] = -1;
        nkept += c->kept[i];
    }
    if (n == 0 && !c->select->tree)
        return 0;
    if (nkept)
        return check_globs(c);
    if (c->select->tree)
        return no_such_tree(c);
    fsdpck_error_set(c->err, FSDPCK_ERR_USAGE, fsdpck_source_path(c->src), "none of the %zu tensors is selected", n);
    fsdpck_error_hint(c->err, "together, --include and --exclude leave none");
    return FSDPCK_ERR_USAGE;
}

int fsdpck_selection_make(const struct fsdpck_source *src, const struct fsdpck_select *select,
                          enum fsdpck_tree_policy policy, struct fsdpck_selection *out, struct fsdpck_error *err)
{
    struct choice c = { .src = src, .select = select, .out = out, .err = err };
    *out = (struct fsdpck_selection){ 0 };
    int rc = check_request(&c);
    if (!rc)
        rc = allocate(&c);
    if (!rc)
        rc = choose_tree(&c, policy);
    if (!rc)
        rc = keep_tensors(&c);
    if (!rc)
        rc = push_tensors(&c, false);
    if (!rc)
        rc = push_tensors(&c, true);
    if (!rc)
        rc = push_aliases(&c);
    if (!rc)
        rc = push_items(&c);
    if (!rc)
        rc = check_renames(&c);
    fsdpck_names_free(&c.names);
    free(c.tree);
    free(c.kept);
    free(c.position);
    free(c.renamed);
    if (rc)
        fsdpck_selection_free(out);
    return rc;
}

void fsdpck_selection_free(struct fsdpck_selection *s)
{
    fsdpck_arena_free(&s->arena);
    *s = (struct fsdpck_selection){ 0 };
}
