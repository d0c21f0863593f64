/* SPDX-License-Identifier: Apache-2.0 */
/* Decides which tensors and items go out: trees and globs, and the errors for those that match nothing. */
#include "engine/selection_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

bool fsdpck_selection_keeps(const struct choice *c, const struct fsdpck_named *n)
{
    return globs_keep(c->select, n->name) && tree_keeps(c, n);
}

bool fsdpck_selection_tree_leaves(const struct choice *c, const struct fsdpck_named *n)
{
    return globs_keep(c->select, n->name) && !tree_keeps(c, n);
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
        struct fsdpck_named n = selection_tensor(c, i);
        if (fsdpck_selection_keeps(c, &n))
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

int fsdpck_selection_choose_tree(struct choice *c, enum fsdpck_tree_policy policy)
{
    const struct fsdpck_key key = { c->select->tree, 0 };
    int rc = c->select->tree ? enter_tree(c, &key) : policy == FSDPCK_TREE_MODEL ? find_model_tree(c) : 0;
    c->out->flat_only = c->flat_only;
    if (rc || !c->tree)
        return rc;
    c->out->tree = fsdpck_arena_strndup(&c->out->arena, c->tree, strlen(c->tree), c->err);
    return c->out->tree ? 0 : FSDPCK_ERR_NOMEM;
}

/* ---- tensors ---- */

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
                     "--select: none of the %zu tensor%s is in a tree '%s' and selected", n, fsdpck_plural(n),
                     c->select->tree);
    for (size_t i = 0; i < n; i++) {
        const struct fsdpck_named name = selection_tensor(c, i);
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
static bool would_match(const struct choice *c, const char *glob, const struct fsdpck_named *n)
{
    const struct fsdpck_select only_included = { .include = c->select->include, .ninclude = c->select->ninclude };
    return fsdpck_glob_match(glob, n->name) && tree_keeps(c, n) && globs_keep(&only_included, n->name);
}

static bool would_match_any(const struct choice *c, const char *glob)
{
    for (size_t i = 0; i < fsdpck_source_ntensors(c->src); i++) {
        const struct fsdpck_named n = selection_tensor(c, i);
        if (would_match(c, glob, &n))
            return true;
    }
    for (size_t i = 0; i < fsdpck_source_nitems(c->src); i++) {
        const struct fsdpck_item *item = fsdpck_source_item(c->src, i);
        const struct fsdpck_named n = { item->name, item->path, item->npath };
        if (would_match(c, glob, &n))
            return true;
    }
    return false;
}

/* An --exclude without effect is not an error, but may be a typo, so give a note. */
static void note_excludes(const struct choice *c)
{
    char line[512];
    for (size_t g = 0; c->src->opt.note && g < c->select->nexclude; g++) {
        if (would_match_any(c, c->select->exclude[g]))
            continue;
        snprintf(line, sizeof line, "--exclude '%s' has no effect: nothing that it matches would go out without it",
                 c->select->exclude[g]);
        c->src->opt.note(c->src->opt.ctx, line);
    }
}

static int check_globs(const struct choice *c)
{
    for (size_t g = 0; c->tree && g < c->select->ninclude; g++) {
        if (would_match_any(c, c->select->include[g]))
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

int fsdpck_selection_filter(struct choice *c)
{
    size_t n = fsdpck_source_ntensors(c->src), nkept = 0;
    for (size_t i = 0; i < n; i++) {
        struct fsdpck_named name = selection_tensor(c, i);
        c->kept[i] = fsdpck_selection_keeps(c, &name);
        c->position[i] = -1;
        nkept += c->kept[i];
        c->out->nleft_tensors += fsdpck_selection_tree_leaves(c, &name);
    }
    if (n == 0 && !c->select->tree)
        return 0;
    if (nkept)
        return check_globs(c);
    if (c->select->tree)
        return no_such_tree(c);
    fsdpck_error_set(c->err, FSDPCK_ERR_USAGE, fsdpck_source_path(c->src), "none of the %zu tensor%s is selected", n,
                     fsdpck_plural(n));
    fsdpck_error_hint(c->err, "together, --include and --exclude leave none");
    return FSDPCK_ERR_USAGE;
}
