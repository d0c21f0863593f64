/* SPDX-License-Identifier: Apache-2.0 */
/* Joins weights and cuts them apart, as a row of the table says. */
#include "view/side_parts.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "hf/weight_names.h"
#include "tensor/shape_text.h"

int fsdpck_side_refuse(const struct fsdpck_side_mover *m, int code, const char *name)
{
    fsdpck_error_tensor(m->err, name);
    return code;
}

static void name_of(const struct fsdpck_side_found *f, const char *pattern, char out[FSDPCK_SIDE_NAME_NBYTES])
{
    char weight[FSDPCK_SIDE_NAME_NBYTES / 2];
    fsdpck_name_fill(pattern, &f->match.layer, weight, sizeof weight);
    snprintf(out, FSDPCK_SIDE_NAME_NBYTES, "%s%s", weight, f->match.scale ? FSDPCK_SCALE_SUFFIX : "");
}

void fsdpck_side_fill(const struct fsdpck_side_mover *m, const struct fsdpck_side_found *f, const char *pattern,
                      char out[FSDPCK_SIDE_NAME_NBYTES])
{
    char name[FSDPCK_SIDE_NAME_NBYTES];
    name_of(f, pattern, name);
    fsdpck_text_rename(&fsdpck_text_alone, m->gets, name, out, FSDPCK_SIDE_NAME_NBYTES);
}

#define MAX_ROTATED_ROWS (1u << 20) /* each is a piece */

/* ---- rows ---- */

/* Finds the tensor of the same layer with another name of the table. */
static int find_beside(const struct fsdpck_side_mover *m, const struct fsdpck_side_found *f, const char *pattern,
                       size_t *out)
{
    char alone[FSDPCK_SIDE_NAME_NBYTES], name[FSDPCK_SIDE_NAME_NBYTES], full[2 * FSDPCK_SIDE_NAME_NBYTES];
    name_of(f, pattern, alone);
    fsdpck_text_rename(&fsdpck_text_alone, m->has, alone, name, sizeof name);
    snprintf(full, sizeof full, "%.*s%s", (int)(fsdpck_weight_name(f->t) - f->t->name), f->t->name, name);
    *out = fsdpck_names_find(&m->inner->names, full);
    if (*out != SIZE_MAX)
        return 0;
    fsdpck_error_set(m->err, FSDPCK_ERR_MISSING, m->src->path, "is missing; '%.200s' needs it", f->t->name);
    return fsdpck_side_refuse(m, FSDPCK_ERR_MISSING, full);
}

/* The weights whose shapes say how many rows a part has. */
static const char *const measures[] = { [FSDPCK_ROWS_QKV] = "self_attn.o_proj.weight",
                                        [FSDPCK_ROWS_GATED_QKV] = "self_attn.o_proj.weight",
                                        [FSDPCK_ROWS_Q_KV_A] = "self_attn.q_a_layernorm.weight",
                                        [FSDPCK_ROWS_QKV_Z] = "linear_attn.out_proj.weight" };

/* Finds the last dimension of the weight that measures a row. */
static int measure(const struct fsdpck_side_mover *m, const struct fsdpck_side_found *f, uint64_t *out)
{
    char held[FSDPCK_SIDE_NAME_NBYTES], pattern[FSDPCK_SIDE_NAME_NBYTES];
    struct fsdpck_side_match by;
    size_t ordinal;
    snprintf(pattern, sizeof pattern, "model.layers.#.%s", measures[f->match.row->rows]);
    fsdpck_name_fill(pattern, &f->match.layer, held, sizeof held);
    const bool renamed = fsdpck_side_find(m->side, m->model, held, true, &by);
    int rc = find_beside(m, f, renamed ? fsdpck_side_from(m, by.row)[0] : pattern, &ordinal);
    if (rc)
        return rc;
    const struct fsdpck_tensor *t = &source_tensors(m->inner)[ordinal];
    *out = t->ndim ? t->shape[t->ndim - 1] : 0;
    return 0;
}

static int refuse_rows(const struct fsdpck_side_mover *m, const struct fsdpck_side_found *f, uint64_t total, int nparts)
{
    fsdpck_error_set(m->err, FSDPCK_ERR_FORMAT, m->src->path, "%" PRIu64 " rows cannot be those of %d weights", total,
                     nparts);
    return fsdpck_side_refuse(m, FSDPCK_ERR_FORMAT, f->t->name);
}

/* Computes how many of a weight's `total` rows each of nparts parts has. */
static int count_weight_rows(const struct fsdpck_side_mover *m, const struct fsdpck_side_found *f, uint64_t total,
                             int nparts, uint64_t rows[FSDPCK_SIDE_MAX_PARTS])
{
    const enum fsdpck_side_rows how = f->match.row->rows;
    const uint64_t others = (uint64_t)nparts - 1;
    uint64_t first = total / 2;
    int rc = how == FSDPCK_ROWS_ALL || how == FSDPCK_ROWS_HALF ? 0 : measure(m, f, &first);
    if (rc)
        return rc;
    rows[0] = total;
    if (how == FSDPCK_ROWS_ALL)
        return 0;
    if (how == FSDPCK_ROWS_GATED_QKV)
        first = first <= total / 2 ? 2 * first : 0;
    else if (how == FSDPCK_ROWS_QKV_Z)
        first = first < total ? total - first : 0;
    if (first == 0 || first >= total || (total - first) % others != 0 || (how == FSDPCK_ROWS_HALF && total % 2 != 0))
        return refuse_rows(m, f, total, nparts);
    rows[0] = first;
    rows[1] = rows[2] = (total - first) / others;
    return 0;
}

/* Adds the rows of all weights whose scales f is one of. */
static int add_weight_rows(const struct fsdpck_side_mover *m, const struct fsdpck_side_found *weight, uint64_t *total)
{
    const char *const *names = fsdpck_side_from(m, weight->match.row);
    int rc = 0;
    *total = 0;
    for (int i = 0; i < FSDPCK_SIDE_MAX_PARTS && names[i] && !rc; i++) {
        size_t ordinal;
        if ((rc = find_beside(m, weight, names[i], &ordinal)))
            break;
        const struct fsdpck_tensor *t = &source_tensors(m->inner)[ordinal];
        *total += t->ndim > weight->dim && t->shape[weight->dim] <= UINT32_MAX ? t->shape[weight->dim] : 0;
    }
    return rc;
}

static int refuse_block(const struct fsdpck_side_mover *m, const struct fsdpck_side_found *f, uint64_t rows)
{
    fsdpck_error_set(m->err, FSDPCK_ERR_UNSUPPORTED, m->src->path,
                     "has blocks of %" PRIu64 " rows, which do not divide the %" PRIu64
                     " rows of a part of the joined weight: a block would hold rows of two",
                     m->model->block[0], rows);
    fsdpck_error_hint(m->err, "--dequantize bf16 takes the weights' values");
    return fsdpck_side_refuse(m, FSDPCK_ERR_UNSUPPORTED, f->t->name);
}

/* The same for the scales: each part but the last has whole blocks. */
static int count_scale_rows(const struct fsdpck_side_mover *m, const struct fsdpck_side_found *f, uint64_t total,
                            int nparts, uint64_t rows[FSDPCK_SIDE_MAX_PARTS])
{
    struct fsdpck_side_found weight = *f;
    const uint64_t block = m->model->block[0];
    uint64_t all, blocks = 0;
    weight.match.scale = false;
    int rc = add_weight_rows(m, &weight, &all);
    if (!rc)
        rc = count_weight_rows(m, &weight, all, nparts, rows);
    for (int i = 0; i < nparts && !rc; i++) {
        if (i + 1 < nparts && rows[i] % block != 0)
            return refuse_block(m, f, rows[i]);
        rows[i] = rows[i] / block + (rows[i] % block != 0);
        blocks += rows[i];
    }
    return rc || blocks == total ? rc : refuse_rows(m, f, total, nparts);
}

static int count_rows(const struct fsdpck_side_mover *m, const struct fsdpck_side_found *f, uint64_t total, int nparts,
                      uint64_t rows[FSDPCK_SIDE_MAX_PARTS])
{
    return f->match.scale ? count_scale_rows(m, f, total, nparts, rows) : count_weight_rows(m, f, total, nparts, rows);
}

/* The shape of f, with its dimensions in the order of the other half. */
static void turn_all(const struct fsdpck_side_found *f, uint64_t shape[FSDPCK_SIDE_MAX_NDIM])
{
    for (uint32_t d = 0; d < f->t->ndim; d++)
        shape[d] = f->t->shape[fsdpck_side_turn(f, d)];
}

static size_t stored(const struct fsdpck_side_mover *m, size_t ordinal)
{
    const int64_t target = source_tensors(m->inner)[ordinal].alias_of;
    return target >= 0 ? (size_t)target : ordinal;
}

/* ---- joining ---- */

static int check_part(const struct fsdpck_side_mover *m, const struct fsdpck_side_found *f,
                      const struct fsdpck_tensor *part, uint64_t rows)
{
    char has[160], wanted[160];
    struct fsdpck_tensor want = *f->t;
    uint64_t shape[FSDPCK_SIDE_MAX_NDIM];
    memcpy(shape, f->t->shape, f->t->ndim * sizeof *shape);
    shape[f->dim] = rows;
    want.shape = shape;
    if (part->dtype == want.dtype && part->ndim == want.ndim &&
        memcmp(part->shape, shape, want.ndim * sizeof *shape) == 0)
        return 0;
    fsdpck_error_set(m->err, FSDPCK_ERR_UNSUPPORTED, m->src->path, "is %s %s; beside '%.200s' it must be %s %s",
                     fsdpck_dtype_info(part->dtype)->name, fsdpck_shape_text(part, has, sizeof has), f->t->name,
                     fsdpck_dtype_info(want.dtype)->name, fsdpck_shape_text(&want, wanted, sizeof wanted));
    return fsdpck_side_refuse(m, FSDPCK_ERR_UNSUPPORTED, part->name);
}

struct part {
    size_t ordinal;
    uint64_t nrows;
};

/* Finds the parts, of which f is the first, and checks that cutting the joined weight would give them back. */
static int find_parts(const struct fsdpck_side_mover *m, const struct fsdpck_side_found *f, struct part *parts,
                      int nparts, uint64_t *total)
{
    const char *const *names = fsdpck_side_from(m, f->match.row);
    uint64_t rows[FSDPCK_SIDE_MAX_PARTS];
    int rc = 0;
    *total = 0;
    for (int i = 0; i < nparts && !rc; i++) {
        if ((rc = find_beside(m, f, names[i], &parts[i].ordinal)))
            return rc;
        const struct fsdpck_tensor *t = &source_tensors(m->inner)[parts[i].ordinal];
        parts[i].nrows = t->ndim > f->dim ? t->shape[f->dim] : 0;
        *total += parts[i].nrows;
    }
    rc = count_rows(m, f, *total, nparts, rows);
    for (int i = 0; i < nparts && !rc; i++)
        rc = check_part(m, f, &source_tensors(m->inner)[parts[i].ordinal], rows[i]);
    return rc;
}

/* The pieces of a weight, which are added together. */
struct pieces {
    struct fsdpck_vec list; /* struct fsdpck_layout_piece */
    struct fsdpck_arena arena;
};

static void pieces_free(struct pieces *p)
{
    fsdpck_vec_free(&p->list);
    fsdpck_arena_free(&p->arena);
}

/* A run of rows: `offset` in the weight that is added, `from` in the inner tensor. */
struct run {
    uint64_t offset, from, nrows;
};

static int add_piece(struct pieces *p, const struct fsdpck_side_found *f, size_t inner, const struct run *r,
                     const uint64_t *size, struct fsdpck_error *err)
{
    uint64_t *box = fsdpck_arena_array(&p->arena, 3 * FSDPCK_SIDE_MAX_NDIM, sizeof *box, err);
    uint32_t *dims = box ? fsdpck_arena_array(&p->arena, FSDPCK_SIDE_MAX_NDIM, sizeof *dims, err) : NULL;
    struct fsdpck_layout_piece *out = dims ? fsdpck_vec_push(&p->list, err) : NULL;
    if (!out)
        return FSDPCK_ERR_NOMEM;
    uint64_t *offset = box, *from = box + FSDPCK_SIDE_MAX_NDIM, *n = from + FSDPCK_SIDE_MAX_NDIM;
    for (uint32_t d = 0; d < f->t->ndim; d++) {
        dims[d] = fsdpck_side_turn(f, d);
        n[d] = size[d];
    }
    offset[fsdpck_side_turn(f, f->dim)] = r->offset;
    n[fsdpck_side_turn(f, f->dim)] = r->nrows;
    from[f->dim] = r->from;
    *out = (struct fsdpck_layout_piece){ inner, offset, n, from, dims };
    return 0;
}

/* Adds the rows of q or k one by one: the rotary pairs of a head are neighbours as published, and in two halves by the
 * side. */
static int add_rotated(const struct fsdpck_side_mover *m, struct pieces *p, const struct fsdpck_side_found *f,
                       size_t inner, const struct run *all, const uint64_t *size)
{
    const uint64_t half = m->model->head_dim / 2;
    int rc = 0;
    for (uint64_t i = 0; i < all->nrows && !rc; i++) {
        const uint64_t at = i % (2 * half), from = m->to ? at % half * 2 + at / half : at % 2 * half + at / 2;
        const struct run row = { all->offset + i, all->from + i - at + from, 1 };
        rc = add_piece(p, f, inner, &row, size, m->err);
    }
    return rc;
}

/* Adds a part's rows. part: which one of the row it is. */
static int add_part(const struct fsdpck_side_mover *m, struct pieces *p, const struct fsdpck_side_found *f, int part,
                    size_t inner, const struct run *r, const uint64_t *size)
{
    if (!f->match.row->rotated || part == 2)
        return add_piece(p, f, inner, r, size, m->err);
    if (m->model->head_dim && m->model->head_dim % 2 == 0 && r->nrows % m->model->head_dim == 0 &&
        r->nrows <= MAX_ROTATED_ROWS)
        return add_rotated(m, p, f, inner, r, size);
    fsdpck_error_set(m->err, FSDPCK_ERR_FORMAT, m->src->path,
                     "has %" PRIu64 " rows of q or k, which cannot be those of heads of %" PRIu64
                     " rows, as config.json says",
                     r->nrows, m->model->head_dim);
    return fsdpck_side_refuse(m, FSDPCK_ERR_FORMAT, f->t->name);
}

static int add_weight(const struct fsdpck_side_mover *m, const struct fsdpck_side_found *f, int which,
                      const uint64_t *shape, const struct pieces *p)
{
    char name[FSDPCK_SIDE_NAME_NBYTES];
    fsdpck_side_fill(m, f, fsdpck_side_to(m, f->match.row)[which], name);
    return fsdpck_layout_add(m->layout, name, f->t->dtype, f->t->ndim, shape, p->list.data, p->list.count, m->err);
}

int fsdpck_side_join(const struct fsdpck_side_mover *m, const struct fsdpck_side_found *f, int nparts)
{
    struct pieces pieces = { .list = FSDPCK_VEC(struct fsdpck_layout_piece) };
    struct part parts[FSDPCK_SIDE_MAX_PARTS];
    uint64_t shape[FSDPCK_SIDE_MAX_NDIM], offset = 0, total;
    size_t first;
    int rc = find_beside(m, f, fsdpck_side_from(m, f->match.row)[0], &first);
    if (rc || &source_tensors(m->inner)[first] != f->t) /* it goes out with the first part */
        return rc;
    rc = find_parts(m, f, parts, nparts, &total);
    turn_all(f, shape);
    for (int i = 0; i < nparts && !rc; i++) {
        const struct run r = { offset, 0, parts[i].nrows };
        rc = add_part(m, &pieces, f, i, stored(m, parts[i].ordinal), &r, shape);
        offset += r.nrows;
    }
    shape[fsdpck_side_turn(f, f->dim)] = total;
    if (!rc)
        rc = add_weight(m, f, 0, shape, &pieces);
    pieces_free(&pieces);
    return rc;
}

/* ---- cutting ---- */

int fsdpck_side_cut(const struct fsdpck_side_mover *m, const struct fsdpck_side_found *f, int nparts)
{
    const size_t ordinal = stored(m, (size_t)(f->t - source_tensors(m->inner)));
    uint64_t rows[FSDPCK_SIDE_MAX_PARTS], from = 0, shape[FSDPCK_SIDE_MAX_NDIM];
    int rc = count_rows(m, f, f->t->shape[f->dim], nparts, rows);
    turn_all(f, shape);
    for (int i = 0; i < nparts && !rc; i++) {
        struct pieces pieces = { .list = FSDPCK_VEC(struct fsdpck_layout_piece) };
        const struct run r = { 0, from, rows[i] };
        shape[fsdpck_side_turn(f, f->dim)] = rows[i];
        rc = add_part(m, &pieces, f, i, ordinal, &r, shape);
        if (!rc)
            rc = add_weight(m, f, i, shape, &pieces);
        pieces_free(&pieces);
        from += rows[i];
    }
    return rc;
}
