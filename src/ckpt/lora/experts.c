/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the layout of each pair of fused experts, from names, shapes and adapter_config.json, and cuts it. The names of
 * PEFT do not say which parameter a pair is of: they count wrappers. */
#include "lora/experts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lora/slices_view.h"

static const char mark[] = ".experts", wrapper[] = ".base_layer";

enum { GATE_UP, DOWN };
static const char *const part_names[] = { "gate_up_proj", "down_proj" }, *const halves[] = { "gate_proj", "up_proj" };

/* One pair of a layer. E: experts; in, out: of the linear layer. */
struct fused {
    const struct fsdpck_lora_module *module;
    const struct fsdpck_tensor *a, *b;
    const char *proj; /* "gate_up_proj" */
    uint64_t r, e, in, out;
    bool swapped; /* A and B have each other's place: ΔW = (B·A) transposed */
    bool stacked; /* A [E or 1, c·r, in], B [E or 1, out, r]; else flat */
    bool both;    /* the configuration targets the layer's other parameter too */
    uint64_t c;   /* 2: gate and up have an A of their own */
};

struct cut {
    struct fsdpck_lora_adapter *adapter;
    enum fsdpck_lora_expert_order order;
    bool halves, mixtral, turned;
    struct fsdpck_vec slices; /* struct fsdpck_lora_slice */
    bool *hidden;             /* (tensors of the source) */
};

/* Returns the text after the last ".experts" of a module's path; NULL: it has none, or the expert's number follows. */
static const char *after_experts(const char *path)
{
    const char *at = NULL;
    for (const char *p = path; (p = strstr(p, mark)); p++)
        if (p[sizeof mark - 1] == '.' || p[sizeof mark - 1] == '\0')
            at = p + sizeof mark - 1;
    return at && !(at[0] == '.' && at[1] >= '0' && at[1] <= '9') ? at : NULL;
}

static bool is_flat(const char *tail)
{
    while (strncmp(tail, wrapper, sizeof wrapper - 1) == 0)
        tail += sizeof wrapper - 1;
    return *tail == '\0';
}

static bool is_fused(const struct fsdpck_lora_adapter *a, const struct fsdpck_lora_module *m)
{
    const char *tail = after_experts(m->path);
    if (!tail || m->embedding || (m->a < 0 && m->b < 0))
        return false;
    return is_flat(tail) ||
           (m->a >= 0 && m->b >= 0 && lora_tensor(a, m->a)->ndim == 3 && lora_tensor(a, m->b)->ndim == 3);
}

/* ---- which parameter ---- */

static int refuse(const struct cut *x, const struct fused *f, int code, struct fsdpck_error *err, const char *what)
{
    return fsdpck_lora_refuse(x->adapter, f->module->a, code, err, "%s", what);
}

/* Wrappers nest in the order in which the module declares its parameters: the innermost is of the first one. */
static int find_parameter(const struct cut *x, struct fused *f, struct fsdpck_error *err)
{
    const char *tail = after_experts(f->module->path);
    const size_t stem = (size_t)(tail - f->module->path), depth = strlen(tail) / (sizeof wrapper - 1);
    bool targeted[2];
    char name[1024];
    for (int p = GATE_UP; p <= DOWN; p++) {
        snprintf(name, sizeof name, "%.*s.%s", (int)stem, f->module->path, part_names[p]);
        targeted[p] = fsdpck_lora_config_targets_parameter(&x->adapter->config, name);
        snprintf(name, sizeof name, "%.*s.%s_bias", (int)stem, f->module->path, part_names[p]);
        if (fsdpck_lora_config_targets_parameter(&x->adapter->config, name))
            return refuse(x, f, FSDPCK_ERR_UNSUPPORTED, err,
                          "target_parameters has a bias of the experts; gate_up_proj and down_proj are supported");
    }
    if (depth > (size_t)(targeted[GATE_UP] && targeted[DOWN]) || !(targeted[GATE_UP] || targeted[DOWN])) {
        refuse(x, f, FSDPCK_ERR_MISSING, err,
               "is of fused experts, and the configuration's target_parameters do not say of which parameter");
        fsdpck_error_hint(err, "wanted: \"target_parameters\": [\"experts.gate_up_proj\", \"experts.down_proj\"], or "
                               "the one that was trained");
        return FSDPCK_ERR_MISSING;
    }
    f->both = targeted[GATE_UP] && targeted[DOWN];
    f->proj = part_names[depth == 1 || !targeted[DOWN] ? GATE_UP : DOWN];
    return 0;
}

static int read_rank(const struct cut *x, struct fused *f, struct fsdpck_error *err)
{
    const char *tail = after_experts(f->module->path);
    char name[1024];
    snprintf(name, sizeof name, "%.*s.%s", (int)(tail - f->module->path), f->module->path, f->proj);
    return fsdpck_lora_config_rank(&x->adapter->config, name, &f->r, err);
}

static uint64_t last_of(const struct fsdpck_tensor *t)
{
    return t->shape[t->ndim - 1];
}

/* ---- flat layouts ---- */

static int check_flat(const struct cut *x, struct fused *f, struct fsdpck_error *err)
{
    const uint64_t width = f->a->nelem / last_of(f->a);
    f->e = width / f->r;
    f->in = last_of(f->a);
    f->out = f->b->shape[0];
    if (width == f->e * f->r && f->e && f->b->nelem / f->out == width)
        return 0;
    return fsdpck_lora_refuse(x->adapter, f->module->a, FSDPCK_ERR_FORMAT, err,
                              "A has %llu rows, B %llu columns: both are wanted as experts times the rank %llu",
                              (unsigned long long)width, (unsigned long long)(f->b->nelem / f->out),
                              (unsigned long long)f->r);
}

/* Whether these sizes are of gate over up, and of the layer behind them. */
static bool fit(uint64_t in, uint64_t out, uint64_t down_in, uint64_t down_out)
{
    return in == down_out && out == 2 * down_in;
}

static const struct fused *other_of(const struct fused *list, size_t n, const struct fused *f)
{
    size_t stem = (size_t)(after_experts(f->module->path) - f->module->path);
    for (size_t i = 0; i < n; i++)
        if (&list[i] != f && !list[i].stacked && strncmp(list[i].module->path, f->module->path, stem) == 0 &&
            after_experts(list[i].module->path) == list[i].module->path + stem)
            return &list[i];
    return NULL;
}

/* Both parameters of a layer together tell inputs from outputs; of one alone, the writer's release does. */
static int find_direction(const struct cut *x, const struct fused *list, size_t n, struct fused *f,
                          struct fsdpck_error *err)
{
    const struct fused *o = other_of(list, n, f), *gate = f->proj == part_names[GATE_UP] ? f : o,
                       *down = gate == f ? o : f;
    const char *writer = fsdpck_lora_config_writer(&x->adapter->config);
    if (!o && f->both)
        return refuse(
            x, f, FSDPCK_ERR_MISSING, err,
            "target_parameters has gate_up_proj and down_proj, and the layer has one pair: of which of them?");
    if (!o) {
        f->swapped = writer && fsdpck_lora_writer_swaps(writer);
        return 0;
    }
    f->swapped = fit(gate->b->shape[0], last_of(gate->a), down->b->shape[0], last_of(down->a));
    if (f->swapped || fit(last_of(gate->a), gate->b->shape[0], last_of(down->a), down->b->shape[0]))
        return 0;
    return refuse(x, f, FSDPCK_ERR_FORMAT, err,
                  "its sizes and those of the layer's other pair are not those of gate_up_proj and down_proj");
}

/* In the same shapes, the number of the expert may run fastest or slowest in B. */
static int check_order(const struct cut *x, const struct fused *f, struct fsdpck_error *err)
{
    if (x->order || f->b->ndim == 3 || fsdpck_lora_config_writer(&x->adapter->config))
        return 0;
    refuse(x, f, FSDPCK_ERR_USAGE, err,
           "is of fused experts, and nothing says who wrote it (no peft_version): PEFT lets the expert's number run "
           "fastest in B, Unsloth until September 2026 slowest, in the same shapes");
    fsdpck_error_hint(err, "say which: --expert-order fastest, or slowest");
    return FSDPCK_ERR_USAGE;
}

/* ---- cutting ---- */

static const char *name_of_mixtral(const char *proj)
{
    static const char *const names[][2] = { { "gate_proj", "w1" }, { "up_proj", "w3" }, { "down_proj", "w2" } };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(proj, names[i][0]) == 0)
            return names[i][1];
    return proj;
}

/* Gives a slice the place of tensor t in its trees, with another last key. */
static int name_slice(struct fsdpck_arena *arena, const struct fsdpck_tensor *t, const char *key,
                      struct fsdpck_lora_slice *s, struct fsdpck_error *err)
{
    const size_t before = strlen(t->name) - strlen(t->path[t->npath - 1].str), nbytes = before + strlen(key) + 1;
    struct fsdpck_key *path = fsdpck_arena_array(arena, t->npath, sizeof *path, err);
    char *name = fsdpck_arena_alloc(arena, nbytes, err);
    if (!path || !name)
        return FSDPCK_ERR_NOMEM;
    memcpy(path, t->path, t->npath * sizeof *path);
    path[t->npath - 1].str = key;
    snprintf(name, nbytes, "%.*s%s", (int)before, t->name, key);
    s->name = name;
    s->path = path;
    s->npath = t->npath;
    return 0;
}

/* "base_model.model.….experts" "." 3 "." proj "." "lora_A.weight" */
static int add_slice(struct cut *x, const struct fused *f, const struct fsdpck_tensor *t, size_t inner, uint64_t expert,
                     const char *proj, struct fsdpck_lora_slice s, struct fsdpck_error *err)
{
    const char *whole = t->path[t->npath - 1].str, *tail = NULL, *leaf;
    for (const char *p = whole ? whole : ""; (p = strstr(p, ".experts.")); p++)
        tail = p + sizeof mark - 1;
    if (!tail || !(leaf = strstr(tail, ".lora_")))
        return refuse(x, f, FSDPCK_ERR_UNSUPPORTED, err,
                      "fused experts are read from adapters in files of their own; export-lora writes one");
    static const char block[] = ".mlp", mixtral[] = ".block_sparse_moe";
    size_t stem = (size_t)(tail - whole) - (sizeof mark - 1), n = sizeof block - 1;
    bool renamed = x->mixtral && stem >= n && strncmp(whole + stem - n, block, n) == 0;
    size_t nbytes = strlen(whole) + strlen(proj) + sizeof mixtral + 32;
    char *key = fsdpck_arena_alloc(&x->adapter->src->arena, nbytes, err);
    struct fsdpck_lora_slice *to = key ? fsdpck_vec_push(&x->slices, err) : NULL;
    if (!to)
        return FSDPCK_ERR_NOMEM;
    snprintf(key, nbytes, "%.*s%s%s.%llu.%s%s", (int)(stem - (renamed ? n : 0)), whole, renamed ? mixtral : "", mark,
             (unsigned long long)expert, renamed ? name_of_mixtral(proj) : proj, leaf);
    s.inner = inner;
    *to = s;
    x->hidden[inner] = true;
    return name_slice(&x->adapter->src->arena, t, key, to, err);
}

static int add_one(struct cut *x, const struct fused *f, uint64_t expert, const char *proj,
                   struct fsdpck_lora_slice of_a, struct fsdpck_lora_slice of_b, struct fsdpck_error *err)
{
    const struct fsdpck_chosen *at = x->adapter->selection.tensors;
    const size_t ia = at[f->module->a].source, ib = at[f->module->b].source;
    /* A swapped pair takes A out of the tensor called B: the names are those of their roles. */
    int rc = add_slice(x, f, f->a, f->swapped ? ib : ia, expert, proj, of_a, err);
    return rc ? rc : add_slice(x, f, f->b, f->swapped ? ia : ib, expert, proj, of_b, err);
}

/* Gate and up share an A; each has its half of B's rows. */
static int add_pair(struct cut *x, const struct fused *f, uint64_t expert, const char *proj,
                    struct fsdpck_lora_slice of_a, struct fsdpck_lora_slice of_b, struct fsdpck_error *err)
{
    if (!x->halves || proj != part_names[GATE_UP])
        return add_one(x, f, expert, proj, of_a, of_b, err);
    if (of_b.rows % 2)
        return refuse(x, f, FSDPCK_ERR_FORMAT, err, "has an odd number of outputs: gate over up are wanted");
    of_b.rows /= 2;
    int rc = add_one(x, f, expert, halves[0], of_a, of_b, err);
    of_b.first += of_b.rows * of_b.row_step;
    return rc ? rc : add_one(x, f, expert, halves[1], of_a, of_b, err);
}

static struct fsdpck_lora_slice turned(const struct fsdpck_lora_slice *s)
{
    return (struct fsdpck_lora_slice){
        .rows = s->cols, .cols = s->rows, .first = s->first, .row_step = s->col_step, .col_step = s->row_step
    };
}

static int cut_flat(struct cut *x, const struct fused *f, uint64_t e, struct fsdpck_error *err)
{
    const uint64_t width = f->r * f->e, k = x->order == FSDPCK_LORA_EXPERTS_SLOWEST && f->b->ndim == 2 ? 1 : f->e,
                   first = k == 1 ? e * f->r : e;
    /* as stored: A [E·r, in], B [out, r·E] */
    struct fsdpck_lora_slice a = { .rows = f->r,
                                   .cols = f->in,
                                   .first = e * f->r * f->in,
                                   .row_step = f->in,
                                   .col_step = 1 },
                             b = { .rows = f->out, .cols = f->r, .first = first, .row_step = width, .col_step = k };
    if (!f->swapped)
        return add_pair(x, f, e, f->proj, a, b, err);
    return add_pair(x, f, e, f->proj, turned(&b), turned(&a), err);
}

/* Factors that all experts share are stored once. */
static int cut_stacked(struct cut *x, const struct fused *f, uint64_t e, struct fsdpck_error *err)
{
    const uint64_t ea = f->a->shape[0] == 1 ? 0 : e, eb = f->b->shape[0] == 1 ? 0 : e, rows = f->out / f->c;
    int rc = 0;
    for (uint64_t h = 0; h < f->c && !rc; h++) {
        const struct fsdpck_lora_slice a = { .rows = f->r,
                                             .cols = f->in,
                                             .first = (ea * f->c + h) * f->r * f->in,
                                             .row_step = f->in,
                                             .col_step = 1 },
                                       b = { .rows = rows,
                                             .cols = f->r,
                                             .first = (eb * f->out + h * rows) * f->r,
                                             .row_step = f->r,
                                             .col_step = 1 };
        rc = add_pair(x, f, e, f->c == 2 ? halves[h] : f->proj, a, b, err);
    }
    return rc;
}

/* ---- the whole ---- */

static int check_stacked(const struct cut *x, struct fused *f, struct fsdpck_error *err)
{
    const uint64_t *a = f->a->shape, *b = f->b->shape;
    f->c = a[1] / f->r;
    f->e = a[0] > b[0] ? a[0] : b[0];
    f->in = a[2];
    f->out = b[1];
    bool experts = (a[0] == f->e || a[0] == 1) && (b[0] == f->e || b[0] == 1),
         fits = f->c * f->r == a[1] && b[2] == f->r && f->in && f->out;
    if (experts && fits && (f->c == 1 || (f->c == 2 && strcmp(f->proj, part_names[GATE_UP]) == 0 && f->out % 2 == 0)))
        return 0;
    return fsdpck_lora_refuse(x->adapter, f->module->a, FSDPCK_ERR_FORMAT, err,
                              "A is [%llu, %llu, %llu], B [%llu, %llu, %llu]: [experts, r, in] and [experts, out, r] "
                              "are wanted, with r %llu",
                              (unsigned long long)a[0], (unsigned long long)a[1], (unsigned long long)a[2],
                              (unsigned long long)b[0], (unsigned long long)b[1], (unsigned long long)b[2],
                              (unsigned long long)f->r);
}

static int describe(struct cut *x, const struct fsdpck_lora_module *m, struct fused *f, struct fsdpck_error *err)
{
    const char *tail = after_experts(m->path);
    if (m->a < 0 || m->b < 0)
        return fsdpck_lora_refuse(x->adapter, m->a < 0 ? m->b : m->a, FSDPCK_ERR_MISSING, err, "its module has no %s",
                                  m->a < 0 ? "lora_A" : "lora_B");
    *f = (struct fused){ .module = m, .a = lora_tensor(x->adapter, m->a), .b = lora_tensor(x->adapter, m->b) };
    f->stacked = !is_flat(tail);
    if (!x->adapter->config.doc)
        return refuse(x, f, FSDPCK_ERR_USAGE, err,
                      "is of fused experts: only an adapter_config.json says its rank and its parameter");
    if (m->bias >= 0 || m->magnitude >= 0)
        return refuse(x, f, FSDPCK_ERR_UNSUPPORTED, err, "fused experts have no DoRA and no lora_bias in PEFT");
    if (f->a->ndim < 2 || f->b->ndim < 2 || !f->a->nelem || !f->b->nelem)
        return refuse(x, f, FSDPCK_ERR_FORMAT, err,
                      "A and B of fused experts are wanted as matrices, or in three dimensions, with elements");
    f->proj = strcmp(tail, ".gate_up_proj") == 0 ? part_names[GATE_UP] : tail + 1;
    int rc = f->stacked ? 0 : find_parameter(x, f, err);
    if (!rc)
        rc = read_rank(x, f, err);
    if (!rc)
        rc = f->stacked ? check_stacked(x, f, err) : check_flat(x, f, err);
    return rc || f->stacked ? rc : check_order(x, f, err);
}

static int cut_all(struct cut *x, struct fused *list, size_t n, struct fsdpck_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < n && !rc; i++) {
        if (list[i].e != list->e)
            rc = fsdpck_lora_refuse(x->adapter, list[i].module->a, FSDPCK_ERR_FORMAT, err,
                                    "is of %llu experts, others of %llu", (unsigned long long)list[i].e,
                                    (unsigned long long)list->e);
        if (!rc && !list[i].stacked)
            rc = find_direction(x, list, n, &list[i], err);
        const char *writer = fsdpck_lora_config_writer(&x->adapter->config);
        x->turned |= list[i].swapped && writer && !fsdpck_lora_writer_swaps(writer);
        for (uint64_t e = 0; e < list[i].e && !rc; e++)
            rc = list[i].stacked ? cut_stacked(x, &list[i], e, err) : cut_flat(x, &list[i], e, err);
    }
    return rc;
}

int fsdpck_lora_experts_split(struct fsdpck_lora_adapter *a, const struct fsdpck_lora_request *req,
                              struct fsdpck_lora_split *split, struct fsdpck_error *err)
{
    struct cut x = { .adapter = a,
                     .order = req->order,
                     .halves = req->halves,
                     .mixtral = req->mixtral,
                     .slices = FSDPCK_VEC(struct fsdpck_lora_slice) };
    struct fused *list = fsdpck_arena_array(&a->arena, a->modules.count, sizeof *list, err);
    size_t n = 0;
    int rc = list ? 0 : FSDPCK_ERR_NOMEM;
    for (size_t i = 0; i < a->modules.count && !rc; i++)
        if (is_fused(a, &lora_modules(a)[i]))
            rc = describe(&x, &lora_modules(a)[i], &list[n++], err);
    *split = (struct fsdpck_lora_split){ .nexperts = !rc && n ? list->e : 0 };
    bool ordered = false;
    for (size_t i = 0; i < n && !rc; i++) {
        ordered = ordered || !list[i].stacked;
        if (list[i].c == 2 || (x.halves && list[i].proj == part_names[GATE_UP]))
            split->halves = true;
    }
    if (!rc && req->order && !ordered)
        rc = fsdpck_error_set(err, FSDPCK_ERR_USAGE, fsdpck_source_path(a->src),
                              "--expert-order is of fused experts in two dimensions, and this adapter has none");
    if (rc || !n)
        return rc;
    x.hidden = fsdpck_arena_array(&a->arena, a->src->tensors.count, sizeof *x.hidden, err);
    rc = x.hidden ? cut_all(&x, list, n, err) : FSDPCK_ERR_NOMEM;
    split->turned = x.turned;
    if (!rc)
        return fsdpck_lora_slices_present(a->src, x.hidden, x.slices.data, x.slices.count, err);
    fsdpck_vec_free(&x.slices);
    return rc;
}

const char *fsdpck_lora_experts_path(struct fsdpck_arena *arena, const char *path, struct fsdpck_lora_split split,
                                     struct fsdpck_error *err)
{
    const char *at = NULL;
    for (const char *p = path; (p = strstr(p, ".experts.")); p++)
        at = p + sizeof mark - 1;
    size_t digits = at ? strspn(at + 1, "0123456789") : 0;
    if (!digits || at[1 + digits] != '.')
        return path;
    static const char mixtral[] = ".block_sparse_moe";
    const char *rest = at + 2 + digits;
    size_t stem = (size_t)(at - path) - (sizeof mark - 1), n = sizeof mixtral - 1;
    bool renamed = stem >= n && strncmp(path + stem - n, mixtral, n) == 0;
    if (renamed)
        rest = strcmp(rest, "w1") == 0   ? halves[0]
               : strcmp(rest, "w3") == 0 ? halves[1]
               : strcmp(rest, "w2") == 0 ? part_names[DOWN]
                                         : rest;
    if (split.halves && (strcmp(rest, halves[0]) == 0 || strcmp(rest, halves[1]) == 0))
        rest = part_names[GATE_UP];
    size_t nbytes = strlen(path) + sizeof "gate_up_proj";
    char *text = fsdpck_arena_alloc(arena, nbytes, err);
    if (text)
        snprintf(text, nbytes, "%.*s%s%s.%s", (int)(stem - (renamed ? n : 0)), path, renamed ? ".mlp" : "", mark, rest);
    return text;
}
