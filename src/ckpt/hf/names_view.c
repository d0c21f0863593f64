/* SPDX-License-Identifier: Apache-2.0 */
/* Presents a source's Llama under the names of the other convention: the same bytes, with the rows of q and k permuted.
 * The rows of a head are stored as pairs (b, 0), (b, 1) by torchtitan and as halves (0, b), (1, b) by Hugging Face;
 * either is a strided view of the other, so nothing is copied. */
#include <fsdpck/source.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"
#include "engine/source_impl.h"
#include "hf/config.h"
#include "hf/llama_names.h"
#include "tensor/box.h"

/* A tensor with permuted rows: all its extents, sorted by the first row that they present. */
struct permuted_rows {
    struct fsdpck_extent *extents;
    size_t count;
    uint64_t longest; /* maximum number of rows of an extent */
};

struct view {
    struct fsdpck_source inner; /* the source as opened; its catalogue is no longer presented */
    struct fsdpck_source_ops ops;
    struct fsdpck_vec shown; /* struct view_tensor, parallel to the source's tensors */
};

struct view_tensor {
    size_t inner;                 /* ordinal in inner */
    struct permuted_rows *turned; /* NULL: not permuted */
};

struct view_builder {
    struct fsdpck_source *src;
    struct view *view;
    bool to_hf;
    uint64_t heads, kv_heads;
    size_t *outer; /* inner ordinal -> presented ordinal; SIZE_MAX: omitted */
    size_t nleft;
    struct fsdpck_error *err;
    /* The tensor whose rows are being permuted. */
    const struct fsdpck_tensor *t;
    uint64_t half; /* rows of half a head */
    struct fsdpck_vec extents;
};

/* ---- the order of rows ---- */

static int add_extent(struct view_builder *m, const struct fsdpck_extent *e, uint64_t shown_row, uint64_t nrows,
                      uint64_t stored_row, uint64_t step)
{
    uint32_t ndim = m->t->ndim;
    uint64_t *box = fsdpck_arena_array(&m->src->arena, 3 * ndim, sizeof *box, m->err), dense = 1;
    struct fsdpck_extent *out = box ? fsdpck_vec_push(&m->extents, m->err) : NULL;
    if (!out)
        return FSDPCK_ERR_NOMEM;
    uint64_t *offset = box, *size = box + ndim, *strides = box + 2 * ndim;
    for (uint32_t d = ndim; d-- > 0; dense *= e->size[d]) {
        offset[d] = e->offset[d];
        size[d] = e->size[d];
        strides[d] = e->strides ? e->strides[d] : dense;
    }
    *out = *e;
    out->first = e->first + (stored_row - e->offset[0]) * strides[0];
    offset[0] = shown_row;
    size[0] = nrows;
    strides[0] *= step;
    out->offset = offset;
    out->size = size;
    out->strides = strides;
    return 0;
}

/* Adds the rows of one head in the chunk, one half (to Hugging Face) at a time: b is the pair, a the half. */
static int add_halves(struct view_builder *m, const struct fsdpck_extent *e, uint64_t head)
{
    uint64_t begin = e->offset[0], end = e->offset[0] + e->size[0], base = head * 2 * m->half;
    int rc = 0;
    for (uint64_t a = 0; !rc && a < 2; a++) {
        uint64_t low = begin > base + a ? (begin - base - a + 1) / 2 : 0;
        uint64_t high = end > base + a ? (end - base - a + 1) / 2 : 0;
        high = high < m->half ? high : m->half;
        if (low < high)
            rc = add_extent(m, e, base + a * m->half + low, high - low, base + 2 * low + a, 2);
    }
    return rc;
}

/* The same from Hugging Face: adjacent rows come from two halves, so each row is an extent. */
static int add_pairs(struct view_builder *m, const struct fsdpck_extent *e, uint64_t head)
{
    uint64_t base = head * 2 * m->half;
    int rc = 0;
    for (uint64_t i = 0; !rc && i < 2 * m->half; i++)
        if (base + i >= e->offset[0] && base + i < e->offset[0] + e->size[0])
            rc = add_extent(m, e, base + i % m->half * 2 + i / m->half, 1, base + i, 1);
    return rc;
}

static int turn_extent(void *ctx, const struct fsdpck_extent *e, struct fsdpck_error *err)
{
    struct view_builder *m = ctx;
    uint64_t per_head = 2 * m->half;
    int rc = 0;
    (void)err;
    for (uint64_t head = e->offset[0] / per_head; !rc && head * per_head < e->offset[0] + e->size[0]; head++)
        rc = m->to_hf ? add_halves(m, e, head) : add_pairs(m, e, head);
    return rc;
}

static int by_row(const void *a, const void *b)
{
    const struct fsdpck_extent *x = a, *y = b;
    return x->offset[0] < y->offset[0] ? -1 : x->offset[0] > y->offset[0];
}

static int refuse(struct view_builder *m, const char *name, const char *what)
{
    fsdpck_error_set(m->err, FSDPCK_ERR_UNSUPPORTED, m->src->path, "%s", what);
    fsdpck_error_tensor(m->err, name);
    return m->err->code;
}

static int turn(struct view_builder *m, size_t inner, enum fsdpck_llama_role role, struct permuted_rows **out)
{
    static const uint64_t origin[FSDPCK_MAX_DIMS];
    char text[160];
    uint64_t heads = role == FSDPCK_LLAMA_Q ? m->heads : m->kv_heads;
    m->t = (const struct fsdpck_tensor *)m->view->inner.tensors.data + inner;
    if (m->t->ndim == 0 || m->t->nelem == 0 || m->t->shape[0] % (2 * heads) != 0) {
        snprintf(text, sizeof text, "its rows cannot be those of the %" PRIu64 " heads that config.json names", heads);
        return refuse(m, m->t->name, text);
    }
    m->half = m->t->shape[0] / heads / 2;
    m->extents = (struct fsdpck_vec)FSDPCK_VEC(struct fsdpck_extent);
    int rc = m->view->inner.ops->extents(&m->view->inner, inner, origin, m->t->shape, turn_extent, m, m->err);
    struct permuted_rows *turned = rc ? NULL : fsdpck_arena_alloc(&m->src->arena, sizeof *turned, m->err);
    struct fsdpck_extent *copy =
        turned ? fsdpck_arena_array(&m->src->arena, m->extents.count, sizeof *copy, m->err) : NULL;
    if (copy && m->extents.count) {
        qsort(m->extents.data, m->extents.count, sizeof *copy, by_row);
        memcpy(copy, m->extents.data, m->extents.count * sizeof *copy);
        *turned = (struct permuted_rows){ copy, m->extents.count, 0 };
        for (size_t i = 0; i < turned->count; i++)
            turned->longest = copy[i].size[0] > turned->longest ? copy[i].size[0] : turned->longest;
    }
    fsdpck_vec_free(&m->extents);
    *out = turned;
    return rc ? rc : copy ? 0 : FSDPCK_ERR_NOMEM;
}

/* ---- the source that presents the view ---- */

static int extents(struct fsdpck_source *src, size_t ordinal, const uint64_t *offset, const uint64_t *size,
                   fsdpck_extent_fn visit, void *ctx, struct fsdpck_error *err)
{
    struct view *v = src->impl;
    const struct view_tensor *s = (const struct view_tensor *)v->shown.data + ordinal;
    uint32_t ndim = source_tensors(src)[ordinal].ndim;
    uint64_t o[FSDPCK_MAX_DIMS], n[FSDPCK_MAX_DIMS];
    if (!s->turned)
        return v->inner.ops->extents(&v->inner, s->inner, offset, size, visit, ctx, err);
    size_t low = 0, high = s->turned->count;
    while (low < high) { /* the first extent that may reach the box */
        size_t middle = low + (high - low) / 2;
        if (s->turned->extents[middle].offset[0] + s->turned->longest <= offset[0])
            low = middle + 1;
        else
            high = middle;
    }
    for (size_t i = low; i < s->turned->count && s->turned->extents[i].offset[0] < offset[0] + size[0]; i++) {
        const struct fsdpck_extent *e = &s->turned->extents[i];
        int rc = fsdpck_box_intersect(ndim, e->offset, e->size, offset, size, o, n) ? visit(ctx, e, err) : 0;
        if (rc)
            return rc;
    }
    return 0;
}

static void close_view(struct fsdpck_source *src)
{
    struct view *v = src->impl;
    if (v->inner.ops->close)
        v->inner.ops->close(&v->inner);
    fsdpck_vec_free(&v->inner.tensors);
    fsdpck_vec_free(&v->inner.items);
    fsdpck_names_free(&v->inner.names);
    fsdpck_vec_free(&v->shown);
    free(v);
}

static struct view *make_view(struct fsdpck_source *src)
{
    struct view *v = calloc(1, sizeof *v);
    if (!v)
        return NULL;
    v->inner = *src;
    v->ops = (struct fsdpck_source_ops){ .kind = src->ops->kind, .extents = extents, .close = close_view };
    v->shown = (struct fsdpck_vec)FSDPCK_VEC(struct view_tensor);
    src->ops = &v->ops;
    src->impl = v;
    src->tensors = (struct fsdpck_vec){ NULL, 0, 0, v->inner.tensors.item_nbytes };
    src->items = (struct fsdpck_vec){ NULL, 0, 0, v->inner.items.item_nbytes };
    src->names = (struct fsdpck_names){ 0 };
    return v;
}

/* ---- names ---- */

/* Returns the weight's name, without a tree "model" around all of them. */
static const char *weight_name(const struct fsdpck_tensor *t)
{
    bool nested = t->npath > 1 && t->path[0].str && !strcmp(t->path[0].str, "model") && !strncmp(t->name, "model.", 6);
    return nested ? t->name + 6 : t->name;
}

/* Tensors that trainers save beside the weights. */
static bool is_state(const struct fsdpck_tensor *t)
{
    static const char *const trees[] = { "optimizer",   "optim",      "state", "param_groups", "lr_scheduler",
                                         "train_state", "dataloader", "ema",   "extra_state" };
    for (size_t i = 0; i < sizeof trees / sizeof *trees; i++) {
        size_t n = strlen(trees[i]);
        if (!strncmp(t->name, trees[i], n) && (t->name[n] == '.' || t->name[n] == 0))
            return true;
    }
    return false;
}

static int show(struct view_builder *m, size_t inner)
{
    const struct fsdpck_tensor *t = (const struct fsdpck_tensor *)m->view->inner.tensors.data + inner;
    char name[512];
    enum fsdpck_llama_role role;
    struct permuted_rows *turned = NULL;
    m->outer[inner] = SIZE_MAX;
    if (!fsdpck_llama_rename(weight_name(t), m->to_hf, name, sizeof name, &role)) {
        m->nleft++;
        return is_state(t) ? 0
                           : refuse(m, t->name, "is no weight of a Llama, and only those have both names of --names");
    }
    m->outer[inner] = m->src->tensors.count;
    struct view_tensor *s = fsdpck_vec_push(&m->view->shown, m->err);
    if (!s)
        return FSDPCK_ERR_NOMEM;
    s->inner = inner;
    if (t->alias_of >= 0 && m->outer[t->alias_of] != SIZE_MAX)
        return fsdpck_source_add_alias(m->src, m->src->path, name, NULL, 0, m->outer[t->alias_of], m->err);
    int rc = role == FSDPCK_LLAMA_PLAIN ? 0 : turn(m, inner, role, &turned);
    if (rc)
        return rc;
    s->turned = turned;
    struct fsdpck_tensor *made =
        fsdpck_source_add_tensor(m->src, m->src->path, name, NULL, 0, t->dtype, t->ndim, t->shape, m->err);
    if (!made)
        return m->err->code;
    if (!turned) {
        made->mesh = t->mesh;
        made->placements = t->placements;
        made->has_content = t->has_content;
        memcpy(made->content, t->content, sizeof made->content);
    }
    return 0;
}

static void say_left(const struct view_builder *m)
{
    char line[160];
    size_t nitems = m->view->inner.items.count;
    if (!m->src->opt.note || (!m->nleft && !nitems))
        return;
    snprintf(line, sizeof line,
             "only the model's weights get other names: %zu tensors and %zu values of the trainer's state are left out",
             m->nleft, nitems);
    m->src->opt.note(m->src->opt.ctx, line);
}

static void say_has(const struct fsdpck_source *src, const char *names)
{
    char line[120];
    snprintf(line, sizeof line, "--names %s: the weights are called so already, and are taken as they are", names);
    if (src->opt.note)
        src->opt.note(src->opt.ctx, line);
}

static int show_all(struct view_builder *m)
{
    size_t count = m->view->inner.tensors.count;
    int rc = 0;
    m->outer = calloc(count + 1, sizeof *m->outer);
    if (!m->outer)
        return fsdpck_error_nomem(m->err, count * sizeof *m->outer);
    for (size_t i = 0; !rc && i < count; i++)
        rc = show(m, i);
    free(m->outer);
    return rc;
}

/* ---- config.json ---- */

/* Returns the path of the config with the number of heads; malloc'ed, NULL if there is none. */
static char *find_config(const struct fsdpck_source *src, const char *folder)
{
    if (folder)
        return fsdpck_path_join(folder, "config.json", NULL);
    for (size_t i = 0; i < src->assets.count; i++)
        if (!strcmp(source_assets(src)[i].pub.path, "config.json"))
            return strdup(source_assets(src)[i].from);
    return NULL;
}

static int read_heads(struct view_builder *m, const char *folder)
{
    char *path = find_config(m->src, folder), *text = NULL;
    uint64_t nbytes;
    if (!path) {
        fsdpck_error_set(m->err, FSDPCK_ERR_MISSING, m->src->path,
                         "has no config.json, which says how many heads share the rows of q and k, as --names needs");
        fsdpck_error_hint(m->err, "give the model's Hugging Face folder: --assets FOLDER");
        return m->err->code;
    }
    int rc = fsdpck_read_file(m->src->io, path, FSDPCK_CONFIG_MAX_NBYTES, &text, &nbytes, m->err);
    if (!rc)
        rc = fsdpck_config_heads(path, text, nbytes, &m->heads, &m->kv_heads, m->err);
    free(text);
    free(path);
    return rc;
}

/* ---- the view ---- */

/* Counts the source's tensors with names of one convention. */
static size_t count_names(const struct fsdpck_source *src, bool to_hf, bool turned)
{
    char name[512];
    enum fsdpck_llama_role role;
    size_t n = 0;
    for (size_t i = 0; i < src->tensors.count; i++)
        n += fsdpck_llama_rename(weight_name(&source_tensors(src)[i]), to_hf, name, sizeof name, &role) &&
             (!turned || role != FSDPCK_LLAMA_PLAIN);
    return n;
}

bool fsdpck_source_is_torchtitan(const struct fsdpck_source *src)
{
    return !src->names_said && count_names(src, true, true) > 0;
}

int fsdpck_source_set_names(struct fsdpck_source *src, const char *names, const char *folder, struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    struct view_builder m = { .src = src, .to_hf = !strcmp(names, "hf"), .err = err ? err : &own };
    if (!m.to_hf && strcmp(names, "torchtitan") != 0)
        return fsdpck_error_set(m.err, FSDPCK_ERR_USAGE, NULL,
                                "'%s' are no names that a model has; there are hf, torchtitan", names);
    src->names_said = true;
    if (count_names(src, !m.to_hf, false)) {
        say_has(src, names);
        return 0;
    }
    if (!count_names(src, m.to_hf, false))
        return fsdpck_error_set(
            m.err, FSDPCK_ERR_UNSUPPORTED, src->path,
            "--names: found no weight that is called as a Llama's, by Hugging Face or by torchtitan");
    int rc = read_heads(&m, folder);
    if (rc)
        return rc;
    if (!(m.view = make_view(src)))
        return fsdpck_error_nomem(m.err, sizeof *m.view);
    if (!(rc = show_all(&m)))
        say_left(&m);
    return rc;
}
