/* SPDX-License-Identifier: Apache-2.0 */
/* Globs, trees, renames and aliases on a hand-made catalogue, without files. */
#include "engine/selection.h"
#include "engine/source_impl.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- globs ---- */

static void globs(void **state)
{
    (void)state;
    static const struct {
        const char *glob, *name;
        bool match;
    } cases[] = {
        { "", "", true },
        { "", "a", false },
        { "*", "", true },
        { "*", "model.layers.0.weight", true },
        { "**", "x", true },
        { "model.*.weight", "model.layers.0.weight", true },
        { "model.*.weight", "model.weight", false },
        { "*.weight", "model.layers.0.weight", true },
        { "*.weight", "model.layers.0.weights", false },
        { "a?c", "abc", true },
        { "a?c", "ac", false },
        { "a?c",
          "a\xc3\xa9"
          "c",
          true }, /* one character of two bytes */
        { "?", "\xe2\x82\xac", true },
        { "??", "\xe2\x82\xac", false },
        { "layer.[0-3].w", "layer.2.w", true },
        { "layer.[0-3].w", "layer.4.w", false },
        { "layer.[!0-3].w", "layer.4.w", true },
        { "layer.[^0-3].w", "layer.1.w", false },
        { "[abc]x", "bx", true },
        { "[]x]", "]", true },
        { "[a-]", "-", true },
        { "[a", "[a", true },
        { "[\\]]", "]", true },
        { "[\xc3\xa0-\xc3\xbf]", "\xc3\xa9", true },
        { "\\*", "*", true },
        { "\\*", "x", false },
        { "a\\", "a\\", true },
        { "*a*b*c", "xxaybzc", true },
        { "*a*b*c", "xxaybz", false },
        { "*ab", "aab", true },
        { "*aab", "aaab", true },
        { "*.0.*", "m.10.0.w", true },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (fsdpck_glob_match(cases[i].glob, cases[i].name) != cases[i].match)
            fail_msg("glob '%s' on '%s': wanted %s", cases[i].glob, cases[i].name, cases[i].match ? "a match" : "none");
}

/* With backtracking at every star this would take for ever. */
static void pathological_globs_end(void **state)
{
    (void)state;
    enum { N = 20000 };
    static char name[N + 1];
    memset(name, 'a', N);
    assert_false(fsdpck_glob_match("*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*b", name));
    assert_false(fsdpck_glob_match("*a*a*a*a*b", name));
    assert_true(fsdpck_glob_match("*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a", name));
}

/* ---- a catalogue ---- */

static const struct fsdpck_source_ops ops = { .kind = "test" };

static struct fsdpck_source *new_source(void)
{
    struct fsdpck_source *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->ops = &ops;
    s->io = &fsdpck_io_posix;
    s->path = "here";
    s->tensors.item_nbytes = sizeof(struct fsdpck_tensor);
    s->items.item_nbytes = sizeof(struct source_item);
    s->assets.item_nbytes = sizeof(struct source_asset);
    s->files.item_nbytes = sizeof(struct source_file);
    return s;
}

/* "model/a.b" has the keys "model", "a.b" and the name "model.a.b"; a key of digits is a list index. */
static uint32_t keys_of(const char *spec, char *name, struct fsdpck_key *path, char *buf)
{
    uint32_t n = 0;
    strcpy(buf, spec);
    strcpy(name, spec);
    for (char *c = name; *c; c++)
        if (*c == '/')
            *c = '.';
    for (char *key = strtok(buf, "/"); key; key = strtok(NULL, "/"), n++)
        path[n] = strspn(key, "0123456789") == strlen(key) ? (struct fsdpck_key){ NULL, strtoull(key, NULL, 10) }
                                                           : (struct fsdpck_key){ key, 0 };
    return n;
}

static void add(struct fsdpck_source *s, const char *spec, enum fsdpck_dtype dtype)
{
    char name[256], buf[256];
    struct fsdpck_key path[8];
    uint32_t npath = keys_of(spec, name, path, buf);
    assert_non_null(fsdpck_source_add_tensor(s, "f", name, path, npath, dtype, 1, (uint64_t[]){ 4 }, NULL));
}

static void add_alias(struct fsdpck_source *s, const char *spec, size_t target)
{
    char name[256], buf[256];
    struct fsdpck_key path[8];
    uint32_t npath = keys_of(spec, name, path, buf);
    assert_int_equal(fsdpck_source_add_alias(s, "f", name, path, npath, target, NULL), 0);
}

static void add_item(struct fsdpck_source *s, const char *spec)
{
    char name[256], buf[256];
    struct fsdpck_key path[8];
    uint32_t npath = keys_of(spec, name, path, buf);
    assert_non_null(fsdpck_source_add_item(s, name, path, npath, NULL));
}

/* Compares the outcome as text: "name[keys] name=position …| items". */
static void check(struct fsdpck_source *s, const struct fsdpck_select *select, enum fsdpck_tree_policy policy,
                  const char *want)
{
    struct fsdpck_selection sel;
    struct fsdpck_error err = { 0 };
    char got[2048] = "", line[512];
    if (fsdpck_selection_make(s, select, policy, &sel, &err) != 0)
        fail_msg("refused: %s", err.message);
    for (size_t i = 0; i < sel.ntensors; i++) {
        const struct fsdpck_chosen *c = &sel.tensors[i];
        snprintf(line, sizeof line, "%s%s[", i ? " " : "", c->name);
        for (uint32_t k = 0; k < c->npath; k++)
            snprintf(line + strlen(line), sizeof line - strlen(line), "%s%s", k ? "|" : "",
                     c->path[k].str ? c->path[k].str : "#");
        snprintf(line + strlen(line), sizeof line - strlen(line), "]");
        if (c->alias_of >= 0)
            snprintf(line + strlen(line), sizeof line - strlen(line), "=%d", (int)c->alias_of);
        assert_true(c->alias_of < (int64_t)i);
        assert_true(fsdpck_source_tensor(s, c->source)->alias_of < 0);
        strcat(got, line);
    }
    for (size_t i = 0; i < sel.nitems; i++) {
        strcat(got, i ? " " : " + ");
        strcat(got, sel.items[i].name);
    }
    if (strcmp(got, want) != 0)
        fail_msg("got    %s\nwanted %s", got, want);
    fsdpck_selection_free(&sel);
}

static void refuse(struct fsdpck_source *s, const struct fsdpck_select *select, enum fsdpck_tree_policy policy,
                   const char *fragment)
{
    struct fsdpck_selection sel;
    struct fsdpck_error err = { 0 };
    assert_int_equal(fsdpck_selection_make(s, select, policy, &sel, &err), FSDPCK_ERR_USAGE);
    if (!strstr(err.message, fragment))
        fail_msg("'%s', wanted '%s' in it", err.message, fragment);
    assert_null(sel.tensors);
}

static void everything_by_default(void **state)
{
    (void)state;
    struct fsdpck_source *s = new_source();
    struct fsdpck_select all = { 0 };
    check(s, &all, FSDPCK_TREE_KEEP, "");
    add(s, "model/a", FSDPCK_FLOAT32);
    add(s, "optim/state/3/x", FSDPCK_FLOAT32);
    add_item(s, "optim/lr");
    check(s, &all, FSDPCK_TREE_KEEP, "model.a[model|a] optim.state.3.x[optim|state|#|x] + optim.lr");
    fsdpck_source_close(s);
}

static void the_model_tree_is_found(void **state)
{
    (void)state;
    struct fsdpck_source *s = new_source();
    struct fsdpck_select all = { 0 }, optim = { .tree = "optim" }, deep = { .tree = "optim.state" },
                         part = { .tree = "opt" };
    add(s, "optim/state/a", FSDPCK_FLOAT32);
    add(s, "model/layers.0.w", FSDPCK_FLOAT32);
    add_item(s, "model/extra");
    add_item(s, "step");
    check(s, &all, FSDPCK_TREE_MODEL, "layers.0.w[layers.0.w] + extra");
    check(s, &optim, FSDPCK_TREE_MODEL, "state.a[state|a]");
    check(s, &deep, FSDPCK_TREE_KEEP, "a[a]");
    refuse(s, &part, FSDPCK_TREE_KEEP, "none of the 2 tensors is in a tree 'opt'");
    fsdpck_source_close(s);
}

static void other_shapes_of_trees(void **state)
{
    (void)state;
    struct fsdpck_select all = { 0 };
    struct fsdpck_source *flat = new_source(), *only = new_source(), *app = new_source(), *beside = new_source(),
                         *several = new_source(), *inner = new_source();
    add(flat, "a.w", FSDPCK_FLOAT32);
    check(flat, &all, FSDPCK_TREE_MODEL, "a.w[a.w]");
    add(only, "state/b.w", FSDPCK_FLOAT32);
    check(only, &all, FSDPCK_TREE_MODEL, "b.w[b.w]");
    add(app, "app/optim/m", FSDPCK_FLOAT32);
    add(app, "app/model/w", FSDPCK_FLOAT32);
    check(app, &all, FSDPCK_TREE_MODEL, "w[w]");
    add(beside, "w", FSDPCK_FLOAT32);
    add(beside, "optim/m", FSDPCK_FLOAT32);
    check(beside, &all, FSDPCK_TREE_MODEL, "w[w]");
    add(several, "gen/w", FSDPCK_FLOAT32);
    add(several, "disc/w", FSDPCK_FLOAT32);
    refuse(several, &all, FSDPCK_TREE_MODEL, "'gen', 'disc'");
    add(inner, "app/net/w", FSDPCK_FLOAT32);
    add(inner, "app/optim/w", FSDPCK_FLOAT32);
    refuse(inner, &all, FSDPCK_TREE_MODEL, "'app.net', 'app.optim'");
    fsdpck_source_close(flat);
    fsdpck_source_close(only);
    fsdpck_source_close(app);
    fsdpck_source_close(beside);
    fsdpck_source_close(several);
    fsdpck_source_close(inner);
}

static void include_and_exclude(void **state)
{
    (void)state;
    struct fsdpck_source *s = new_source();
    const char *in[] = { "*.w", "z*" }, *out[] = { "b.*" }, *none[] = { "nothing" };
    struct fsdpck_select pick = { .include = in, .ninclude = 2, .exclude = out, .nexclude = 1 },
                         nothing = { .include = none, .ninclude = 1 };
    add(s, "a.w", FSDPCK_FLOAT32);
    add(s, "b.w", FSDPCK_FLOAT32);
    add(s, "a.bias", FSDPCK_FLOAT32);
    add(s, "zz", FSDPCK_FLOAT32);
    add_item(s, "z.item");
    add_item(s, "lr");
    check(s, &pick, FSDPCK_TREE_KEEP, "a.w[a.w] zz[zz] + z.item");
    refuse(s, &nothing, FSDPCK_TREE_KEEP, "--include: no tensor matches 'nothing'");
    const char *all[] = { "*" }, *typo[] = { "*.w", "*.biass" };
    struct fsdpck_select emptied = { .exclude = all, .nexclude = 1 }, mistyped = { .exclude = typo, .nexclude = 2 };
    refuse(s, &emptied, FSDPCK_TREE_KEEP, "none of the 4 tensors is selected");
    refuse(s, &mistyped, FSDPCK_TREE_KEEP, "--exclude: no tensor matches '*.biass'");
    fsdpck_source_close(s);
}

/* A list is refused if one of its patterns matches nothing in the selected tree, even if it matches elsewhere. */
static void includes_are_for_the_tree_that_goes_out(void **state)
{
    (void)state;
    struct fsdpck_source *s = new_source();
    const char *both[] = { "model.*", "optim.*" }, *one[] = { "optim.*" };
    struct fsdpck_select two = { .include = both, .ninclude = 2 }, only = { .include = one, .ninclude = 1 };
    add(s, "model/w", FSDPCK_FLOAT32);
    add(s, "optim/m", FSDPCK_FLOAT32);
    check(s, &two, FSDPCK_TREE_KEEP, "model.w[model|w] optim.m[optim|m]");
    check(s, &only, FSDPCK_TREE_MODEL, "m[m]");
    refuse(s, &two, FSDPCK_TREE_MODEL, "--include: 'optim.*' matches nothing in the tree 'model'");
    fsdpck_source_close(s);
}

static void distances_to_patterns(void **state)
{
    (void)state;
    static const struct {
        const char *glob, *name;
        unsigned edits;
    } cases[] = {
        { "", "", 0 },
        { "", "abc", 3 },
        { "abc", "", 3 },
        { "*", "anything", 0 },
        { "*.q_prj.weight", "model.layers.0.self_attn.q_proj.weight", 1 },
        { "layer.?.w", "layer.1.w", 0 },
        { "layer.[0-3].w", "layer.7.w", 1 },
        { "\\*a", "*a", 0 },
        { "norm", "nrom", 2 },
        { "*.wieght", "l.weight", 2 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (fsdpck_glob_distance(cases[i].glob, cases[i].name) != cases[i].edits)
            fail_msg("'%s' to '%s': %u, wanted %u", cases[i].glob, cases[i].name,
                     fsdpck_glob_distance(cases[i].glob, cases[i].name), cases[i].edits);
}

static void renames_keep_the_nesting(void **state)
{
    (void)state;
    struct fsdpck_source *s = new_source();
    add(s, "model/layers.0.w", FSDPCK_FLOAT32);
    add(s, "model/norm", FSDPCK_FLOAT32);
    add(s, "flat.w", FSDPCK_FLOAT32);
    static const struct {
        struct fsdpck_pair pair;
        const char *want;
    } cases[] = {
        { { "model.", "" }, "layers.0.w[layers.0.w] norm[norm] flat.w[flat.w]" },
        { { "model.", "net." }, "net.layers.0.w[net|layers.0.w] net.norm[net|norm] flat.w[flat.w]" },
        { { "model.layers.", "model.blocks." },
          "model.blocks.0.w[model|blocks.0.w] model.norm[model|norm] flat.w[flat.w]" },
        { { "model.", "model.x." },
          "model.x.layers.0.w[model|x.layers.0.w] model.x.norm[model|x.norm] flat.w[flat.w]" },
        { { "mod", "MOD" }, "MODel.layers.0.w[MODel|layers.0.w] MODel.norm[MODel|norm] flat.w[flat.w]" },
        { { "model.no", "x" }, "model.layers.0.w[model|layers.0.w] xrm[xrm] flat.w[flat.w]" },
        { { "", "all." },
          "all.model.layers.0.w[all.model|layers.0.w] all.model.norm[all.model|norm] all.flat.w[all.flat.w]" },
        { { "model.layers.", "" }, "0.w[0.w] model.norm[model|norm] flat.w[flat.w]" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fsdpck_select sel = { .rename = &cases[i].pair, .nrename = 1 };
        check(s, &sel, FSDPCK_TREE_KEEP, cases[i].want);
    }
    const struct fsdpck_pair first[] = { { "flat.", "a." }, { "", "b." } }, gone = { "flat.w", "" },
                             clash = { "model.norm", "flat.w" };
    struct fsdpck_select two = { .rename = first, .nrename = 2 }, empty = { .rename = &gone, .nrename = 1 },
                         same = { .rename = &clash, .nrename = 1 };
    check(s, &two, FSDPCK_TREE_KEEP, "b.model.layers.0.w[b.model|layers.0.w] b.model.norm[b.model|norm] a.w[a.w]");
    const struct fsdpck_pair again[] = { { "flat.", "a." }, { "flat.", "b." } },
                             longer[] = { { "model.", "m." }, { "model.norm", "n" } };
    struct fsdpck_select shadowed = { .rename = again, .nrename = 2 }, later = { .rename = longer, .nrename = 2 };
    refuse(s, &shadowed, FSDPCK_TREE_KEEP, "--rename: 'flat.=b.' is never used");
    refuse(s, &later, FSDPCK_TREE_KEEP, "--rename: 'model.norm=n' is never used");
    refuse(s, &empty, FSDPCK_TREE_KEEP, "renaming 'flat.w' leaves no name");
    refuse(s, &same, FSDPCK_TREE_KEEP, "two entries would both be called 'flat.w'");
    /* anywhere in the name, each time, and before prefixes */
    const struct fsdpck_pair inside[] = { { "*.layers.", ".blocks." }, { "model.", "m." } },
                             every[] = { { "*o", "oo" } }, none[] = { { "*.layres.", "." } }, star[] = { { "*", "x" } };
    struct fsdpck_select both = { .rename = inside, .nrename = 2 }, each = { .rename = every, .nrename = 1 },
                         absent = { .rename = none, .nrename = 1 }, bare = { .rename = star, .nrename = 1 };
    check(s, &both, FSDPCK_TREE_KEEP, "m.blocks.0.w[m|blocks.0.w] m.norm[m|norm] flat.w[flat.w]");
    check(s, &each, FSDPCK_TREE_KEEP, "moodel.layers.0.w[moodel|layers.0.w] moodel.noorm[moodel|noorm] flat.w[flat.w]");
    refuse(s, &absent, FSDPCK_TREE_KEEP, "--rename: no tensor matches '*.layres.'");
    refuse(s, &bare, FSDPCK_TREE_KEEP, "--rename: no name begins with '*'");
    const struct fsdpck_pair typo[] = { { "flat.", "a." }, { "modle.", "b." } };
    struct fsdpck_select mistyped = { .rename = typo, .nrename = 2 };
    refuse(s, &mistyped, FSDPCK_TREE_KEEP, "--rename: no name begins with 'modle.'");
    fsdpck_source_close(s);
}

static void aliases_follow_what_they_name(void **state)
{
    (void)state;
    struct fsdpck_source *s = new_source();
    const char *no_embed[] = { "embed" };
    struct fsdpck_select all = { 0 }, left_out = { .exclude = no_embed, .nexclude = 1 };
    const struct fsdpck_pair more[] = { { "third", "head" }, { "fourth", "other" } }, bad = { "x", "nowhere" },
                             taken = { "other", "embed" };
    struct fsdpck_select with = { .alias = more, .nalias = 2 }, missing = { .alias = &bad, .nalias = 1 },
                         twice = { .alias = &taken, .nalias = 1 };
    add(s, "embed", FSDPCK_FLOAT32);
    add_alias(s, "head", 0);
    add_alias(s, "head2", 1); /* an alias of an alias */
    add(s, "other", FSDPCK_FLOAT32);
    check(s, &all, FSDPCK_TREE_KEEP, "embed[embed] head[head]=0 head2[head2]=0 other[other]");
    check(s, &left_out, FSDPCK_TREE_KEEP, "head[head] head2[head2]=0 other[other]");
    check(s, &with, FSDPCK_TREE_KEEP,
          "embed[embed] head[head]=0 head2[head2]=0 other[other] third[third]=0 fourth[fourth]=3");
    refuse(s, &missing, FSDPCK_TREE_KEEP, "alias 'x' is for tensor 'nowhere'");
    refuse(s, &twice, FSDPCK_TREE_KEEP, "'other'");
    fsdpck_source_close(s);

    s = new_source(); /* the alias comes first in the source, and is nested */
    const struct fsdpck_pair sibling = { "model.tied", "model.w" }, stranger = { "tied", "model.w" };
    struct fsdpck_select nested = { .alias = &sibling, .nalias = 1 }, foreign = { .alias = &stranger, .nalias = 1 };
    add(s, "model/w", FSDPCK_FLOAT32);
    add(s, "z", FSDPCK_FLOAT32);
    check(s, &nested, FSDPCK_TREE_KEEP, "model.w[model|w] z[z] model.tied[model|tied]=0");
    check(s, &foreign, FSDPCK_TREE_KEEP, "model.w[model|w] z[z] tied[tied]=0");
    source_tensors(s)[0].alias_of = 1;
    check(s, &all, FSDPCK_TREE_KEEP, "z[z] model.w[model|w]=0");
    fsdpck_source_close(s);
}

static void casts_touch_wide_floats_only(void **state)
{
    (void)state;
    struct fsdpck_source *s = new_source();
    struct fsdpck_select cast = { .cast = true, .dtype = FSDPCK_BFLOAT16 },
                         wrong = { .cast = true, .dtype = FSDPCK_FLOAT8_E5M2 };
    static const enum fsdpck_dtype in[] = { FSDPCK_FLOAT64,     FSDPCK_FLOAT16,   FSDPCK_INT64,
                                            FSDPCK_FLOAT8_E5M2, FSDPCK_COMPLEX64, FSDPCK_BOOL };
    static const char *const names[] = { "a", "b", "c", "d", "e", "f" };
    struct fsdpck_selection sel;
    for (int i = 0; i < 6; i++)
        add(s, names[i], in[i]);
    assert_int_equal(fsdpck_selection_make(s, &cast, FSDPCK_TREE_KEEP, &sel, NULL), 0);
    for (int i = 0; i < 6; i++)
        assert_int_equal(sel.tensors[i].dtype, i < 2 ? FSDPCK_BFLOAT16 : in[i]);
    fsdpck_selection_free(&sel);
    refuse(s, &wrong, FSDPCK_TREE_KEEP, "not to float8_e5m2");
    fsdpck_source_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(globs),
        cmocka_unit_test(pathological_globs_end),
        cmocka_unit_test(everything_by_default),
        cmocka_unit_test(the_model_tree_is_found),
        cmocka_unit_test(other_shapes_of_trees),
        cmocka_unit_test(include_and_exclude),
        cmocka_unit_test(includes_are_for_the_tree_that_goes_out),
        cmocka_unit_test(distances_to_patterns),
        cmocka_unit_test(renames_keep_the_nesting),
        cmocka_unit_test(aliases_follow_what_they_name),
        cmocka_unit_test(casts_touch_wide_floats_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
