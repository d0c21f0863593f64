/* SPDX-License-Identifier: Apache-2.0 */
#include "lora/fuse.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hf/name_pattern.h"
#include "lora/blocks_view.h"
#include "lora/extend.h"

enum { GATE, UP, NPARTS };

/* A module of one expert. */
struct single {
    const struct fsdpck_lora_module *module;
    size_t stem; /* bytes of the path before ".experts" */
    uint64_t expert;
    unsigned part;
    bool down, half; /* half: of gate over up */
};

/* What becomes one module. */
struct group {
    const struct single *first;
    uint64_t nexperts, nparts;
    const struct fsdpck_lora_module **modules; /* (nexperts, nparts) */
};

struct fuse {
    struct fsdpck_lora_adapter *a;
    bool stacked;
    struct single *singles;
    size_t nsingles;
    struct fsdpck_vec groups; /* struct group */
    struct fsdpck_error *err;
};

static const char mark[] = ".experts.";

/* Whether the module is of one expert. */
static bool parse(const struct fsdpck_lora_module *m, struct single *out)
{
    static const struct {
        const char *leaf;
        unsigned part;
        bool down, half;
    } leaves[] = {
        { "gate_proj", GATE, false, true }, { "up_proj", UP, false, true },         { "w1", GATE, false, true },
        { "w3", UP, false, true },          { "gate_up_proj", GATE, false, false }, { "down_proj", GATE, true, false },
        { "w2", GATE, true, false }
    };
    const char *at = NULL;
    for (const char *p = m->path; (p = strstr(p, mark)); p++)
        at = p;
    *out = (struct single){ .module = m, .stem = at ? (size_t)(at - m->path) : 0 };
    const char *rest = at ? fsdpck_name_index(at + sizeof mark - 1, &out->expert) : NULL;
    for (size_t i = 0; rest && *rest == '.' && i < sizeof leaves / sizeof *leaves; i++)
        if (strcmp(rest + 1, leaves[i].leaf) == 0) {
            out->part = leaves[i].part;
            out->down = leaves[i].down;
            out->half = leaves[i].half;
            return true;
        }
    return false;
}

static int by_group(const void *x, const void *y)
{
    const struct single *a = x, *b = y;
    const int rc = a->stem == b->stem ? strncmp(a->module->path, b->module->path, a->stem) : a->stem < b->stem ? -1 : 1;
    return rc                       ? rc
           : a->down != b->down     ? a->down - b->down
           : a->expert != b->expert ? (a->expert < b->expert ? -1 : 1)
                                    : (int)a->part - (int)b->part;
}

static bool is_same_group(const struct single *a, const struct single *b)
{
    return a->stem == b->stem && a->down == b->down && strncmp(a->module->path, b->module->path, a->stem) == 0;
}

/* ---- checks ---- */

static int refuse(const struct fuse *f, const struct single *s, const char *what)
{
    return fsdpck_lora_refuse(f->a, s->module->a, FSDPCK_ERR_UNSUPPORTED, f->err, "%s", what);
}

static bool has_same_shape(const struct fuse *f, int64_t x, int64_t y)
{
    const struct fsdpck_tensor *a = lora_tensor(f->a, x), *b = lora_tensor(f->a, y);
    return a->dtype == b->dtype && a->ndim == 2 && b->ndim == 2 &&
           memcmp(a->shape, b->shape, 2 * sizeof *a->shape) == 0;
}

static int check_single(const struct fuse *f, const struct single *first, const struct single *s, uint64_t nparts,
                        size_t at)
{
    const struct fsdpck_lora_module *m = s->module, *o = first->module;
    if (s->half != first->half || s->expert != at / nparts || s->part != at % nparts)
        return refuse(f, s,
                      "joined to one pair, the layer's experts need gate, up and down of each, from expert 0 on, and "
                      "one is missing before this one");
    if (m->bias >= 0 || m->magnitude >= 0)
        return refuse(f, s, "fused experts have no DoRA and no lora_bias in PEFT");
    if (m->r > FSDPCK_BLOCK_MAX_COLS)
        return refuse(f, s, "has a rank above 65536: no fused pair is written of it");
    if (!has_same_shape(f, m->a, o->a) || !has_same_shape(f, m->b, o->b) || m->alpha != o->alpha)
        return refuse(f, s,
                      "has another shape, dtype or alpha than the layer's first expert: one pair has one of each");
    return 0;
}

static int add_group(struct fuse *f, const struct single *first, size_t n)
{
    const uint64_t nparts = first->half ? NPARTS : 1;
    struct group *g = fsdpck_vec_push(&f->groups, f->err);
    if (!g)
        return FSDPCK_ERR_NOMEM;
    *g = (struct group){ first, (n + nparts - 1) / nparts, nparts,
                         fsdpck_arena_array(&f->a->arena, n + nparts, sizeof *g->modules, f->err) };
    int rc = g->modules ? 0 : FSDPCK_ERR_NOMEM;
    for (size_t i = 0; i < n && !rc; i++) {
        rc = check_single(f, first, &first[i], nparts, i);
        g->modules[i] = first[i].module;
    }
    return !rc && n % nparts ? refuse(f, &first[n - 1], "is of an expert that has no other half of gate over up") : rc;
}

/* One pair is for all experts of a layer, and layers have the same number of them. */
static int check_counts(const struct fuse *f)
{
    const struct group *list = f->groups.data;
    uint64_t most = 0;
    for (size_t i = 0; i < f->groups.count; i++)
        most = list[i].nexperts > most ? list[i].nexperts : most;
    for (size_t i = 0; i < f->groups.count; i++)
        if (list[i].nexperts < most)
            return fsdpck_lora_refuse(f->a, list[i].modules[list[i].nexperts * list[i].nparts - 1]->a,
                                      FSDPCK_ERR_UNSUPPORTED, f->err,
                                      "is of the last of %llu experts, where others have %llu: one pair is for all "
                                      "experts of a layer",
                                      (unsigned long long)list[i].nexperts, (unsigned long long)most);
    return 0;
}

static int find_groups(struct fuse *f)
{
    const struct fsdpck_lora_module *m = lora_modules(f->a);
    f->singles = fsdpck_arena_array(&f->a->arena, f->a->modules.count + 1, sizeof *f->singles, f->err);
    if (!f->singles)
        return FSDPCK_ERR_NOMEM;
    for (size_t i = 0; i < f->a->modules.count; i++)
        f->nsingles += parse(&m[i], &f->singles[f->nsingles]);
    qsort(f->singles, f->nsingles, sizeof *f->singles, by_group);
    int rc = 0;
    for (size_t i = 0, n; i < f->nsingles && !rc; i += n) {
        for (n = 1; i + n < f->nsingles && is_same_group(&f->singles[i], &f->singles[i + n]);)
            n++;
        rc = add_group(f, &f->singles[i], n);
    }
    return rc ? rc : check_counts(f);
}

/* ---- what they become ---- */

/* The path with transformers' names. The block of Mixtral's experts is called mlp there. */
static const char *path_of(const struct fuse *f, const struct group *g, const char *tail)
{
    static const char mixtral[] = ".block_sparse_moe";
    const char *path = g->first->module->path;
    size_t stem = g->first->stem, n = sizeof mixtral - 1, nbytes = stem + strlen(tail) + sizeof ".mlp.experts";
    const bool renamed = stem >= n && strncmp(path + stem - n, mixtral, n) == 0;
    char *text = fsdpck_arena_alloc(&f->a->arena, nbytes, f->err);
    if (text)
        snprintf(text, nbytes, "%.*s%s.experts%s", (int)(stem - (renamed ? n : 0)), path, renamed ? ".mlp" : "", tail);
    return text;
}

/* PEFT nests the wrapper of gate_up_proj in that of down_proj, if there are both. */
static bool is_inner(const struct fuse *f, const struct group *g)
{
    const struct group *list = f->groups.data;
    for (size_t i = 0; i < f->groups.count && !g->first->down; i++)
        if (list[i].first->down && list[i].first->stem == g->first->stem &&
            strncmp(list[i].first->module->path, g->first->module->path, g->first->stem) == 0)
            return true;
    return false;
}

/* A factor of the group and its size: A [r, width] or B [width, r] of each part of each expert. */
struct factor {
    const struct group *g;
    bool is_b, stacked;
    uint64_t r, width;
};

/* PEFT's pair is of matrices: A [experts * parts * r, width], the As one below the other; B [parts * width, parts * r *
 * experts], the expert's number fastest, with zeros where a part has nothing of another's rank. SGLang's is of stacks,
 * A [experts, parts * r, width] and B [experts, parts * width, r]. */
static void set_shape(const struct factor *x, struct fsdpck_lora_blocks *out)
{
    const uint64_t nparts = x->g->nparts, nexperts = x->g->nexperts;
    out->nlayer = x->stacked ? nexperts : 0;
    out->nrows = x->is_b ? nparts * x->width : nexperts * nparts * x->r;
    out->ncols = x->is_b ? nparts * x->r * nexperts : x->width;
    if (x->is_b && x->stacked) {
        out->nrows *= nexperts;
        out->ncols = x->r;
    }
}

/* Block i of the group's modules, which are (nexperts, nparts). */
static struct fsdpck_lora_block block_of(const struct factor *x, uint64_t i, size_t inner)
{
    const uint64_t expert = i / x->g->nparts, part = i % x->g->nparts;
    struct fsdpck_lora_block b = { .inner = inner, .scale = 1 };
    b.nrows = x->is_b ? x->width : x->r;
    b.ncols = x->is_b ? x->r : x->width;
    b.row = i * b.nrows;
    if (x->is_b && !x->stacked) {
        b.row = part * x->width;
        b.col = part * x->r * x->g->nexperts + expert;
        b.step = x->g->nexperts;
    }
    return b;
}

static int describe(const struct fuse *f, const struct group *g, bool is_b, struct fsdpck_lora_blocks *out)
{
    const struct fsdpck_lora_module *m = g->first->module;
    const struct fsdpck_chosen *chosen = f->a->selection.tensors;
    const struct factor x = { g, is_b, f->stacked, m->r, lora_tensor(f->a, is_b ? m->b : m->a)->shape[is_b ? 0 : 1] };
    const uint64_t n = g->nexperts * g->nparts;
    struct fsdpck_lora_block *list = fsdpck_arena_array(&f->a->src->arena, n, sizeof *list, f->err);
    const size_t nbytes = strlen(m->path) + 64;
    char *name = fsdpck_arena_alloc(&f->a->src->arena, nbytes, f->err);
    if (!list || !name)
        return FSDPCK_ERR_NOMEM;
    for (uint64_t i = 0; i < n; i++)
        list[i] = block_of(&x, i, chosen[is_b ? g->modules[i]->b : g->modules[i]->a].source);
    snprintf(name, nbytes, "fused %s %.*s.%s", is_b ? "B" : "A", (int)g->first->stem, m->path,
             g->first->down ? "down" : "gate_up");
    *out = (struct fsdpck_lora_blocks){ .name = name, .list = list, .n = n };
    set_shape(&x, out);
    return 0;
}

/* The module of a group, whose tensors have these positions. */
static int set_module(const struct fuse *f, const struct group *g, int64_t a, struct fsdpck_lora_module *out)
{
    const struct fsdpck_lora_module *m = g->first->module;
    const bool wider = g->nparts > 1 && !f->stacked; /* the rank counts both parts, the scaling does not change */
    *out = (struct fsdpck_lora_module){
        .path = path_of(f, g, g->first->down ? ".down_proj" : ".gate_up_proj"),
        .wrapper = f->stacked ? NULL : path_of(f, g, is_inner(f, g) ? ".base_layer" : ""),
        .a = a,
        .b = a + 1,
        .bias = -1,
        .magnitude = -1,
        .r = wider ? 2 * m->r : m->r,
        .alpha = !wider                ? m->alpha
                 : f->a->config.rslora ? m->alpha * sqrt(2)
                                       : 2 * m->alpha,
    };
    out->named = out->path;
    return out->path && (f->stacked || out->wrapper) ? 0 : FSDPCK_ERR_NOMEM;
}

/* Puts the tensors behind the others of the selection. */
static int take_tensors(struct fuse *f, size_t nold)
{
    const size_t n = 2 * f->groups.count;
    int64_t *like = fsdpck_arena_array(&f->a->arena, n, sizeof *like, f->err);
    for (size_t i = 0; like && i < n; i++) {
        const struct fsdpck_lora_module *m = ((struct group *)f->groups.data)[i / 2].first->module;
        like[i] = i % 2 ? m->b : m->a;
    }
    return like ? fsdpck_lora_extend(f->a, nold, like, n, f->err) : FSDPCK_ERR_NOMEM;
}

/* Replaces the list of modules. */
static int replace_modules(struct fuse *f, size_t nold)
{
    struct fsdpck_lora_adapter *a = f->a;
    const size_t before = a->selection.ntensors;
    const struct group *g = f->groups.data;
    struct fsdpck_vec modules = FSDPCK_VEC(struct fsdpck_lora_module);
    struct single unused;
    int rc = take_tensors(f, nold);
    for (size_t i = 0; i < a->modules.count && !rc; i++) {
        const struct fsdpck_lora_module *m = &lora_modules(a)[i];
        struct fsdpck_lora_module *to = parse(m, &unused) ? NULL : fsdpck_vec_push(&modules, f->err);
        if (to)
            *to = *m;
        else if (!(rc = f->err->code))
            a->joined[m->a] = a->joined[m->b] = true;
    }
    for (size_t i = 0; i < f->groups.count && !rc; i++) {
        struct fsdpck_lora_module *to = fsdpck_vec_push(&modules, f->err);
        rc = to ? set_module(f, &g[i], (int64_t)(before + 2 * i), to) : FSDPCK_ERR_NOMEM;
    }
    if (rc) {
        fsdpck_vec_free(&modules);
        return rc;
    }
    fsdpck_vec_free(&a->modules);
    a->modules = modules;
    return 0;
}

int fsdpck_lora_fuse(struct fsdpck_lora_adapter *a, bool stacked, struct fsdpck_error *err)
{
    struct fuse f = { .a = a, .stacked = stacked, .groups = FSDPCK_VEC(struct group), .err = err };
    const size_t nold = a->src->tensors.count;
    int rc = find_groups(&f);
    struct fsdpck_lora_blocks *list = NULL;
    if (!rc && f.groups.count && !(list = calloc(2 * f.groups.count, sizeof *list)))
        rc = fsdpck_error_nomem(err, f.groups.count * sizeof *list);
    for (size_t i = 0; i < 2 * f.groups.count && !rc; i++)
        rc = describe(&f, (struct group *)f.groups.data + i / 2, i % 2 == 1, &list[i]);
    if (rc || !list)
        free(list);
    else if (!(rc = fsdpck_lora_blocks_present(a->src, list, 2 * f.groups.count, err)))
        rc = replace_modules(&f, nold);
    fsdpck_vec_free(&f.groups);
    return rc;
}
