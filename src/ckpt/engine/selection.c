/* SPDX-License-Identifier: Apache-2.0 */
/* Turns a user's selection (trees, globs, renames, aliases, a dtype) into the list of tensors and items to write, with
 * their output names. Reads a source's catalogue, never payload, and knows nothing of outputs. */
#include "engine/selection_impl.h"

#include <stdlib.h>
#include <string.h>

#include "engine/unmatched.h"

/* ---- names ---- */

/* FROM begins with '*': the rest is replaced wherever it stands. */
static bool is_inside(const struct fsdpck_pair *pair)
{
    return pair->key[0] == '*' && pair->key[1] != '\0';
}

static char *join_text(struct choice *c, const char *s, size_t nbytes, const char *t)
{
    const size_t more = strlen(t);
    char *both = fsdpck_arena_alloc(&c->out->arena, nbytes + more + 1, c->err);
    if (both) {
        memcpy(both, s, nbytes);
        memcpy(both + nbytes, t, more + 1);
    }
    return both;
}

static int rename_inside(struct choice *c, struct fsdpck_named *n, size_t i)
{
    const char *from = c->select->rename[i].key + 1, *to = c->select->rename[i].value, *found;
    size_t begin = 0;
    int rc = 0;
    while (!rc && (found = strstr(n->name + begin, from))) {
        const size_t at = (size_t)(found - n->name);
        const char *old = join_text(c, n->name, at, from), *new = old ? join_text(c, n->name, at, to) : NULL;
        rc = new ? fsdpck_named_replace_prefix(&c->out->arena, n, old, new, c->err) : c->err->code;
        begin = at + strlen(to);
        c->renamed[i] = USED;
    }
    return rc;
}

static int rename_prefix(struct choice *c, struct fsdpck_named *n)
{
    const struct fsdpck_select *s = c->select;
    const char *old = n->name;
    int rc = 0;
    for (size_t i = 0, done = 0; i < s->nrename && !rc; i++) {
        if (is_inside(&s->rename[i]) || strncmp(old, s->rename[i].key, strlen(s->rename[i].key)) != 0)
            continue;
        if (done++) {
            c->renamed[i] = c->renamed[i] == USED ? USED : SHADOWED;
            continue;
        }
        c->renamed[i] = USED;
        rc = fsdpck_named_replace_prefix(&c->out->arena, n, s->rename[i].key, s->rename[i].value, c->err);
    }
    return rc;
}

/* Makes the output name: drops the tree, replaces what stands anywhere, and then the prefix. */
static int rename_one(struct choice *c, struct fsdpck_named *n)
{
    int rc = c->tree ? fsdpck_named_drop(&c->out->arena, n, fsdpck_named_in_tree(n, c->tree), c->err) : 0;
    const char *old = n->name;
    for (size_t i = 0; i < c->select->nrename && !rc; i++)
        if (is_inside(&c->select->rename[i]))
            rc = rename_inside(c, n, i);
    if (!rc)
        rc = rename_prefix(c, n);
    if (!rc && !*n->name)
        rc = fsdpck_error_set(c->err, FSDPCK_ERR_USAGE, NULL, "renaming '%s' leaves no name", old);
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
        struct fsdpck_unmatched u = { .pattern = c->select->rename[i].key,
                                      .prefix = !is_inside(&c->select->rename[i]) };
        if (c->renamed[i] == USED)
            continue;
        if (c->renamed[i] == SHADOWED)
            return shadowed_rename(c, &c->select->rename[i]);
        for (size_t k = 0; k < fsdpck_source_ntensors(c->src); k++) {
            struct fsdpck_named n = selection_tensor(c, k);
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
    struct fsdpck_named n = selection_tensor(c, ordinal);
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
        if (!fsdpck_selection_keeps(c, &n)) {
            c->out->nleft_items += fsdpck_selection_tree_leaves(c, &n);
            continue;
        }
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

int fsdpck_selection_make(const struct fsdpck_source *src, const struct fsdpck_select *select,
                          enum fsdpck_tree_policy policy, struct fsdpck_selection *out, struct fsdpck_error *err)
{
    struct choice c = { .src = src, .select = select, .out = out, .err = err };
    *out = (struct fsdpck_selection){ 0 };
    int rc = check_request(&c);
    if (!rc)
        rc = allocate(&c);
    if (!rc)
        rc = fsdpck_selection_choose_tree(&c, policy);
    if (!rc)
        rc = fsdpck_selection_filter(&c);
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
