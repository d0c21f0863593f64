/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the files of all ranks, and joins what they hold by a layout view: first to the weights that vLLM holds, then,
 * as --names does it, to the published ones. */
#include "view/vllm_source.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"
#include "commit/commit_view.h"
#include "hf/assets.h"
#include "hf/config.h"
#include "hf/name_pattern.h"
#include "hf/safetensors_header.h"
#include "hf/weight_names.h"
#include "tensor/shape_text.h"
#include "view/experts.h"
#include "view/layout.h"
#include "view/vllm_slices.h"

enum { MAX_RANKS = 1024, MAX_NDIM = 3, NAME_NBYTES = 1024 };

static const struct fsdpck_source_ops ops = {
    .kind = "vllm-sharded",
    .extents = fsdpck_safetensors_extents,
    .close = fsdpck_safetensors_close,
};

bool fsdpck_vllm_is_file(const char *name, uint32_t *rank)
{
    static const char first[] = "model-rank-", second[] = "-part-", suffix[] = ".safetensors";
    uint64_t number, part;
    const char *rest =
        strncmp(name, first, sizeof first - 1) == 0 ? fsdpck_name_index(name + sizeof first - 1, &number) : NULL;
    rest = rest && strncmp(rest, second, sizeof second - 1) == 0 ? fsdpck_name_index(rest + sizeof second - 1, &part)
                                                                 : NULL;
    const size_t n = rest ? strlen(rest) : 0, end = sizeof suffix - 1;
    /* A save in place has its id before the suffix. */
    if (n < end || strcmp(rest + n - end, suffix) != 0 || (n > end && *rest != '-') || number >= MAX_RANKS)
        return false;
    if (rank)
        *rank = (uint32_t)number;
    return true;
}

struct opening {
    struct fsdpck_source *src, *inner;
    struct fsdpck_layout *layout;
    struct fsdpck_vllm_ranks ranks;
    char *config;
    bool tied;
    uint32_t rank, file; /* of the file that is read */
    uint64_t *counts;    /* (nranks) tensors */
    struct fsdpck_error *err;
};

static int refuse(const struct opening *o, const char *tensor)
{
    fsdpck_error_tensor(o->err, tensor);
    return o->err->code;
}

/* ---- files ---- */

/* Ranks have tensors of the same names: the catalogue has them as RANK/NAME. */
static int add_entry(void *ctx, const struct safetensors_entry *e, struct fsdpck_error *err)
{
    struct opening *o = ctx;
    struct safetensors_entry named = *e;
    char name[NAME_NBYTES];
    if ((size_t)snprintf(name, sizeof name, "%u/%s", o->rank, e->name) >= sizeof name)
        return fsdpck_error_set(err, FSDPCK_ERR_LIMIT, o->src->path, "a name of %zu bytes", strlen(e->name));
    named.name = name;
    if (fsdpck_names_find(&o->src->names, name) != SIZE_MAX)
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, source_files(o->src)[o->file].path,
                                "tensor '%s' is in two places of rank %u's files", e->name, o->rank);
    o->counts[o->rank]++;
    return fsdpck_safetensors_add(o->src, o->file, &named, err);
}

static int read_file(struct opening *o, const char *name)
{
    char *path = fsdpck_path_join(o->src->path, name, o->err);
    int rc = path ? fsdpck_source_add_file(o->src, path, name, o->rank, &o->file, o->err) : FSDPCK_ERR_NOMEM;
    if (!rc)
        rc = fsdpck_safetensors_header(o->src->io, path, add_entry, o, o->err);
    free(path);
    return rc;
}

static int count_ranks(struct opening *o, char *const *names, size_t n)
{
    uint32_t rank;
    for (size_t i = 0; i < n; i++)
        if (fsdpck_vllm_is_file(names[i], &rank) && rank >= o->ranks.n)
            o->ranks.n = rank + 1;
    if (!o->ranks.n)
        return fsdpck_error_set(o->err, FSDPCK_ERR_MISSING, o->src->path,
                                "has no file model-rank-0-part-0.safetensors, nor one of another rank");
    o->counts = calloc(o->ranks.n, sizeof *o->counts);
    return o->counts ? 0 : fsdpck_error_nomem(o->err, o->ranks.n * sizeof *o->counts);
}

static int read_files(struct opening *o, char *const *names, size_t n)
{
    int rc = count_ranks(o, names, n);
    for (size_t i = 0; i < n && !rc; i++)
        if (fsdpck_vllm_is_file(names[i], &o->rank))
            rc = read_file(o, names[i]);
    for (uint32_t r = 0; r < o->ranks.n && !rc; r++)
        if (!o->counts[r])
            rc = fsdpck_error_set(o->err, FSDPCK_ERR_MISSING, o->src->path,
                                  "has files of rank %u, and no tensor of rank %u", o->ranks.n - 1, r);
    o->src->nranks = o->ranks.n;
    return rc;
}

static int read_folder(struct opening *o)
{
    struct fsdpck_commit_view view = { 0 };
    char **names = NULL;
    size_t n = 0;
    int rc = fsdpck_list_sorted(o->src->io, o->src->path, &names, &n, o->err);
    if (!rc)
        rc = fsdpck_commit_view(o->src->io, o->src->path, names, n, &view, o->err);
    if (!rc)
        fsdpck_commit_view_filter(&view, names, &n);
    if (!rc)
        rc = read_files(o, names, n);
    if (!rc)
        rc = fsdpck_assets_scan(o->src, o->src->path, o->err);
    fsdpck_commit_view_free(&view);
    fsdpck_list_free(names, n);
    return rc;
}

static bool is_stack(const struct fsdpck_tensor *t)
{
    return fsdpck_expert_is_name(t->name) && t->ndim == MAX_NDIM;
}

/* Whether ranks have fewer experts than config.json names. */
static bool has_whole_experts(const struct opening *o)
{
    for (size_t i = 0; i < o->src->tensors.count; i++) {
        const struct fsdpck_tensor *t = &source_tensors(o->src)[i];
        if (is_stack(t) && t->shape[0] < o->ranks.family.nexperts)
            return true;
    }
    return false;
}

static int read_config(struct opening *o)
{
    char *text = NULL;
    uint64_t nbytes;
    int rc = fsdpck_family_read(o->src, NULL, "a folder of ranks of vLLM", &o->ranks.family, o->err);
    if (rc)
        return rc;
    o->config = fsdpck_weight_config(o->src, NULL);
    if (!o->config)
        return fsdpck_error_nomem(o->err, NAME_NBYTES);
    rc = fsdpck_read_file(o->src->io, o->config, FSDPCK_CONFIG_MAX_NBYTES, &text, &nbytes, o->err);
    if (!rc)
        rc = fsdpck_config_tied(o->config, text, nbytes, &o->tied, o->err);
    free(text);
    o->ranks.expert_parallel = has_whole_experts(o);
    return rc ? rc : fsdpck_vllm_check_ranks(&o->ranks, o->config, o->err);
}

/* ---- one tensor ---- */

/* A tensor of rank 0, and those of the others. */
struct joined {
    const struct fsdpck_tensor *t;
    const char *name;
    struct fsdpck_vllm_cut cut;
    uint64_t shape[MAX_NDIM]; /* of the whole */
};

static int find_part(const struct opening *o, const struct joined *j, uint32_t rank, size_t *out)
{
    char name[NAME_NBYTES], has[160], wanted[160];
    snprintf(name, sizeof name, "%u/%s", rank, j->name);
    *out = fsdpck_names_find(&o->inner->names, name);
    if (*out == SIZE_MAX) {
        fsdpck_error_set(o->err, FSDPCK_ERR_MISSING, o->src->path, "rank 0 has it, and rank %u does not", rank);
        return refuse(o, j->name);
    }
    const struct fsdpck_tensor *t = &source_tensors(o->inner)[*out];
    bool same = t->dtype == j->t->dtype && t->ndim == j->t->ndim;
    for (uint32_t d = 0; same && d < t->ndim; d++)
        same = t->shape[d] == (d == j->cut.cut.dim && j->cut.whole_experts
                                   ? fsdpck_vllm_local(&o->ranks, &j->cut, rank, j->shape[d])
                                   : j->t->shape[d]);
    if (same)
        return 0;
    fsdpck_error_set(o->err, FSDPCK_ERR_FORMAT, o->src->path, "is %s %s on rank 0, and %s %s on rank %u",
                     fsdpck_dtype_info(j->t->dtype)->name, fsdpck_shape_text(j->t, wanted, sizeof wanted),
                     fsdpck_dtype_info(t->dtype)->name, fsdpck_shape_text(t, has, sizeof has), rank);
    return refuse(o, j->name);
}

struct piece {
    uint64_t offset[MAX_NDIM], size[MAX_NDIM], from[MAX_NDIM];
};

/* Adds the pieces of one rank, unless an earlier rank had the same rows. */
static int add_pieces(const struct opening *o, const struct joined *j, uint32_t rank, struct piece *boxes,
                      struct fsdpck_layout_piece *pieces, size_t *n)
{
    static const uint32_t dims[MAX_NDIM] = { 0, 1, 2 };
    const uint32_t dim = j->cut.cut.dim;
    struct fsdpck_vllm_slice slices[3];
    size_t part, nslices = fsdpck_vllm_slices(&o->ranks, &j->cut, rank, j->shape[dim], slices);
    int rc = find_part(o, j, rank, &part);
    for (size_t i = 0; i < nslices && !rc; i++) {
        bool again = slices[i].n == 0;
        for (size_t k = 0; k < *n; k++)
            again |= boxes[k].offset[dim] == slices[i].whole;
        if (again)
            continue;
        struct piece *b = &boxes[*n];
        *b = (struct piece){ { 0 }, { 0 }, { 0 } };
        memcpy(b->size, j->shape, j->t->ndim * sizeof *b->size);
        b->offset[dim] = slices[i].whole;
        b->size[dim] = slices[i].n;
        b->from[dim] = slices[i].local;
        pieces[(*n)++] = (struct fsdpck_layout_piece){ part, b->offset, b->size, b->from, dims };
    }
    return rc;
}

static int join(struct opening *o, struct joined *j, const char *name)
{
    const uint32_t dim = j->cut.cut.dim, ndim = j->t->ndim;
    const size_t most = 3 * (size_t)o->ranks.n;
    size_t n = 0;
    if (ndim > MAX_NDIM || ndim <= dim) {
        fsdpck_error_set(o->err, FSDPCK_ERR_FORMAT, o->src->path, "has %u dimensions", ndim);
        return refuse(o, j->name);
    }
    memcpy(j->shape, j->t->shape, ndim * sizeof *j->shape);
    j->shape[dim] = fsdpck_vllm_whole(&o->ranks, &j->cut, j->t->shape[dim]);
    if (!j->shape[dim]) {
        fsdpck_error_set(o->err, FSDPCK_ERR_FORMAT, o->src->path,
                         "has %" PRIu64 " elements along dimension %u in the files of rank 0 of %u, which "
                         "config.json contradicts: are files of ranks missing?",
                         j->t->shape[dim], dim, o->ranks.n);
        return refuse(o, j->name);
    }
    struct piece *boxes = calloc(most, sizeof *boxes);
    struct fsdpck_layout_piece *pieces = calloc(most, sizeof *pieces);
    int rc = boxes && pieces ? 0 : fsdpck_error_nomem(o->err, most * sizeof *pieces);
    for (uint32_t rank = 0; rank < o->ranks.n && !rc; rank++)
        rc = add_pieces(o, j, rank, boxes, pieces, &n);
    if (!rc)
        rc = fsdpck_layout_add(o->layout, name, j->t->dtype, ndim, j->shape, pieces, n, o->err);
    free(boxes);
    free(pieces);
    return rc;
}

/* ---- all tensors ---- */

static bool is_cache_scale(const char *name)
{
    static const char *const scales[] = { "._q_scale", "._k_scale", "._v_scale", "._prob_scale" };
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot && i < sizeof scales / sizeof *scales; i++)
        if (strcmp(dot, scales[i]) == 0)
            return true;
    return false;
}

static int add_whole(struct opening *o, const struct joined *j, size_t ordinal, const char *name)
{
    size_t part;
    int rc = 0;
    for (uint32_t rank = 1; rank < o->ranks.n && !rc; rank++)
        rc = find_part(o, j, rank, &part);
    return rc ? rc : fsdpck_layout_pass(o->layout, ordinal, name, o->err);
}

/* Where the head is tied to the embedding, vLLM's file has the head's name. */
static const char *name_of(const struct opening *o, const char *name)
{
    return o->tied && strcmp(name, "lm_head.weight") == 0 ? "model.embed_tokens.weight" : name;
}

static int add_tensor(struct opening *o, size_t ordinal)
{
    const struct fsdpck_tensor *t = &source_tensors(o->inner)[ordinal];
    struct joined j = { .t = t, .name = t->name + 2 };
    struct fsdpck_tensor named = *t;
    uint64_t shape[MAX_NDIM];
    named.name = name_of(o, j.name);
    if (o->ranks.expert_parallel && is_stack(t)) {
        memcpy(shape, t->shape, sizeof shape);
        shape[0] = o->ranks.family.nexperts;
        named.shape = shape;
    }
    if (is_cache_scale(j.name))
        return 0;
    if (fsdpck_vllm_cut_of(&o->ranks, &named, &j.cut) != FSDPCK_VLLM_HOLDS)
        return fsdpck_vllm_refuse(&o->ranks, j.name, o->src->path, o->err);
    return j.cut.cut.part == FSDPCK_PART_WHOLE ? add_whole(o, &j, ordinal, named.name) : join(o, &j, named.name);
}

/* The other ranks must not have more than rank 0. */
static int check_counts(const struct opening *o)
{
    for (uint32_t r = 1; r < o->ranks.n; r++)
        if (o->counts[r] != o->counts[0])
            return fsdpck_error_set(o->err, FSDPCK_ERR_FORMAT, o->src->path,
                                    "has %" PRIu64 " tensors of rank 0 and %" PRIu64
                                    " of rank %u: is a file of one missing, or of another save?",
                                    o->counts[0], o->counts[r], r);
    return 0;
}

static int present(struct opening *o)
{
    const size_t n = o->src->tensors.count;
    int rc = check_counts(o);
    if (!rc)
        rc = fsdpck_layout_begin(o->src, &o->layout, o->err);
    if (rc)
        return rc;
    o->inner = fsdpck_layout_inner(o->layout);
    for (size_t i = 0; i < n && !rc; i++)
        if (strncmp(source_tensors(o->inner)[i].name, "0/", 2) == 0)
            rc = add_tensor(o, i);
    const size_t embedding = rc ? SIZE_MAX : fsdpck_names_find(&o->src->names, "model.embed_tokens.weight");
    if (o->tied && embedding != SIZE_MAX && fsdpck_names_find(&o->src->names, "lm_head.weight") == SIZE_MAX)
        rc = fsdpck_layout_alias(o->layout, embedding, "lm_head.weight", o->err);
    return rc ? rc : fsdpck_source_set_names(o->src, "hf", NULL, o->err);
}

int fsdpck_open_vllm(struct fsdpck_source *src, struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    struct opening o = { .src = src, .err = err ? err : &own };
    int rc = fsdpck_safetensors_begin(src, &ops, o.err);
    if (!rc)
        rc = read_folder(&o);
    if (!rc)
        rc = read_config(&o);
    if (!rc)
        rc = present(&o);
    free(o.config);
    free(o.counts);
    return rc;
}
