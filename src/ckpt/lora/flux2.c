/* SPDX-License-Identifier: Apache-2.0 */
#include "lora/flux2.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lora/blocks_view.h"
#include "lora/extend.h"
#include "lora/flux2_names.h"

enum { NPARTS = FSDPCK_FLUX2_PARTS };

/* The path inside of the transformer. NULL: the module is of another model. */
static const char *inside(const char *path)
{
    static const char *const others[] = { "text_encoder.", "text_encoder_2.", "vae.", "diffusion_model.", NULL };
    static const char component[] = "transformer.";
    for (const char *const *o = others; *o; o++)
        if (strncmp(path, *o, strlen(*o)) == 0)
            return NULL;
    return strncmp(path, component, sizeof component - 1) == 0 ? path + sizeof component - 1 : path;
}

/* Writes the path in Black Forest Labs' names to native. Returns NULL if there is none. */
static const struct fsdpck_flux2_naming *find(const char *path, char *native, size_t nbytes)
{
    static const char component[] = "diffusion_model.";
    strcpy(native, component);
    return fsdpck_flux2_native(path, native + sizeof component - 1, nbytes - sizeof component + 1);
}

bool fsdpck_lora_is_flux2(const struct fsdpck_lora_adapter *a)
{
    static const char *const own[] = { ".attn.to_qkv_mlp_proj",     "ff_context.linear_",   "double_stream_modulation_",
                                       "single_stream_modulation.", "time_guidance_embed.", NULL };
    const char *class = fsdpck_lora_config_model_class(&a->config);
    if (class && strcmp(class, "Flux2Transformer2DModel") == 0)
        return true;
    for (size_t i = 0; i < a->modules.count; i++) {
        const char *path = inside(lora_modules(a)[i].path);
        for (const char *const *o = own; path && *o; o++)
            if (strstr(path, *o))
                return true;
    }
    return false;
}

/* ---- modules that become one ---- */

/* The modules that become one. */
struct joint {
    const struct fsdpck_flux2_naming *naming;
    const char *path;
    const struct fsdpck_lora_module *parts[NPARTS]; /* NULL: absent */
    const struct fsdpck_lora_module *any;           /* the first part, to take values from that all share */
    bool fold;
    int64_t a, b; /* numbers of its new tensors; -1: it keeps what it has */
};

struct native {
    struct fsdpck_lora_adapter *a;
    bool fold;
    struct fsdpck_vec joints, blocks; /* struct joint; struct fsdpck_lora_blocks */
    struct fsdpck_vec like;           /* int64_t, for each of blocks */
    struct fsdpck_names paths;        /* of joints */
    struct fsdpck_error *err;
};

static int refuse(const struct native *x, const struct fsdpck_lora_module *m, const char *what)
{
    return fsdpck_lora_refuse(x->a, m->a, FSDPCK_ERR_UNSUPPORTED, x->err, "%s", what);
}

static int add_part(struct native *x, const struct fsdpck_flux2_naming *naming, const char *path,
                    const struct fsdpck_lora_module *m)
{
    size_t old;
    if (fsdpck_names_add(&x->paths, path, x->joints.count, &old, x->err))
        return FSDPCK_ERR_NOMEM;
    struct joint *j = old == SIZE_MAX ? fsdpck_vec_push(&x->joints, x->err) : (struct joint *)x->joints.data + old;
    if (!j)
        return FSDPCK_ERR_NOMEM;
    if (old == SIZE_MAX)
        *j = (struct joint){ .naming = naming, .path = path, .any = m, .a = -1, .b = -1 };
    if (j->parts[naming->part])
        return refuse(x, m, "is there twice, with and without the prefix 'transformer.'");
    j->parts[naming->part] = m;
    return 0;
}

static int find_joints(struct native *x)
{
    int rc = 0;
    for (size_t i = 0; i < x->a->modules.count && !rc; i++) {
        const struct fsdpck_lora_module *m = &lora_modules(x->a)[i];
        const char *path = inside(m->path);
        if (!path)
            continue;
        const size_t nbytes = strlen(path) + 64;
        char *text = fsdpck_arena_alloc(&x->a->arena, nbytes, x->err);
        const struct fsdpck_flux2_naming *naming = text ? find(path, text, nbytes) : NULL;
        rc = !text    ? FSDPCK_ERR_NOMEM
             : naming ? add_part(x, naming, text, m)
                      : fsdpck_lora_refuse(x->a, m->a, FSDPCK_ERR_UNSUPPORTED, x->err,
                                           "a FLUX.2 transformer has no module '%s'", path);
    }
    return rc;
}

/* B changes its rows. */
static bool is_changed(const struct joint *j)
{
    return j->naming->nparts > 1 || j->naming->swapped;
}

static int check(const struct native *x, const struct joint *j)
{
    for (unsigned i = 0; i < j->naming->nparts; i++) {
        const struct fsdpck_lora_module *m = j->parts[i];
        if (!m)
            continue;
        const struct fsdpck_tensor *ta = lora_tensor(x->a, m->a), *tb = lora_tensor(x->a, m->b),
                                   *oa = lora_tensor(x->a, j->any->a), *ob = lora_tensor(x->a, j->any->b);
        if (ta->ndim != 2 || tb->ndim != 2)
            return refuse(x, m, "is no linear layer's, and FLUX.2 has no others");
        if (is_changed(j) && m->magnitude >= 0)
            return refuse(x, m, "DoRA of a layer whose rows lie in another order in these files is not written");
        if (ta->shape[1] != oa->shape[1] || tb->shape[0] != ob->shape[0] || ta->dtype != oa->dtype ||
            tb->dtype != ob->dtype)
            return refuse(x, m, "has another shape or dtype than the queries', keys' or values' beside it");
        if (j->naming->swapped && tb->shape[0] % 2)
            return refuse(x, m, "has an odd number of outputs, where scale and shift are halves");
    }
    return 0;
}

/* ---- what they become ---- */

static bool differ_in_scaling(const struct native *x, const struct joint *j)
{
    for (unsigned i = 0; i < j->naming->nparts; i++)
        if (j->parts[i] && fsdpck_lora_scale(x->a, j->parts[i]) != fsdpck_lora_scale(x->a, j->any))
            return true;
    return false;
}

static struct fsdpck_lora_block *new_blocks(struct native *x, const struct joint *j, bool is_b,
                                            struct fsdpck_lora_blocks **out)
{
    struct fsdpck_arena *arena = &x->a->src->arena;
    const size_t nbytes = strlen(j->path) + 16;
    char *name = fsdpck_arena_alloc(arena, nbytes, x->err);
    struct fsdpck_lora_block *list = fsdpck_arena_array(arena, NPARTS, sizeof *list, x->err);
    int64_t *like = fsdpck_vec_push(&x->like, x->err);
    *out = fsdpck_vec_push(&x->blocks, x->err);
    if (!name || !list || !like || !*out)
        return NULL;
    snprintf(name, nbytes, "%s %s", is_b ? "B" : "A", j->path);
    *like = is_b ? j->any->b : j->any->a;
    **out = (struct fsdpck_lora_blocks){ .name = name, .list = list };
    return list;
}

static size_t ordinal(const struct native *x, int64_t position)
{
    return x->a->selection.tensors[position].source;
}

/* A of the parts, one below the other. */
static int stack(struct native *x, struct joint *j)
{
    struct fsdpck_lora_blocks *to;
    struct fsdpck_lora_block *list = new_blocks(x, j, false, &to);
    if (!list)
        return FSDPCK_ERR_NOMEM;
    j->a = (int64_t)x->blocks.count - 1;
    to->ncols = lora_tensor(x->a, j->any->a)->shape[1];
    for (unsigned i = 0; i < j->naming->nparts; i++) {
        const struct fsdpck_lora_module *m = j->parts[i];
        if (m)
            list[to->n++] = (struct fsdpck_lora_block){
                .inner = ordinal(x, m->a), .nrows = m->r, .ncols = to->ncols, .row = to->nrows, .scale = 1
            };
        to->nrows += m ? m->r : 0;
    }
    return 0;
}

/* B of the parts on a diagonal, or one B with its halves swapped, or as it is. */
static int spread(struct native *x, struct joint *j)
{
    struct fsdpck_lora_blocks *to;
    struct fsdpck_lora_block *list = new_blocks(x, j, true, &to);
    if (!list)
        return FSDPCK_ERR_NOMEM;
    j->b = (int64_t)x->blocks.count - 1;
    const uint64_t width = lora_tensor(x->a, j->any->b)->shape[0], npiece = j->naming->swapped ? 2 : 1,
                   n = width / npiece;
    to->nrows = j->naming->nparts * width;
    for (unsigned i = 0; i < j->naming->nparts; i++) {
        const struct fsdpck_lora_module *m = j->parts[i];
        for (uint64_t k = 0; m && k < npiece; k++)
            list[to->n++] = (struct fsdpck_lora_block){ .inner = ordinal(x, m->b),
                                                        .first = k * n,
                                                        .nrows = n,
                                                        .ncols = m->r,
                                                        .row = i * width + (npiece - 1 - k) * n,
                                                        .col = to->ncols,
                                                        .scale = j->fold ? fsdpck_lora_scale(x->a, m) : 1 };
        to->ncols += m ? m->r : 0;
    }
    return 0;
}

static int plan(struct native *x)
{
    int rc = 0;
    for (size_t i = 0; i < x->joints.count && !rc; i++) {
        struct joint *j = (struct joint *)x->joints.data + i;
        rc = check(x, j);
        j->fold = x->fold || differ_in_scaling(x, j);
        if (!rc && j->naming->nparts > 1)
            rc = stack(x, j);
        if (!rc && (is_changed(j) || (j->fold && fsdpck_lora_scale(x->a, j->any) != 1)))
            rc = spread(x, j);
    }
    return rc;
}

/* Of one joint; before: the number of tensors before the new ones. */
static struct fsdpck_lora_module module_of(const struct native *x, const struct joint *j, int64_t before)
{
    struct fsdpck_lora_module m = *j->any;
    m.path = m.named = j->path;
    m.folded = x->fold;
    m.r = 0;
    for (unsigned i = 0; i < j->naming->nparts; i++)
        m.r += j->parts[i] ? j->parts[i]->r : 0;
    m.alpha = (j->fold ? 1 : fsdpck_lora_scale(x->a, j->any)) * (x->a->config.rslora ? sqrt((double)m.r) : (double)m.r);
    m.a = j->a >= 0 ? before + j->a : m.a;
    m.b = j->b >= 0 ? before + j->b : m.b;
    return m;
}

/* Notes that the tensors of its parts are in new ones. */
static void mark_parts(const struct native *x, const struct joint *j)
{
    for (unsigned i = 0; i < j->naming->nparts; i++) {
        const struct fsdpck_lora_module *m = j->parts[i];
        if (m && j->a >= 0)
            x->a->joined[m->a] = true;
        if (m && j->b >= 0)
            x->a->joined[m->b] = true;
    }
}

static int replace_modules(struct native *x, int64_t before)
{
    struct fsdpck_vec modules = FSDPCK_VEC(struct fsdpck_lora_module);
    struct fsdpck_lora_module *to;
    int rc = 0;
    for (size_t i = 0; i < x->a->modules.count && !rc; i++) {
        const struct fsdpck_lora_module *m = &lora_modules(x->a)[i];
        if (inside(m->path))
            continue;
        if ((to = fsdpck_vec_push(&modules, x->err)))
            *to = *m;
        rc = to ? 0 : FSDPCK_ERR_NOMEM;
    }
    for (size_t i = 0; i < x->joints.count && !rc; i++) {
        const struct joint *j = (struct joint *)x->joints.data + i;
        if ((to = fsdpck_vec_push(&modules, x->err)))
            *to = module_of(x, j, before);
        rc = to ? 0 : FSDPCK_ERR_NOMEM;
    }
    for (size_t i = 0; i < x->joints.count && !rc; i++)
        mark_parts(x, (struct joint *)x->joints.data + i);
    if (rc) {
        fsdpck_vec_free(&modules);
        return rc;
    }
    fsdpck_vec_free(&x->a->modules);
    x->a->modules = modules;
    return 0;
}

/* Says where a scaling that is no power of two is rounded. */
static void note_rounding(const struct native *x, const struct fsdpck_options *opt)
{
    for (size_t i = 0; i < x->joints.count; i++) {
        const struct joint *j = (struct joint *)x->joints.data + i;
        for (unsigned k = 0; j->fold && k < j->naming->nparts; k++) {
            const struct fsdpck_lora_module *m = j->parts[k];
            int exponent;
            if (!m || frexp(fabs(fsdpck_lora_scale(x->a, m)), &exponent) == 0.5)
                continue;
            fsdpck_lora_note(opt, "the scaling, %g at '%s', is multiplied into lora_B and rounded to %s",
                             fsdpck_lora_scale(x->a, m), m->path,
                             fsdpck_dtype_info(lora_tensor(x->a, m->b)->dtype)->name);
            return;
        }
    }
}

/* Presents the new tensors, whose description the source takes over. */
static int present(struct native *x, size_t *first)
{
    struct fsdpck_lora_blocks *list = x->blocks.data;
    const size_t n = x->blocks.count;
    *first = x->a->src->tensors.count;
    if (!n)
        return 0;
    x->blocks = (struct fsdpck_vec)FSDPCK_VEC(struct fsdpck_lora_blocks);
    int rc = fsdpck_lora_blocks_present(x->a->src, list, n, x->err);
    return rc ? rc : fsdpck_lora_extend(x->a, *first, x->like.data, n, x->err);
}

int fsdpck_lora_flux2(struct fsdpck_lora_adapter *a, bool fold, const struct fsdpck_options *opt,
                      struct fsdpck_error *err)
{
    struct native x = { .a = a,
                        .fold = fold,
                        .joints = FSDPCK_VEC(struct joint),
                        .blocks = FSDPCK_VEC(struct fsdpck_lora_blocks),
                        .like = FSDPCK_VEC(int64_t),
                        .err = err };
    const int64_t before = (int64_t)a->selection.ntensors;
    size_t first;
    int rc = find_joints(&x);
    if (!rc)
        rc = plan(&x);
    if (!rc)
        note_rounding(&x, opt);
    if (!rc)
        rc = present(&x, &first);
    if (!rc && !a->joined &&
        !(a->joined = fsdpck_arena_array(&a->arena, a->selection.ntensors, sizeof *a->joined, err)))
        rc = FSDPCK_ERR_NOMEM;
    if (!rc)
        rc = replace_modules(&x, before);
    fsdpck_vec_free(&x.joints);
    fsdpck_vec_free(&x.blocks);
    fsdpck_vec_free(&x.like);
    fsdpck_names_free(&x.paths);
    return rc;
}
