/* SPDX-License-Identifier: Apache-2.0 */
/* Stacks single experts (gate over up, and down), or cuts the stacks. Router, shared experts, MTP layers and all the
 * rest pass. */
#include "view/experts_view.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hf/weight_names.h"

enum { NAME_NBYTES = 1024 };

struct builder {
    struct fsdpck_source *src;
    const struct fsdpck_moe *moe;
    const struct fsdpck_found_experts *found;
    struct fsdpck_layout *layout;
    size_t *at; /* (inner tensors) position in found of the tensor, or SIZE_MAX */
    size_t nleft;
    struct fsdpck_error *err;
};

static const struct fsdpck_found_expert *found_at(const struct builder *b, size_t i)
{
    return (const struct fsdpck_found_expert *)b->found->list.data + i;
}

/* ---- stacking ---- */

/* How many tensors, from position `first` on, one fused tensor is made of. */
static size_t group_count(const struct builder *b, size_t first)
{
    return (size_t)b->moe->nexperts * (found_at(b, first)->x.part == FSDPCK_EXPERT_DOWN ? 1 : 2);
}

/* Piece i of a fused tensor: experts in order, gate before up. */
struct stacked {
    uint64_t offset[3], size[3];
};

static int stack(struct builder *b, size_t first)
{
    static const uint64_t from[2];
    static const uint32_t dims[3] = { FSDPCK_LAYOUT_NO_DIM, 0, 1 };
    const struct fsdpck_found_expert *x = found_at(b, first);
    const struct fsdpck_tensor *t = &source_tensors(fsdpck_layout_inner(b->layout))[x->ordinal];
    const size_t count = group_count(b, first);
    const uint64_t halves = count / b->moe->nexperts,
                   shape[3] = { b->moe->nexperts, halves * t->shape[0], t->shape[1] };
    const struct fsdpck_expert name_of = {
        .form = FSDPCK_EXPERT_FUSED, .layer = x->x.layer, .part = x->x.part, .scale = x->x.scale
    };
    char name[NAME_NBYTES];
    struct stacked *boxes = calloc(count, sizeof *boxes);
    struct fsdpck_layout_piece *pieces = calloc(count, sizeof *pieces);
    int rc = boxes && pieces ? 0 : fsdpck_error_nomem(b->err, count * sizeof *pieces);
    for (size_t i = 0; i < count && !rc; i++) {
        boxes[i] = (struct stacked){ { i / halves, i % halves * t->shape[0], 0 }, { 1, t->shape[0], t->shape[1] } };
        pieces[i] =
            (struct fsdpck_layout_piece){ found_at(b, first + i)->stored, boxes[i].offset, boxes[i].size, from, dims };
    }
    fsdpck_expert_name(b->moe, &name_of, name, sizeof name);
    if (!rc)
        rc = fsdpck_layout_add(b->layout, name, t->dtype, 3, shape, pieces, count, b->err);
    free(boxes);
    free(pieces);
    return rc;
}

/* Adds the fused tensor that an expert is the first of, in the order of found; the others add nothing. */
static int add_single(struct builder *b, size_t at)
{
    const struct fsdpck_expert *x = &found_at(b, at)->x;
    return x->expert == 0 && x->part != FSDPCK_EXPERT_UP ? stack(b, at) : 0;
}

/* ---- cutting ---- */

static int cut(struct builder *b, size_t at, uint64_t expert, enum fsdpck_expert_part part)
{
    static const uint64_t zeros[2];
    static const uint32_t dims[2] = { 1, 2 };
    const struct fsdpck_found_expert *x = found_at(b, at);
    const struct fsdpck_tensor *t = &source_tensors(fsdpck_layout_inner(b->layout))[x->ordinal];
    const uint64_t shape[2] = { part == FSDPCK_EXPERT_DOWN ? t->shape[1] : t->shape[1] / 2, t->shape[2] },
                   from[3] = { expert, part == FSDPCK_EXPERT_UP ? shape[0] : 0, 0 };
    const struct fsdpck_layout_piece piece = { x->stored, zeros, shape, from, dims };
    const struct fsdpck_expert name_of = {
        .form = FSDPCK_EXPERT_SINGLE, .layer = x->x.layer, .expert = expert, .part = part, .scale = x->x.scale
    };
    char name[NAME_NBYTES];
    fsdpck_expert_name(b->moe, &name_of, name, sizeof name);
    return fsdpck_layout_add(b->layout, name, t->dtype, 2, shape, &piece, 1, b->err);
}

static int add_fused(struct builder *b, size_t at)
{
    const bool down = found_at(b, at)->x.part == FSDPCK_EXPERT_DOWN;
    int rc = 0;
    for (uint64_t e = 0; e < b->moe->nexperts && !rc; e++) {
        rc = cut(b, at, e, down ? FSDPCK_EXPERT_DOWN : FSDPCK_EXPERT_GATE);
        if (!rc && !down)
            rc = cut(b, at, e, FSDPCK_EXPERT_UP);
    }
    return rc;
}

/* ---- all tensors ---- */

static int add_tensor(struct builder *b, size_t inner)
{
    const struct fsdpck_tensor *t = &source_tensors(fsdpck_layout_inner(b->layout))[inner];
    struct fsdpck_expert x;
    char name[NAME_NBYTES];
    if (fsdpck_weight_is_state(t)) {
        b->nleft++;
        return 0;
    }
    if (b->at[inner] != SIZE_MAX)
        return b->found->fused ? add_fused(b, b->at[inner]) : add_single(b, b->at[inner]);
    fsdpck_expert_parse(b->moe, fsdpck_weight_name(t), &x);
    if (x.form != FSDPCK_EXPERT_MOVED)
        return fsdpck_layout_pass(b->layout, inner, fsdpck_weight_name(t), b->err);
    if (strlen(t->name) > NAME_NBYTES / 2) /* the other name may be longer */
        return fsdpck_error_set(b->err, FSDPCK_ERR_LIMIT, b->src->path, "a name of %zu bytes in a layer of experts",
                                strlen(t->name));
    fsdpck_expert_move(b->moe, fsdpck_weight_name(t), !b->found->fused, name, sizeof name);
    return fsdpck_layout_pass(b->layout, inner, name, b->err);
}

static int add_all(struct builder *b)
{
    const size_t n = b->src->tensors.count;
    b->at = malloc((n + 1) * sizeof *b->at);
    int rc = b->at ? fsdpck_layout_begin(b->src, &b->layout, b->err) : fsdpck_error_nomem(b->err, n * sizeof *b->at);
    if (rc)
        return rc;
    for (size_t i = 0; i < n; i++)
        b->at[i] = SIZE_MAX;
    for (size_t i = 0; i < b->found->list.count; i++)
        b->at[found_at(b, i)->ordinal] = i;
    for (size_t i = 0; i < n && !rc; i++)
        rc = add_tensor(b, i);
    return rc;
}

static void note(const struct fsdpck_source *src, const struct fsdpck_moe *moe, bool fused)
{
    char line[256];
    snprintf(line, sizeof line, "%s: the %" PRIu64 " experts of a layer are %s, and are taken %s", moe->model_type,
             moe->nexperts, fused ? "fused, as transformers holds them" : "single tensors, as published",
             fused ? "one by one, as published" : "fused, as transformers holds them");
    if (src->opt.note)
        src->opt.note(src->opt.ctx, line);
}

int fsdpck_experts_set_names(struct fsdpck_source *src, const struct fsdpck_moe *moe, bool fused, const char *names,
                             struct fsdpck_error *err)
{
    struct fsdpck_found_experts found;
    struct builder b = { .src = src, .moe = moe, .found = &found, .err = err };
    const size_t nitems = src->items.count;
    int rc = fsdpck_experts_find(src, moe, &found, err);
    if (!rc && !found.list.count)
        rc = fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, src->path,
                              "--names: found no routed experts in the layers that config.json names");
    if (!rc && found.fused == fused) {
        fsdpck_weight_note_unchanged(src, names);
    } else if (!rc) {
        note(src, moe, found.fused);
        rc = add_all(&b);
        src->items.count = 0;
        if (!rc)
            fsdpck_weight_note_left_out(src, b.nleft, nitems);
    }
    free(b.at);
    fsdpck_vec_free(&found.list);
    return rc;
}
