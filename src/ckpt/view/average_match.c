/* SPDX-License-Identifier: Apache-2.0 */
/* Pairs the tensors of several sources by name. Reads catalogues, never payload. */
#include "view/average_match.h"

#include <stdlib.h>
#include <string.h>

#include "base/names.h"
#include "engine/selection.h"
#include "engine/source_impl.h"
#include "hf/quantized.h"
#include "tensor/shape_text.h"

struct side {
    struct fsdpck_source *src;
    struct fsdpck_selection selection;
    struct fsdpck_names names; /* -> position in the selection */
};

struct match {
    const struct fsdpck_averaging *a;
    struct side *sides; /* (a->n) */
    size_t *at;         /* (a->n) positions of the tensor being matched */
    struct fsdpck_error *err;
};

static int open_side(struct match *m, size_t i)
{
    const struct fsdpck_select *all = m->a->select;
    const struct fsdpck_select only = { .include = all->include,
                                        .ninclude = all->ninclude,
                                        .exclude = all->exclude,
                                        .nexclude = all->nexclude,
                                        .tree = all->tree };
    struct side *s = &m->sides[i];
    s->src = m->a->sources[i];
    int rc = fsdpck_selection_make(s->src, &only, FSDPCK_TREE_MODEL, &s->selection, m->err);
    if (!rc)
        rc = fsdpck_quantized_refuse(s->src, &s->selection, NULL, fsdpck_quantized_average, m->err);
    for (size_t k = 0; k < s->selection.ntensors && !rc; k++) {
        size_t old;
        rc = fsdpck_names_add(&s->names, s->selection.tensors[k].name, k, &old, m->err);
    }
    return rc;
}

static const struct fsdpck_tensor *tensor_at(const struct side *s, size_t position)
{
    return &source_tensors(s->src)[s->selection.tensors[position].source];
}

static int only_in(const struct match *m, const struct side *has, const struct side *lacks, const char *name)
{
    fsdpck_error_set(m->err, FSDPCK_ERR_MISSING, fsdpck_source_path(lacks->src),
                     "is missing here; %s has it, and an average needs it in every source",
                     fsdpck_source_path(has->src));
    fsdpck_error_tensor(m->err, name);
    fsdpck_error_hint(m->err, "--exclude leaves a tensor out of every source");
    return FSDPCK_ERR_MISSING;
}

bool fsdpck_average_sums(enum fsdpck_dtype d)
{
    return d == FSDPCK_FLOAT64 || d == FSDPCK_FLOAT32 || d == FSDPCK_FLOAT16 || d == FSDPCK_BFLOAT16;
}

/* Compares a tensor with that of the first source. */
static int check_same(const struct match *m, const struct side *s, size_t position, const char *name)
{
    const struct fsdpck_tensor *t = tensor_at(s, position), *first = tensor_at(&m->sides[0], m->at[0]);
    char has[160], wanted[160];
    if (t->ndim != first->ndim || (t->ndim && memcmp(t->shape, first->shape, t->ndim * sizeof *t->shape) != 0)) {
        fsdpck_error_set(m->err, FSDPCK_ERR_FORMAT, fsdpck_source_path(s->src), "has shape %s; that of %s is %s",
                         fsdpck_shape_text(t, has, sizeof has), fsdpck_source_path(m->sides[0].src),
                         fsdpck_shape_text(first, wanted, sizeof wanted));
        fsdpck_error_tensor(m->err, name);
        return FSDPCK_ERR_FORMAT;
    }
    if (t->dtype == first->dtype || (fsdpck_average_sums(t->dtype) && fsdpck_average_sums(first->dtype)))
        return 0;
    fsdpck_error_set(m->err, FSDPCK_ERR_FORMAT, fsdpck_source_path(s->src), "is %s; that of %s is %s",
                     fsdpck_dtype_info(t->dtype)->name, fsdpck_source_path(m->sides[0].src),
                     fsdpck_dtype_info(first->dtype)->name);
    fsdpck_error_tensor(m->err, name);
    fsdpck_error_hint(m->err, "--exclude leaves a tensor out of every source");
    return FSDPCK_ERR_FORMAT;
}

static int find_in_all(struct match *m, size_t position)
{
    const char *name = m->sides[0].selection.tensors[position].name;
    int rc = 0;
    m->at[0] = position;
    for (size_t i = 1; i < m->a->n && !rc; i++) {
        m->at[i] = fsdpck_names_find(&m->sides[i].names, name);
        rc = m->at[i] == SIZE_MAX ? only_in(m, &m->sides[0], &m->sides[i], name)
                                  : check_same(m, &m->sides[i], m->at[i], name);
    }
    return rc;
}

static int check_no_more(const struct match *m, const struct side *s)
{
    const struct side *first = &m->sides[0];
    for (size_t k = 0; s->selection.ntensors != first->selection.ntensors && k < s->selection.ntensors; k++)
        if (fsdpck_names_find(&first->names, s->selection.tensors[k].name) == SIZE_MAX)
            return only_in(m, s, first, s->selection.tensors[k].name);
    return 0;
}

/* A second name stays one only if no source has other bytes under it. */
static int64_t alias_of(const struct match *m, const struct fsdpck_averaged *list, const struct fsdpck_averaged *x)
{
    int64_t target = m->sides[0].selection.tensors[m->at[0]].alias_of;
    if (target < 0 || memcmp(list[target].ordinals, x->ordinals, m->a->n * sizeof *x->ordinals) != 0)
        return -1;
    return target;
}

static int add(struct match *m, size_t position, struct fsdpck_arena *arena, struct fsdpck_vec *out)
{
    const char *name = m->sides[0].selection.tensors[position].name;
    int rc = find_in_all(m, position);
    struct fsdpck_averaged x = { .name = !rc ? fsdpck_arena_strndup(arena, name, strlen(name), m->err) : NULL },
                           *slot = x.name ? fsdpck_vec_push(out, m->err) : NULL;
    if (rc || !slot)
        return rc ? rc : FSDPCK_ERR_NOMEM;
    x.ordinals = fsdpck_arena_array(arena, m->a->n, sizeof *x.ordinals, m->err);
    if (!x.ordinals)
        return FSDPCK_ERR_NOMEM;
    for (size_t i = 0; i < m->a->n; i++)
        x.ordinals[i] = m->sides[i].selection.tensors[m->at[i]].source;
    x.alias_of = alias_of(m, out->data, &x);
    *slot = x;
    return 0;
}

static int match_all(struct match *m, struct fsdpck_arena *arena, struct fsdpck_vec *out)
{
    int rc = 0;
    for (size_t i = 0; i < m->a->n && !rc; i++)
        rc = open_side(m, i);
    for (size_t i = 0; i < m->sides[0].selection.ntensors && !rc; i++)
        rc = add(m, i, arena, out);
    for (size_t i = 1; i < m->a->n && !rc; i++)
        rc = check_no_more(m, &m->sides[i]);
    return rc;
}

int fsdpck_average_match(const struct fsdpck_averaging *a, struct fsdpck_arena *arena, struct fsdpck_vec *out,
                         struct fsdpck_average_left *left, struct fsdpck_error *err)
{
    struct match m = { .a = a, .sides = calloc(a->n, sizeof *m.sides), .at = calloc(a->n, sizeof *m.at), .err = err };
    int rc = m.sides && m.at ? match_all(&m, arena, out) : fsdpck_error_nomem(err, a->n * sizeof *m.sides);
    if (!rc) {
        fsdpck_selection_note_left(&m.sides[0].selection, a->select, &a->sources[0]->opt);
        *left = (struct fsdpck_average_left){ m.sides[0].selection.nleft_tensors, m.sides[0].selection.nleft_items };
    }
    for (size_t i = 0; m.sides && i < a->n; i++) {
        fsdpck_names_free(&m.sides[i].names);
        fsdpck_selection_free(&m.sides[i].selection);
    }
    free(m.sides);
    free(m.at);
    return rc;
}
