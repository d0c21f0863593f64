/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the routed experts in a source's catalogue and checks that they are complete. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "hf/weight_names.h"
#include "tensor/shape_text.h"
#include "view/experts_view.h"

enum { NAME_NBYTES = 256 };

struct finder {
    const struct fsdpck_source *src;
    const struct fsdpck_moe *moe;
    struct fsdpck_found_experts *out;
    struct fsdpck_error *err;
};

static int refuse(const struct finder *f, int code, const char *name)
{
    fsdpck_error_tensor(f->err, name);
    return code;
}

static int refuse_unknown(const struct finder *f, const struct fsdpck_tensor *t)
{
    fsdpck_error_set(f->err, FSDPCK_ERR_UNSUPPORTED, f->src->path,
                     "is a part of experts that --names does not know in a %s", f->moe->model_type);
    fsdpck_error_hint(f->err, "quantized experts need --dequantize bf16 too");
    return refuse(f, FSDPCK_ERR_UNSUPPORTED, t->name);
}

static int refuse_both(const struct finder *f, const struct fsdpck_tensor *t)
{
    const struct fsdpck_found_expert *first = f->out->list.data;
    fsdpck_error_set(f->err, FSDPCK_ERR_UNSUPPORTED, f->src->path,
                     "holds experts %s, and '%.200s' holds them %s: is this model published, or as transformers has it "
                     "in memory?",
                     f->out->fused ? "one by one" : "fused", source_tensors(f->src)[first->ordinal].name,
                     f->out->fused ? "fused" : "one by one");
    return refuse(f, FSDPCK_ERR_UNSUPPORTED, t->name);
}

/* ---- shapes ---- */

/* The shape of fused experts is [experts, outputs, inputs], or with the last two turned. */
static bool has_shape(const struct fsdpck_tensor *t, const uint64_t *want, uint32_t ndim)
{
    return t->ndim == ndim && memcmp(t->shape, want, ndim * sizeof *want) == 0;
}

static int refuse_shape(const struct finder *f, const struct fsdpck_tensor *t, const struct fsdpck_tensor *want)
{
    char has[160], wanted[160];
    const uint64_t other[3] = { want->shape[0], want->shape[want->ndim - 1], want->shape[want->ndim - 2] };
    const bool turned = want->ndim == 3 && has_shape(t, other, 3);
    fsdpck_error_set(f->err, FSDPCK_ERR_FORMAT, f->src->path,
                     "has shape %s; a %s with the sizes of config.json has %s%s", fsdpck_shape_text(t, has, sizeof has),
                     f->moe->model_type, fsdpck_shape_text(want, wanted, sizeof wanted),
                     turned ? ": is this model published, or were inputs and outputs of its experts swapped?" : "");
    return refuse(f, FSDPCK_ERR_FORMAT, t->name);
}

/* Scales of gate and up lie in one tensor only where no block holds rows of both. */
static int check_blocks(const struct finder *f, const struct fsdpck_tensor *t)
{
    const struct fsdpck_moe *m = f->moe;
    if (m->inter % m->block[0] == 0)
        return 0;
    fsdpck_error_set(f->err, FSDPCK_ERR_UNSUPPORTED, f->src->path,
                     "has blocks of %" PRIu64 " rows, which do not divide the %" PRIu64
                     " rows of gate: fused, a block would hold rows of gate and of up",
                     m->block[0], m->inter);
    fsdpck_error_hint(f->err, "--dequantize bf16 takes the weights' values");
    return refuse(f, FSDPCK_ERR_UNSUPPORTED, t->name);
}

/* Fills the shape that a tensor must have. */
static void want_shape(const struct fsdpck_moe *m, const struct fsdpck_expert *x, bool turned, uint64_t want[3])
{
    const bool fused = x->form == FSDPCK_EXPERT_FUSED, down = x->part == FSDPCK_EXPERT_DOWN;
    uint64_t rows = down ? m->hidden : m->inter, cols = down ? m->inter : m->hidden;
    if (fused && !down)
        rows *= 2;
    if (x->scale) {
        rows = rows / m->block[0] + (rows % m->block[0] != 0);
        cols = cols / m->block[1] + (cols % m->block[1] != 0);
    }
    want[0] = m->nexperts;
    want[turned ? 2 : fused] = rows;
    want[turned ? 1 : fused + 1] = cols;
}

static int check_shape(const struct finder *f, const struct fsdpck_tensor *t, const struct fsdpck_expert *x,
                       bool turned)
{
    const struct fsdpck_moe *m = f->moe;
    const bool fused = x->form == FSDPCK_EXPERT_FUSED;
    uint64_t want[3];
    const struct fsdpck_tensor shape = { .ndim = fused ? 3 : 2, .shape = want };
    if (m->inter > UINT64_MAX / 4 || m->hidden > UINT64_MAX / 4)
        return fsdpck_error_set(f->err, FSDPCK_ERR_LIMIT, f->src->path, "experts of %" PRIu64 " values", m->inter);
    want_shape(m, x, fused && turned, want);
    if (!has_shape(t, want, shape.ndim))
        return refuse_shape(f, t, &shape);
    return x->scale && x->part != FSDPCK_EXPERT_DOWN ? check_blocks(f, t) : 0;
}

/* ---- completeness ---- */

/* Position of a tensor among those of its layer. */
static uint64_t place(const struct fsdpck_expert *x)
{
    const bool down = x->part == FSDPCK_EXPERT_DOWN;
    return ((uint64_t)x->scale << 63) + ((uint64_t)down << 62) + x->expert * 2 + (x->part == FSDPCK_EXPERT_UP);
}

static int by_place(const void *a, const void *b)
{
    const struct fsdpck_expert *x = &((const struct fsdpck_found_expert *)a)->x,
                               *y = &((const struct fsdpck_found_expert *)b)->x;
    if (x->layer != y->layer)
        return x->layer < y->layer ? -1 : 1;
    return place(x) < place(y) ? -1 : place(x) > place(y);
}

static int missing(const struct finder *f, const struct fsdpck_expert *x)
{
    char name[NAME_NBYTES];
    fsdpck_expert_name(f->moe, x, name, sizeof name);
    fsdpck_error_set(f->err, FSDPCK_ERR_MISSING, f->src->path,
                     "is missing; config.json says that layer %" PRIu64 " has %" PRIu64 " experts", x->layer,
                     f->moe->nexperts);
    return refuse(f, FSDPCK_ERR_MISSING, name);
}

/* The tensor that must follow x in its layer; false: x was the last. */
static bool next(const struct fsdpck_moe *m, struct fsdpck_expert *x)
{
    if (x->form == FSDPCK_EXPERT_FUSED) {
        const bool more = x->part == FSDPCK_EXPERT_GATE;
        x->part = FSDPCK_EXPERT_DOWN;
        return more;
    }
    if (x->part == FSDPCK_EXPERT_GATE) {
        x->part = FSDPCK_EXPERT_UP;
        return true;
    }
    x->part = x->part == FSDPCK_EXPERT_UP ? FSDPCK_EXPERT_GATE : FSDPCK_EXPERT_DOWN;
    if (++x->expert < m->nexperts)
        return true;
    x->expert = 0;
    if (x->part == FSDPCK_EXPERT_DOWN)
        return false;
    x->part = FSDPCK_EXPERT_DOWN;
    return true;
}

static bool is_same(const struct fsdpck_expert *a, const struct fsdpck_expert *b)
{
    return a->layer == b->layer && place(a) == place(b);
}

/* Checks the weights, or the scales, of a layer. */
static int check_layer(const struct finder *f, size_t *at)
{
    const struct fsdpck_found_expert *list = f->out->list.data;
    struct fsdpck_expert want = { .form = f->out->fused ? FSDPCK_EXPERT_FUSED : FSDPCK_EXPERT_SINGLE,
                                  .layer = list[*at].x.layer,
                                  .scale = list[*at].x.scale };
    const enum fsdpck_dtype dtype = source_tensors(f->src)[list[*at].ordinal].dtype;
    do {
        if (*at == f->out->list.count || !is_same(&list[*at].x, &want))
            return missing(f, &want);
        const struct fsdpck_tensor *t = &source_tensors(f->src)[list[*at].ordinal];
        if (t->dtype != dtype && !f->out->fused) {
            fsdpck_error_set(f->err, FSDPCK_ERR_UNSUPPORTED, f->src->path,
                             "is %s, and other experts of its layer are %s: they do not fit in one tensor",
                             fsdpck_dtype_info(t->dtype)->name, fsdpck_dtype_info(dtype)->name);
            return refuse(f, FSDPCK_ERR_UNSUPPORTED, t->name);
        }
        ++*at;
    } while (next(f->moe, &want));
    return 0;
}

static int check_complete(const struct finder *f)
{
    int rc = 0;
    size_t at = 0;
    if (f->out->list.count)
        qsort(f->out->list.data, f->out->list.count, sizeof(struct fsdpck_found_expert), by_place);
    while (at < f->out->list.count && !rc) {
        const struct fsdpck_found_expert *first = (const struct fsdpck_found_expert *)f->out->list.data + at;
        if (first->x.scale && (at == 0 || first[-1].x.layer != first->x.layer)) {
            struct fsdpck_expert weight = first->x;
            weight.scale = false;
            return missing(f, &weight);
        }
        rc = check_layer(f, &at);
    }
    return rc;
}

/* ---- the whole source ---- */

static int add(struct finder *f, size_t ordinal)
{
    const struct fsdpck_tensor *t = &source_tensors(f->src)[ordinal];
    struct fsdpck_found_expert found = { .ordinal = ordinal,
                                         .stored = t->alias_of >= 0 ? (size_t)t->alias_of : ordinal };
    if (fsdpck_weight_is_state(t))
        return 0;
    fsdpck_expert_parse(f->moe, fsdpck_weight_name(t), &found.x);
    if (found.x.form == FSDPCK_EXPERT_UNKNOWN)
        return refuse_unknown(f, t);
    if (found.x.form != FSDPCK_EXPERT_SINGLE && found.x.form != FSDPCK_EXPERT_FUSED)
        return 0;
    const bool fused = found.x.form == FSDPCK_EXPERT_FUSED;
    if (!fused && found.x.expert >= f->moe->nexperts) {
        fsdpck_error_set(f->err, FSDPCK_ERR_FORMAT, f->src->path, "is an expert beyond the %" PRIu64 " of config.json",
                         f->moe->nexperts);
        return refuse(f, FSDPCK_ERR_FORMAT, t->name);
    }
    if (f->out->list.count && fused != f->out->fused)
        return refuse_both(f, t);
    f->out->fused = fused;
    int rc = check_shape(f, t, &found.x, fsdpck_moe_is_turned(f->moe));
    struct fsdpck_found_expert *slot = rc ? NULL : fsdpck_vec_push(&f->out->list, f->err);
    if (slot)
        *slot = found;
    return rc ? rc : slot ? 0 : FSDPCK_ERR_NOMEM;
}

int fsdpck_experts_find(const struct fsdpck_source *src, const struct fsdpck_moe *moe, struct fsdpck_found_experts *out,
                        struct fsdpck_error *err)
{
    struct finder f = { src, moe, out, err };
    int rc = 0;
    *out = (struct fsdpck_found_experts){ .list = FSDPCK_VEC(struct fsdpck_found_expert) };
    for (size_t i = 0; i < src->tensors.count && !rc; i++)
        rc = add(&f, i);
    return rc ? rc : check_complete(&f);
}

/* ---- fused, as published too ---- */

/* Experts that have one order of inputs and outputs; as wide as high they fit both. */
struct orders {
    const struct fsdpck_tensor *held, *published, *either;
};

/* Takes the order from the shapes of a family that is published turned. */
static int find_order(const struct finder *f, const struct fsdpck_tensor *t, const struct fsdpck_expert *x,
                      struct orders *o)
{
    uint64_t want[3];
    want_shape(f->moe, x, false, want);
    const bool held = has_shape(t, want, 3);
    want_shape(f->moe, x, true, want);
    const bool published = has_shape(t, want, 3);
    if (!held && !published)
        return check_shape(f, t, x, true);
    *(held && published ? &o->either : held ? &o->held : &o->published) = t;
    if (!o->held || !o->published)
        return 0;
    fsdpck_error_set(f->err, FSDPCK_ERR_UNSUPPORTED, f->src->path,
                     "has outputs before inputs, as transformers holds experts, and '%.200s' has inputs before "
                     "outputs, as a %s is published: which of the two is this model?",
                     o->published->name, f->moe->model_type);
    return refuse(f, FSDPCK_ERR_UNSUPPORTED, o->held->name);
}

static int refuse_either(const struct finder *f, const struct fsdpck_tensor *t)
{
    char has[160];
    fsdpck_error_set(f->err, FSDPCK_ERR_UNSUPPORTED, f->src->path,
                     "has shape %s, with inputs before outputs, as a %s is published, or outputs before inputs, as "
                     "transformers holds it: its other experts would tell, and are missing",
                     fsdpck_shape_text(t, has, sizeof has), f->moe->model_type);
    return refuse(f, FSDPCK_ERR_UNSUPPORTED, t->name);
}

static int check_tensor_alike(const struct finder *f, const struct fsdpck_tensor *t, struct orders *o)
{
    const struct fsdpck_moe *moe = f->moe;
    char name[NAME_NBYTES];
    struct fsdpck_expert x;
    fsdpck_text_rename(fsdpck_moe_text(moe), &fsdpck_text_alone, fsdpck_weight_name(t), name, sizeof name);
    fsdpck_expert_parse(moe, name, &x);
    if (fsdpck_weight_is_state(t) || x.form == FSDPCK_EXPERT_OTHER)
        return 0;
    if (x.form == FSDPCK_EXPERT_FUSED)
        return fsdpck_moe_is_published_turned(moe) ? find_order(f, t, &x, o)
                                                   : check_shape(f, t, &x, fsdpck_moe_is_turned(moe));
    fsdpck_error_set(f->err, FSDPCK_ERR_UNSUPPORTED, f->src->path,
                     "is one expert's, and model_type '%s' is published with all experts of a layer in one tensor",
                     moe->model_type);
    return refuse(f, FSDPCK_ERR_UNSUPPORTED, t->name);
}

int fsdpck_experts_check_alike(const struct fsdpck_source *src, const struct fsdpck_moe *moe, bool *held,
                               struct fsdpck_error *err)
{
    const struct finder f = { .src = src, .moe = moe, .err = err };
    struct orders orders = { 0 };
    int rc = 0;
    for (size_t i = 0; i < src->tensors.count && !rc; i++)
        rc = check_tensor_alike(&f, &source_tensors(src)[i], &orders);
    if (!rc && orders.either && !orders.held && !orders.published)
        rc = refuse_either(&f, orders.either);
    *held = orders.held;
    return rc;
}
