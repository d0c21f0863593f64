/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the weights of a single expert's module in a base that may hold its experts in another form. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lora/merge_impl.h"

enum role { GATE, UP, DOWN, GATE_UP, NROLES };
static const char *const names[][NROLES] = { { "gate_proj", "up_proj", "down_proj", "gate_up_proj" },
                                             { "w1", "w3", "w2", "" } };
static const char *const blocks[] = { ".mlp", ".block_sparse_moe" };

/* "model.layers.0.mlp" ".experts." 3 "." "gate_proj" */
struct expert {
    const struct fsdpck_lora_module *module;
    char stem[512];
    uint64_t number;
    enum role role;
    uint64_t in, out; /* of the module */
};

static bool parse(const struct fsdpck_lora_merge *m, const struct fsdpck_lora_module *module, struct expert *x)
{
    static const char mark[] = ".experts.";
    const char *at = NULL;
    char *end;
    for (const char *p = module->path; (p = strstr(p, mark)); p++)
        at = p;
    if (!at || (size_t)(at - module->path) >= sizeof x->stem || at[sizeof mark - 1] < '0' || at[sizeof mark - 1] > '9')
        return false;
    *x = (struct expert){ .module = module, .number = strtoull(at + sizeof mark - 1, &end, 10) };
    snprintf(x->stem, sizeof x->stem, "%.*s", (int)(at - module->path), module->path);
    x->in = lora_tensor(m->adapter, module->a)->shape[1];
    x->out = lora_tensor(m->adapter, module->b)->shape[0];
    for (int i = 0; i < 2 && *end == '.'; i++)
        for (int r = 0; r < NROLES; r++)
            if (strcmp(end + 1, names[i][r]) == 0) {
                x->role = (enum role)r;
                return lora_tensor(m->adapter, module->a)->ndim == 2;
            }
    return false;
}

/* Writes the stem with the block's name of one of the two conventions. */
static void put_stem(const struct expert *x, const char *block, char *out, size_t nbytes)
{
    const char *dot = strrchr(x->stem, '.');
    bool other = dot && (strcmp(dot, blocks[0]) == 0 || strcmp(dot, blocks[1]) == 0);
    snprintf(out, nbytes, "%.*s%s", (int)(other ? dot - x->stem : (long)strlen(x->stem)), x->stem, other ? block : "");
}

static bool has(const struct fsdpck_lora_merge *m, const char *name)
{
    return fsdpck_names_find(&m->names, name) != SIZE_MAX;
}

int fsdpck_lora_merge_router(struct fsdpck_lora_merge *m, const char *path, const char **name, struct fsdpck_error *err)
{
    static const char gate[] = ".gate";
    char other[1024];
    size_t n = strlen(path), stem = n > sizeof gate ? n - (sizeof gate - 1) : 0;
    for (int i = 0; i < 2; i++) {
        const size_t k = strlen(blocks[i]);
        if (stem <= k || strcmp(path + stem, gate) != 0 || strncmp(path + stem - k, blocks[i], k) != 0)
            continue;
        snprintf(other, sizeof other, "%.*s%s%s.weight", (int)(stem - k), path, blocks[1 - i], gate);
        if (!has(m, other))
            return 0;
        *name = fsdpck_arena_strndup(&m->arena, other, strlen(other), err);
        return *name ? 0 : FSDPCK_ERR_NOMEM;
    }
    return 0;
}

/* ---- one by one ---- */

static int add_single(struct fsdpck_lora_merge *m, const struct expert *x, const char *name, uint64_t first,
                      uint64_t nout, struct fsdpck_error *err)
{
    struct fsdpck_operand o = { .module = x->module, .first = first, .nout = nout, .step = 1 };
    struct lora_target *t;
    int rc = fsdpck_lora_merge_target(m, name, x->module->a, &t, err);
    const struct fsdpck_tensor *w = rc ? NULL : lora_base_tensor(m, t);
    if (rc)
        return rc;
    if (w->ndim != 2 || w->shape[0] != nout || w->shape[1] != x->in)
        return fsdpck_lora_merge_misfit(m, t, x->module->b, "", err);
    o.nrow = w->shape[0];
    o.ncol = w->shape[1];
    return fsdpck_lora_merge_product(m, t, &o, err);
}

/* An adapter of fused experts changes all experts of a layer. */
static int check_count(const struct fsdpck_lora_merge *m, const struct expert *x, uint64_t base,
                       struct fsdpck_error *err)
{
    const uint64_t own = m->adapter->split.nexperts;
    return !own || own == base ? 0
                               : fsdpck_lora_refuse(m->adapter, x->module->a, FSDPCK_ERR_FORMAT, err,
                                                    "the adapter is of %llu experts, the base's layer has %llu",
                                                    (unsigned long long)own, (unsigned long long)base);
}

/* convention: 0 or 1, a row of the two tables above. */
static int merge_singles(struct fsdpck_lora_merge *m, const struct expert *x, int convention, bool *done,
                         struct fsdpck_error *err)
{
    const bool both = x->role == GATE_UP;
    char stem[600], name[800];
    uint64_t count = 0;
    int rc = 0;
    put_stem(x, blocks[convention], stem, sizeof stem);
    for (bool any = true; any && x->number == 0 && m->adapter->split.nexperts; count += any) {
        snprintf(name, sizeof name, "%s.experts.%llu.%s.weight", stem, (unsigned long long)count,
                 names[convention][both ? GATE : x->role]);
        any = has(m, name);
    }
    if (count)
        rc = check_count(m, x, count, err);
    for (int half = 0; half <= both && !rc; half++) {
        snprintf(name, sizeof name, "%s.experts.%llu.%s.weight", stem, (unsigned long long)x->number,
                 names[convention][both ? half : (int)x->role]);
        if (half == 0 && !has(m, name))
            return 0;
        if (both && x->out % 2)
            return fsdpck_lora_refuse(m->adapter, x->module->b, FSDPCK_ERR_FORMAT, err,
                                      "has %llu rows: gate over up are wanted, an even number",
                                      (unsigned long long)x->out);
        const uint64_t nout = both ? x->out / 2 : x->out;
        rc = add_single(m, x, name, (uint64_t)half * nout, nout, err);
    }
    *done = true;
    return rc;
}

/* ---- fused ---- */

/* Whether the base's other fused tensor of the layer says that experts are stored [in, out]. Returns false if it does
 * not tell. hidden: the model's size. */
static bool ask_other(const struct fsdpck_lora_merge *m, const char *stem, bool gate, uint64_t hidden, bool *transposed)
{
    char name[800];
    snprintf(name, sizeof name, "%s.experts.%s", stem, gate ? "down_proj" : "gate_up_proj");
    size_t at = fsdpck_names_find(&m->names, name);
    if (at == SIZE_MAX)
        return false;
    const struct fsdpck_tensor *t = fsdpck_source_tensor(m->base, m->selection->tensors[at].source);
    if (t->ndim != 3 || t->shape[1] == t->shape[2])
        return false;
    *transposed = gate ? t->shape[2] == hidden : t->shape[1] == hidden;
    return true;
}

/* A square expert fits both ways. outputs: of the base's tensor. */
static int find_orientation(const struct fsdpck_lora_merge *m, const struct expert *x, const struct lora_target *t,
                            const char *stem, uint64_t outputs, bool *transposed, struct fsdpck_error *err)
{
    const struct fsdpck_tensor *w = lora_base_tensor(m, t);
    if (w->ndim != 3 || x->number >= w->shape[0])
        return fsdpck_lora_merge_misfit(m, t, x->module->b, "a tensor of all experts is wanted, with this one", err);
    bool straight = w->shape[1] == outputs && w->shape[2] == x->in,
         turned = w->shape[1] == x->in && w->shape[2] == outputs;
    *transposed = turned;
    if (straight != turned)
        return 0;
    if (!straight)
        return fsdpck_lora_merge_misfit(m, t, x->module->b, "", err);
    if (ask_other(m, stem, x->role != DOWN, x->role == DOWN ? outputs : x->in, transposed))
        return 0;
    return fsdpck_lora_refuse(m->adapter, x->module->b, FSDPCK_ERR_UNSUPPORTED, err,
                              "fits the base's '%s' as [out, in] and as [in, out]: its shape does not tell", w->name);
}

/* Of gpt-oss, whose experts have biases, gate and up alternate; elsewhere up follows gate. */
static bool alternates(const struct fsdpck_lora_merge *m, const char *stem)
{
    char name[800];
    snprintf(name, sizeof name, "%s.experts.gate_up_proj_bias", stem);
    return has(m, name);
}

static int merge_fused(struct fsdpck_lora_merge *m, const struct expert *x, bool *done, struct fsdpck_error *err)
{
    const bool half = x->role == GATE || x->role == UP;
    const uint64_t outputs = half ? 2 * x->out : x->out;
    struct fsdpck_operand o = { .module = x->module, .nout = x->out, .step = 1 };
    struct lora_target *t;
    char stem[600], name[800];
    put_stem(x, blocks[0], stem, sizeof stem);
    snprintf(name, sizeof name, "%s.experts.%s", stem, x->role == DOWN ? "down_proj" : "gate_up_proj");
    if (!has(m, name))
        return 0;
    *done = true;
    int rc = fsdpck_lora_merge_target(m, name, x->module->a, &t, err);
    if (!rc && lora_base_tensor(m, t)->ndim == 3)
        rc = check_count(m, x, lora_base_tensor(m, t)->shape[0], err);
    if (!rc)
        rc = find_orientation(m, x, t, stem, outputs, &o.transposed, err);
    if (rc)
        return rc;
    const struct fsdpck_tensor *w = lora_base_tensor(m, t);
    if (half && alternates(m, stem)) {
        o.step = 2;
        o.place = x->role == UP;
    } else if (x->role == UP) {
        o.place = x->out;
    }
    o.nrow = w->shape[1];
    o.ncol = w->shape[2];
    o.row = x->number * o.nrow;
    return fsdpck_lora_merge_product(m, t, &o, err);
}

int fsdpck_lora_merge_expert(struct fsdpck_lora_merge *m, const struct fsdpck_lora_module *module, bool *done,
                             struct fsdpck_error *err)
{
    struct expert x;
    int rc = 0;
    *done = false;
    if (!parse(m, module, &x))
        return 0;
    for (int i = 0; i < 2 && !rc && !*done; i++)
        rc = merge_singles(m, &x, i, done, err);
    return rc || *done ? rc : merge_fused(m, &x, done, err);
}
