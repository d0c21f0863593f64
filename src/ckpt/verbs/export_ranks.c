/* SPDX-License-Identifier: Apache-2.0 */
/* See export_ranks.h. */
#include "verbs/export_ranks.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/source_impl.h"
#include "hf/weight_names.h"
#include "view/vllm_slices.h"

enum { NAME_NBYTES = 1024 };

/* The scales of a KV cache that has none, as vLLM's attention holds them. */
static const float one = 1;
static const char *const cache_scales[] = { "_k_scale", "_prob_scale", "_q_scale", "_v_scale" };
enum { NSCALES = sizeof cache_scales / sizeof *cache_scales };

/* As the user asked for it. */
static const char *style_of(const struct export *x)
{
    return x->req->vllm_expert_parallel ? "--style vllm-sharded --tp --expert-parallel" : "--style vllm-sharded --tp";
}

static int read_family(struct export *x, struct fsdpck_family *out)
{
    return fsdpck_family_read(x->src, x->req->assets, style_of(x), out, x->err);
}

int fsdpck_export_ranks_begin(struct export *x)
{
    struct fsdpck_family family;
    if (x->one_file)
        return fsdpck_error_set(x->err, FSDPCK_ERR_USAGE, x->req->out,
                                "is one file; --style vllm-sharded --tp N writes a folder with files for each rank");
    if (!x->req->vllm_ranks)
        return fsdpck_error_set(x->err, FSDPCK_ERR_USAGE, NULL,
                                "experts are spread over ranks of vLLM, and their number is not given");
    int rc = read_family(x, &family);
    return rc ? rc : fsdpck_source_set_names(x->src, "vllm", x->req->assets, x->err);
}

void fsdpck_export_ranks_name(const struct export *x, size_t file, const char *uuid, char *name, size_t nbytes)
{
    const struct export_tensor *tensors = x->layout.tensors.data;
    const struct export_file *files = x->layout.files;
    const uint32_t rank = tensors[files[file].first].rank;
    size_t part = 0;
    while (part < file && tensors[files[file - part - 1].first].rank == rank)
        part++;
    snprintf(name, nbytes, "model-rank-%u-part-%zu%s%s.safetensors", rank, part, uuid ? "-" : "", uuid ? uuid : "");
}

/* ---- one tensor ---- */

struct cutting {
    struct export *x;
    struct fsdpck_vllm_ranks ranks;
    bool tied;
    size_t nleft;
    const char *left;      /* name of the first tensor that is left out */
    struct fsdpck_vec out; /* struct export_tensor */
};

static int refuse(const struct cutting *c, const char *name)
{
    fsdpck_error_tensor(c->x->err, name);
    return c->x->err->code;
}

static uint64_t *copy(const struct cutting *c, const uint64_t *numbers, uint32_t n)
{
    uint64_t *to = fsdpck_arena_array(&c->x->arena, n, sizeof *to, c->x->err);
    if (to && n)
        memcpy(to, numbers, n * sizeof *to);
    return to;
}

/* Adds the boxes of a slice to the pieces of a part: one, or one for each expert if another slice lies between. */
static int add_boxes(const struct cutting *c, const struct export_tensor *whole, const struct fsdpck_vllm_cut *cut,
                     const struct fsdpck_vllm_slice *slice, uint64_t expert, struct export_piece *piece)
{
    uint64_t offset[FSDPCK_MAX_DIMS] = { 0 }, size[FSDPCK_MAX_DIMS];
    const uint32_t dim = cut->cut.dim;
    memcpy(size, whole->shape, whole->ndim * sizeof *size);
    if (dim > 0 && cut->cut.nhalves > 1) {
        offset[0] = expert;
        size[0] = 1;
    }
    offset[dim] = slice->whole;
    size[dim] = slice->n;
    piece->offset = copy(c, offset, whole->ndim);
    piece->size = copy(c, size, whole->ndim);
    return piece->offset && piece->size ? 0 : FSDPCK_ERR_NOMEM;
}

/* Fills the pieces, in the order of their bytes. */
static int add_pieces(const struct cutting *c, const struct export_tensor *whole, const struct fsdpck_vllm_cut *cut,
                      struct export_tensor *part)
{
    struct fsdpck_vllm_slice slices[3];
    const uint64_t outer = cut->cut.dim > 0 && cut->cut.nhalves > 1 ? whole->shape[0] : 1;
    const size_t n = fsdpck_vllm_slices(&c->ranks, cut, part->rank, whole->shape[cut->cut.dim], slices);
    struct export_piece *pieces = fsdpck_arena_array(&c->x->arena, outer * n, sizeof *pieces, c->x->err);
    int rc = pieces ? 0 : FSDPCK_ERR_NOMEM;
    for (uint64_t e = 0; e < outer; e++)
        for (size_t i = 0; i < n && !rc; i++)
            if (slices[i].n) /* a last rank may have padding only */
                rc = add_boxes(c, whole, cut, &slices[i], e, &pieces[part->npieces++]);
    part->pieces = pieces;
    return rc;
}

static int cut_tensor(struct cutting *c, const struct export_tensor *whole, const struct fsdpck_vllm_cut *cut,
                      uint32_t rank)
{
    struct export_tensor *part = fsdpck_vec_push(&c->out, c->x->err);
    if (!part)
        return FSDPCK_ERR_NOMEM;
    *part = *whole;
    part->rank = rank;
    part->order = c->out.count - 1;
    if (cut->cut.part == FSDPCK_PART_WHOLE)
        return 0;
    const uint32_t dim = cut->cut.dim;
    uint64_t *shape = copy(c, whole->shape, whole->ndim);
    if (!shape)
        return FSDPCK_ERR_NOMEM;
    shape[dim] = fsdpck_vllm_local(&c->ranks, cut, rank, whole->shape[dim]);
    if (!shape[dim]) {
        fsdpck_error_set(c->x->err, FSDPCK_ERR_UNSUPPORTED, fsdpck_source_path(c->x->src),
                         "%" PRIu64 " elements along dimension %u cannot be divided among %u ranks, as vLLM does it",
                         whole->shape[dim], dim, c->ranks.n);
        return refuse(c, whole->name);
    }
    part->shape = shape;
    part->nbytes = whole->nbytes / whole->shape[dim] * shape[dim];
    return add_pieces(c, whole, cut, part);
}

/* ---- one rank ---- */

/* vLLM's file has a tied head under the first of its two names. */
static int add_tensor(struct cutting *c, const struct export_tensor *whole, uint32_t rank)
{
    const struct fsdpck_tensor named = {
        .name = whole->name, .dtype = whole->dtype, .ndim = whole->ndim, .shape = whole->shape
    };
    struct export_tensor t = *whole;
    struct fsdpck_vllm_cut cut;
    if (c->tied && strcmp(whole->name, "lm_head.weight") == 0)
        return 0;
    if (c->tied && strcmp(whole->name, "model.embed_tokens.weight") == 0)
        t.name = "lm_head.weight";
    switch (fsdpck_vllm_cut_of(&c->ranks, &named, &cut)) {
    case FSDPCK_VLLM_HOLDS: return cut_tensor(c, &t, &cut, rank);
    case FSDPCK_VLLM_LEAVES:
        c->left = c->left ? c->left : whole->name;
        c->nleft += rank == 0;
        return 0;
    case FSDPCK_VLLM_UNKNOWN: break;
    }
    return fsdpck_vllm_refuse(&c->ranks, whole->name, fsdpck_source_path(c->x->src), c->x->err);
}

static int add_scales(struct cutting *c, uint32_t rank)
{
    char name[NAME_NBYTES];
    for (uint64_t layer = 0; layer < c->ranks.family.nlayers; layer++)
        for (size_t i = 0; i < NSCALES; i++) {
            const int n =
                snprintf(name, sizeof name, "model.layers.%" PRIu64 ".self_attn.attn.%s", layer, cache_scales[i]);
            struct export_tensor *t = fsdpck_vec_push(&c->out, c->x->err);
            const char *kept = t ? fsdpck_arena_strndup(&c->x->arena, name, (size_t)n, c->x->err) : NULL;
            if (!kept)
                return FSDPCK_ERR_NOMEM;
            *t = (struct export_tensor){ .name = kept,
                                         .data = &one,
                                         .dtype = FSDPCK_FLOAT32,
                                         .nbytes = sizeof one,
                                         .rank = rank,
                                         .order = c->out.count - 1 };
        }
    return 0;
}

static void note_left(const struct cutting *c)
{
    char line[400];
    if (!c->nleft || !c->x->opt.note)
        return;
    snprintf(line, sizeof line,
             "left out: %zu tensor%s such as '%.200s', which vLLM's class of this model does not hold", c->nleft,
             fsdpck_plural(c->nleft), c->left);
    c->x->opt.note(c->x->opt.ctx, line);
}

static int check_ranks(const struct cutting *c)
{
    char *config = fsdpck_weight_config(c->x->src, c->x->req->assets);
    int rc =
        config ? fsdpck_vllm_check_ranks(&c->ranks, config, c->x->err) : fsdpck_error_nomem(c->x->err, NAME_NBYTES);
    if (rc == FSDPCK_ERR_UNSUPPORTED)
        fsdpck_error_hint(c->x->err, "%s wants a number of ranks that vLLM could run the model with", style_of(c->x));
    free(config);
    return rc;
}

int fsdpck_export_ranks_cut(struct export *x)
{
    struct cutting c = { .x = x,
                         .ranks = { .n = x->req->vllm_ranks, .expert_parallel = x->req->vllm_expert_parallel },
                         .out = FSDPCK_VEC(struct export_tensor) };
    const size_t n = x->layout.tensors.count;
    int rc = read_family(x, &c.ranks.family);
    if (!rc)
        rc = check_ranks(&c);
    if (!rc)
        rc = fsdpck_assets_tied(x->io, &x->assets, &c.tied, x->err);
    for (uint32_t rank = 0; rank < c.ranks.n && !rc; rank++) {
        for (size_t i = 0; i < n && !rc; i++)
            rc = add_tensor(&c, (const struct export_tensor *)x->layout.tensors.data + i, rank);
        if (!rc)
            rc = add_scales(&c, rank);
    }
    fsdpck_vec_free(&x->layout.tensors);
    x->layout.tensors = c.out;
    if (!rc)
        note_left(&c);
    return rc;
}
