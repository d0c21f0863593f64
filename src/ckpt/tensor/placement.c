/* SPDX-License-Identifier: Apache-2.0 */
/* Computes which part of a tensor a rank holds, and which of several equal holders writes it: the rules of FSDP2 and
 * DTensor as arithmetic on intervals. It must not know files, nor how the ranks run. */
#include <fsdpck/tensor.h>

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/vec.h"

/* A placement from a file may specify billions of stripes; real meshes need far fewer. */
#define MAX_INTERVALS ((size_t)1 << 20)

struct interval {
    uint64_t begin, nelem;
};

uint64_t fsdpck_mesh_nranks(const struct fsdpck_mesh *mesh)
{
    uint64_t n = 1;
    for (uint32_t m = 0; m < mesh->ndim; m++)
        n *= mesh->sizes[m];
    return n;
}

bool fsdpck_mesh_coordinate(const struct fsdpck_mesh *mesh, uint32_t rank, uint32_t *coord)
{
    uint64_t nranks = fsdpck_mesh_nranks(mesh), index = rank;
    if (mesh->ranks)
        for (index = 0; index < nranks && mesh->ranks[index] != rank;)
            index++;
    if (index >= nranks)
        return false;
    for (uint32_t m = mesh->ndim; m-- > 0; index /= mesh->sizes[m])
        coord[m] = (uint32_t)(index % mesh->sizes[m]);
    return true;
}

/* torch.chunk: part i of n of a line of nelem elements. */
static struct interval chunk(uint64_t nelem, uint32_t n, uint64_t i)
{
    uint64_t each = nelem / n + (nelem % n != 0);
    if (each == 0 || i >= nelem / each + (nelem % each != 0))
        return (struct interval){ nelem, 0 };
    uint64_t begin = i * each;
    return (struct interval){ begin, nelem - begin < each ? nelem - begin : each };
}

/* ---- one interval per dimension: sufficient for FSDP, HSDP and plain tensor parallelism ---- */

static void shard_boxes(const struct fsdpck_mesh *mesh, const struct fsdpck_placement *placements,
                        const uint32_t *coord, uint64_t *offset, uint64_t *size)
{
    for (uint32_t m = 0; m < mesh->ndim; m++) {
        if (placements[m].kind != FSDPCK_SHARD)
            continue;
        struct interval part = chunk(size[placements[m].dim], mesh->sizes[m], coord[m]);
        offset[placements[m].dim] += part.begin;
        size[placements[m].dim] = part.nelem;
    }
}

/* ---- lists of intervals: strided shards ---- */

/* Position of a walk along the concatenated intervals: element 0 of interval `next` is element `passed` of the walk. */
struct walk {
    const struct interval *list;
    size_t count, next;
    uint64_t passed;
};

static int append(struct fsdpck_vec *out, uint64_t begin, uint64_t nelem)
{
    struct interval *last = out->count ? (struct interval *)out->data + out->count - 1 : NULL;
    if (last && last->begin + last->nelem == begin) {
        last->nelem += nelem;
        return 0;
    }
    if (out->count == MAX_INTERVALS)
        return FSDPCK_ERR_LIMIT;
    struct interval *v = fsdpck_vec_push(out, NULL);
    if (!v)
        return FSDPCK_ERR_NOMEM;
    *v = (struct interval){ begin, nelem };
    return 0;
}

/* Appends the intervals at [part.begin, part.begin + part.nelem) of the walk. Parts arrive in ascending order. */
static int append_part(struct walk *w, struct interval part, struct fsdpck_vec *out)
{
    uint64_t end = part.begin + part.nelem;
    while (w->next < w->count && w->passed < end) {
        struct interval v = w->list[w->next];
        uint64_t from = part.begin > w->passed ? part.begin - w->passed : 0;
        uint64_t to = end - w->passed < v.nelem ? end - w->passed : v.nelem;
        int rc = from < to ? append(out, v.begin + from, to - from) : 0;
        if (rc || to < v.nelem)
            return rc;
        w->passed += v.nelem;
        w->next++;
    }
    return 0;
}

static uint64_t list_nelem(const struct fsdpck_vec *list)
{
    const struct interval *v = list->data;
    uint64_t nelem = 0;
    for (size_t i = 0; i < list->count; i++)
        nelem += v[i].nelem;
    return nelem;
}

/* Replaces the list by the part that one coordinate of n keeps. */
static int shard_list(struct fsdpck_vec *list, uint32_t split, uint32_t n, uint32_t coord)
{
    struct fsdpck_vec out = FSDPCK_VEC(struct interval);
    struct walk w = { list->data, list->count, 0, 0 };
    uint64_t nelem = list_nelem(list);
    int rc = 0;
    for (uint32_t s = 0; s < split && !rc; s++) {
        struct interval outer = chunk(nelem, split, s);
        if (outer.nelem == 0)
            break;
        struct interval part = chunk(outer.nelem, n, coord);
        part.begin += outer.begin;
        if (part.nelem)
            rc = append_part(&w, part, &out);
    }
    fsdpck_vec_free(list);
    *list = out;
    return rc;
}

/* Advances to the next combination, last dimension fastest; false after the last. */
static bool next_combination(const struct fsdpck_vec *lists, uint32_t ndim, size_t *at)
{
    for (uint32_t d = ndim; d-- > 0;) {
        if (++at[d] < lists[d].count)
            return true;
        at[d] = 0;
    }
    return false;
}

/* Visits the cartesian product of the lists. Dimensions without a list are whole. */
static int visit_product(const struct fsdpck_vec *lists, uint32_t ndim, uint64_t *offset, uint64_t *size,
                         fsdpck_box_fn visit, void *ctx)
{
    size_t at[FSDPCK_MAX_DIMS] = { 0 };
    do {
        for (uint32_t d = 0; d < ndim; d++) {
            if (lists[d].count == 0)
                continue;
            const struct interval *v = (const struct interval *)lists[d].data + at[d];
            offset[d] = v->begin;
            size[d] = v->nelem;
        }
        int rc = visit(ctx, offset, size);
        if (rc)
            return rc;
    } while (next_combination(lists, ndim, at));
    return 0;
}

static int strided_boxes(const struct fsdpck_mesh *mesh, const struct fsdpck_placement *placements, uint32_t ndim,
                         const uint32_t *coord, uint64_t *offset, uint64_t *size, fsdpck_box_fn visit, void *ctx)
{
    struct fsdpck_vec lists[FSDPCK_MAX_DIMS];
    bool empty = false;
    int rc = 0;
    for (uint32_t d = 0; d < ndim; d++)
        lists[d] = (struct fsdpck_vec)FSDPCK_VEC(struct interval);
    for (uint32_t m = 0; m < mesh->ndim && !rc && !empty; m++) {
        const struct fsdpck_placement *p = &placements[m];
        if (p->kind == FSDPCK_REPLICATE)
            continue;
        if (lists[p->dim].count == 0)
            rc = append(&lists[p->dim], 0, size[p->dim]);
        if (!rc)
            rc = shard_list(&lists[p->dim], p->kind == FSDPCK_STRIDED_SHARD ? p->split : 1, mesh->sizes[m], coord[m]);
        empty = lists[p->dim].count == 0;
    }
    if (!rc && !empty)
        rc = visit_product(lists, ndim, offset, size, visit, ctx);
    for (uint32_t d = 0; d < ndim; d++)
        fsdpck_vec_free(&lists[d]);
    return rc;
}

int fsdpck_placement_boxes(const struct fsdpck_mesh *mesh, const struct fsdpck_placement *placements, uint32_t ndim,
                           const uint64_t *shape, const uint32_t *coord, fsdpck_box_fn visit, void *ctx)
{
    uint64_t offset[FSDPCK_MAX_DIMS + 1] = { 0 }, size[FSDPCK_MAX_DIMS + 1] = { 0 };
    bool strided = false;
    assert(ndim <= FSDPCK_MAX_DIMS);
    if (ndim)
        memcpy(size, shape, ndim * sizeof *size);
    for (uint32_t m = 0; m < mesh->ndim; m++) {
        const struct fsdpck_placement *p = &placements[m];
        if (p->kind != FSDPCK_REPLICATE && p->dim >= ndim)
            return FSDPCK_ERR_USAGE;
        strided = strided || p->kind == FSDPCK_STRIDED_SHARD;
    }
    for (uint32_t d = 0; d < ndim; d++)
        if (size[d] == 0)
            return 0;
    if (strided)
        return strided_boxes(mesh, placements, ndim, coord, offset, size, visit, ctx);
    shard_boxes(mesh, placements, coord, offset, size);
    for (uint32_t d = 0; d < ndim; d++)
        if (size[d] == 0)
            return 0;
    return visit(ctx, offset, size);
}

bool fsdpck_placement_owner(const struct fsdpck_mesh *mesh, const struct fsdpck_placement *placements, uint64_t ordinal,
                            const uint32_t *coord)
{
    uint64_t nreplicas = 1, replica = 0, shard = 0;
    for (uint32_t m = 0; m < mesh->ndim; m++) {
        if (placements[m].kind == FSDPCK_REPLICATE) {
            nreplicas *= mesh->sizes[m];
            replica = replica * mesh->sizes[m] + coord[m];
        } else {
            shard = shard * mesh->sizes[m] + coord[m];
        }
    }
    return replica == (((uint32_t)ordinal * 0x9E3779B1u >> 16) + shard) % nreplicas;
}

char *fsdpck_placement_format(const struct fsdpck_placement *p, char *buf, size_t nbytes)
{
    switch (p->kind) {
    case FSDPCK_REPLICATE: snprintf(buf, nbytes, "replicate"); break;
    case FSDPCK_SHARD: snprintf(buf, nbytes, "shard(%u)", p->dim); break;
    case FSDPCK_STRIDED_SHARD: snprintf(buf, nbytes, "strided_shard(%u,%u)", p->dim, p->split); break;
    }
    return buf;
}

/* Parses a plain decimal number without sign, spaces or leading zeros, up to max; advances *text. */
static bool parse_number(const char **text, uint32_t max, uint32_t *out)
{
    uint64_t v = 0;
    const char *s = *text;
    if (*s < '0' || *s > '9' || (*s == '0' && s[1] >= '0' && s[1] <= '9'))
        return false;
    for (; *s >= '0' && *s <= '9'; s++)
        if ((v = v * 10 + (uint64_t)(*s - '0')) > max)
            return false;
    *text = s;
    *out = (uint32_t)v;
    return true;
}

static bool skip_prefix(const char **text, const char *prefix)
{
    size_t n = strlen(prefix);
    if (strncmp(*text, prefix, n) != 0)
        return false;
    *text += n;
    return true;
}

bool fsdpck_placement_parse(const char *text, struct fsdpck_placement *out)
{
    struct fsdpck_placement p = { FSDPCK_REPLICATE, 0, 0 };
    bool ok;
    if (skip_prefix(&text, "shard(")) {
        p.kind = FSDPCK_SHARD;
        ok = parse_number(&text, FSDPCK_MAX_DIMS - 1, &p.dim) && skip_prefix(&text, ")");
    } else if (skip_prefix(&text, "strided_shard(")) {
        p.kind = FSDPCK_STRIDED_SHARD;
        ok = parse_number(&text, FSDPCK_MAX_DIMS - 1, &p.dim) && skip_prefix(&text, ",") &&
             parse_number(&text, FSDPCK_MAX_RANKS, &p.split) && p.split > 0 && skip_prefix(&text, ")");
    } else {
        ok = skip_prefix(&text, "replicate");
    }
    if (!ok || *text)
        return false;
    *out = p;
    return true;
}
