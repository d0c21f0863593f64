/* SPDX-License-Identifier: Apache-2.0 */
/* Presents a source with the tensors that it lacks taken from another one: a value view (engine/value_view.h) that
 * passes both on. */
#include <fsdpck/source.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/checks.h"
#include "engine/value_inputs.h"
#include "engine/view.h"
#include "hf/weight_names.h"
#include "view/complete_names.h"

struct view {
    struct fsdpck_view view;
    struct fsdpck_source *base;
    size_t nown;      /* tensors of the source itself come first */
    size_t *from;     /* (tensors - nown) ordinal in the base */
    size_t ntaken;    /* tensors with values of the base */
    const char *some; /* the first of them */
};

struct state {
    struct fsdpck_fetch own, base;
};

/* ---- the ops ---- */

static bool has(const struct fsdpck_source *src, size_t ordinal)
{
    const struct view *v = src->impl;
    return ordinal >= v->nown || fsdpck_is_computed(&v->view.inner, ordinal);
}

static int extents(struct fsdpck_source *src, size_t ordinal, const uint64_t *offset, const uint64_t *size,
                   fsdpck_extent_fn visit, void *ctx, struct fsdpck_error *err)
{
    struct view *v = src->impl;
    if (has(src, ordinal))
        return fsdpck_view_no_extents(src, ordinal, "is taken from another source", err);
    return v->view.inner.ops->extents(&v->view.inner, ordinal, offset, size, visit, ctx, err);
}

static int inputs(struct fsdpck_source *src, size_t ordinal, fsdpck_input_fn visit, void *ctx, struct fsdpck_error *err)
{
    struct view *v = src->impl;
    return ordinal < v->nown ? visit(ctx, &v->view.inner, ordinal, err)
                             : visit(ctx, v->base, v->from[ordinal - v->nown], err);
}

static void end(void *state)
{
    struct state *s = state;
    if (s) {
        fsdpck_fetch_free(&s->own);
        fsdpck_fetch_free(&s->base);
    }
    free(s);
}

static int begin(struct fsdpck_source *src, void **state, struct fsdpck_error *err)
{
    struct view *v = src->impl;
    struct state *s = calloc(1, sizeof *s);
    int rc = s ? fsdpck_fetch_init(&s->own, &v->view.inner, err) : fsdpck_error_nomem(err, sizeof *s);
    if (!rc)
        rc = fsdpck_fetch_init(&s->base, v->base, err);
    if (rc)
        end(s);
    else
        *state = s;
    return rc;
}

static int compute(struct fsdpck_fetch *f, void *state, size_t ordinal, const struct fsdpck_matrix_box *box, void *dst,
                   uint64_t stride, struct fsdpck_error *err)
{
    const struct view *v = f->src->impl;
    struct state *s = state;
    return ordinal < v->nown ? fsdpck_values_pass(f, &s->own, ordinal, box, dst, stride, err)
                             : fsdpck_values_pass(f, &s->base, v->from[ordinal - v->nown], box, dst, stride, err);
}

static int finish(struct fsdpck_source *src, uint64_t *read_nbytes, struct fsdpck_error *err)
{
    struct view *v = src->impl;
    int rc = fsdpck_view_finish(src, read_nbytes, err);
    return rc ? rc : fsdpck_checks_finish(v->base, read_nbytes, err);
}

static void close_view(struct fsdpck_source *src)
{
    struct view *v = src->impl;
    fsdpck_source_close(v->base);
    free(v->from);
    fsdpck_view_close(src);
}

static const struct fsdpck_values values = { .has = has,
                                             .inputs = inputs,
                                             .begin = begin,
                                             .end = end,
                                             .nbytes = fsdpck_view_state_nbytes,
                                             .compute = compute,
                                             .finish = finish };

static const struct fsdpck_source_ops ops = { .extents = extents, .close = close_view, .values = &values };

/* ---- the catalogue ---- */

static bool has_second_name(const struct fsdpck_source *src, size_t ordinal)
{
    for (size_t i = 0; i < src->tensors.count; i++)
        if (source_tensors(src)[i].alias_of == (int64_t)ordinal)
            return true;
    return false;
}

/* A second name of a tensor of the base is one of the tensor here, unless that has one: the head is tied already. */
static int show_second_name(struct fsdpck_source *src, struct view *v, const struct fsdpck_complete_names *names,
                            const struct fsdpck_tensor *t, const char *name, struct fsdpck_error *err)
{
    char target[FSDPCK_COMPLETE_NAME_NBYTES];
    struct fsdpck_key path[2];
    const uint32_t npath = fsdpck_complete_path(names, name, path);
    int rc = fsdpck_complete_name(names, fsdpck_weight_name(&source_tensors(v->base)[t->alias_of]), target, err);
    const size_t at = rc ? SIZE_MAX : fsdpck_names_find(&src->names, target);
    if (rc || at == SIZE_MAX)
        return rc;
    const int64_t stored = source_tensors(src)[at].alias_of;
    const size_t of = stored >= 0 ? (size_t)stored : at;
    if (has_second_name(src, of))
        return 0;
    v->from[src->tensors.count - v->nown] = (size_t)t->alias_of;
    return fsdpck_source_add_alias(src, src->path, name, npath ? path : NULL, npath, of, err);
}

/* Lists a tensor of the base under the name that it has here. */
static int show_missing(struct fsdpck_source *src, struct view *v, const struct fsdpck_complete_names *names,
                        size_t ordinal, struct fsdpck_error *err)
{
    const struct fsdpck_tensor *t = &source_tensors(v->base)[ordinal];
    char name[FSDPCK_COMPLETE_NAME_NBYTES];
    struct fsdpck_key path[2];
    int rc = fsdpck_complete_name(names, fsdpck_weight_name(t), name, err);
    if (rc || fsdpck_names_find(&src->names, name) != SIZE_MAX)
        return rc;
    const uint32_t npath = fsdpck_complete_path(names, name, path);
    if (t->alias_of >= 0)
        return show_second_name(src, v, names, t, name, err);
    v->from[src->tensors.count - v->nown] = ordinal;
    if (v->ntaken++ == 0)
        v->some = t->name;
    return fsdpck_source_add_tensor(src, src->path, name, npath ? path : NULL, npath, t->dtype, t->ndim, t->shape, err)
               ? 0
               : err->code;
}

static int show_all(struct fsdpck_source *src, struct view *v, const struct fsdpck_complete_names *names,
                    struct fsdpck_error *err)
{
    int rc = fsdpck_view_show_all(src, err);
    for (size_t i = 0; i < v->base->tensors.count && !rc; i++)
        if (!fsdpck_weight_is_state(&source_tensors(v->base)[i]))
            rc = show_missing(src, v, names, i, err);
    return rc;
}

static void say(const struct fsdpck_source *src, const struct view *v)
{
    char line[700];
    if (!src->opt.note)
        return;
    if (v->ntaken)
        snprintf(line, sizeof line, "takes %zu tensor%s from %.250s ('%.250s'%s)", v->ntaken, fsdpck_plural(v->ntaken),
                 v->base->path, v->some, v->ntaken > 1 ? " the first" : "");
    else
        snprintf(line, sizeof line, "%.500s has no tensor that is missing here", v->base->path);
    src->opt.note(src->opt.ctx, line);
}

int fsdpck_source_complete(struct fsdpck_source *src, struct fsdpck_source *base, struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    struct fsdpck_complete_names names;
    err = err ? err : &own;
    struct view *v = calloc(1, sizeof *v);
    int rc = v ? fsdpck_complete_match(src, base, &names, err) : fsdpck_error_nomem(err, sizeof *v);
    if (!rc && !(v->from = calloc(base->tensors.count + 1, sizeof *v->from)))
        rc = fsdpck_error_nomem(err, base->tensors.count * sizeof *v->from);
    if (rc) {
        fsdpck_source_close(base);
        free(v);
        return rc;
    }
    v->base = base;
    v->nown = src->tensors.count;
    fsdpck_view_install(&v->view, src, &ops);
    v->view.state_nbytes = fsdpck_fetch_nbytes(&v->view.inner) + fsdpck_fetch_nbytes(base);
    rc = show_all(src, v, &names, err);
    if (!rc)
        say(src, v);
    return rc;
}
