/* SPDX-License-Identifier: Apache-2.0 */
/* The meshes of index.json (FORMAT.md section 1.1). */
#include "format/index_parse.h"

#include <stdlib.h>
#include <string.h>

enum { DIMS, SIZES, RANKS };
static const char *const fields[] = { "dims", "sizes", "ranks", NULL };

static void parse_dims(struct index_parse *p, struct fsdpck_mesh *m)
{
    fsdpck_json_array(&p->j);
    while (fsdpck_json_next_item(&p->j)) {
        if (m->ndim == FSDPCK_MAX_MESH_DIMS)
            return fsdpck_json_fail(&p->j, FSDPCK_ERR_LIMIT, "a mesh of more than %d dimensions", FSDPCK_MAX_MESH_DIMS);
        const char *name = fsdpck_index_parse_text(p);
        for (uint32_t d = 0; name && d < m->ndim; d++)
            if (strcmp(m->names[d], name) == 0)
                return fsdpck_json_fail(&p->j, FSDPCK_ERR_FORMAT, "a mesh has two dimensions named '%s'", name);
        m->names[m->ndim++] = name;
    }
}

static void parse_sizes(struct index_parse *p, struct fsdpck_mesh *m, uint32_t *nsizes)
{
    const uint64_t *sizes = fsdpck_index_parse_u64s(p, FSDPCK_MAX_MESH_DIMS, nsizes);
    for (uint32_t i = 0; sizes && i < *nsizes; i++) {
        if (sizes[i] == 0 || sizes[i] > FSDPCK_MAX_RANKS)
            return fsdpck_index_bad(p, "the size of a mesh dimension is not between 1 and 65536");
        m->sizes[i] = (uint32_t)sizes[i];
    }
}

static const uint32_t *parse_ranks(struct index_parse *p, size_t *nranks)
{
    struct fsdpck_vec v = FSDPCK_VEC(uint32_t);
    fsdpck_json_array(&p->j);
    while (fsdpck_json_next_item(&p->j)) {
        uint64_t rank = fsdpck_json_u64(&p->j);
        uint32_t *slot = v.count < FSDPCK_MAX_RANKS ? fsdpck_vec_push(&v, p->err) : NULL;
        if (!slot || rank >= FSDPCK_MAX_RANKS) {
            fsdpck_index_bad(p, "a mesh has too many ranks");
            break;
        }
        *slot = (uint32_t)rank;
    }
    *nranks = v.count;
    return fsdpck_index_keep(p, &v);
}

/* Returns the number of ranks, or 0 if it exceeds the limit; the product of eight sizes may wrap. */
static uint64_t count_ranks(const struct fsdpck_mesh *m)
{
    uint64_t n = 1;
    for (uint32_t d = 0; d < m->ndim && n; d++)
        n = n * m->sizes[d] <= FSDPCK_MAX_RANKS ? n * m->sizes[d] : 0;
    return n;
}

static void parse_mesh(struct index_parse *p, struct fsdpck_mesh *m)
{
    uint32_t seen = 0, nsizes = 0;
    size_t nranks = 0;
    fsdpck_json_object(&p->j);
    for (int field; (field = fsdpck_index_next_field(p, fields, &seen)) >= 0;) {
        if (field == DIMS)
            parse_dims(p, m);
        else if (field == SIZES)
            parse_sizes(p, m, &nsizes);
        else
            m->ranks = parse_ranks(p, &nranks);
    }
    if (p->j.failed)
        return;
    if (m->ndim == 0 || m->ndim != nsizes || count_ranks(m) == 0)
        fsdpck_index_bad(p, "a mesh wants as many sizes as dims, and at most 65536 ranks");
    else if (m->ranks && nranks != count_ranks(m))
        fsdpck_index_bad(p, "ranks of a mesh: their number is not the product of its sizes");
}

void fsdpck_index_parse_meshes(struct index_parse *p)
{
    struct fsdpck_vec v = FSDPCK_VEC(struct fsdpck_mesh);
    fsdpck_json_array(&p->j);
    while (fsdpck_json_next_item(&p->j)) {
        struct fsdpck_mesh *m = fsdpck_vec_push(&v, p->err);
        if (m)
            parse_mesh(p, m);
        else
            p->j.failed = true;
    }
    p->index->nmeshes = v.count;
    p->index->meshes = fsdpck_index_keep(p, &v);
}

static bool fits(const struct fsdpck_mesh *m, uint64_t nfiles, uint8_t *taken)
{
    uint64_t n = fsdpck_mesh_nranks(m);
    if (!m->ranks)
        return n <= nfiles;
    memset(taken, 0, nfiles);
    for (uint64_t i = 0; i < n; i++) {
        if (m->ranks[i] >= nfiles || taken[m->ranks[i]])
            return false;
        taken[m->ranks[i]] = 1;
    }
    return true;
}

void fsdpck_index_check_meshes(struct index_parse *p)
{
    uint64_t nfiles = p->src->files.count;
    uint8_t *taken = malloc(nfiles + 1);
    if (!taken)
        fsdpck_index_failed(p, fsdpck_error_nomem(p->err, nfiles + 1));
    for (size_t m = 0; !p->j.failed && m < p->index->nmeshes; m++)
        if (!fits(&p->index->meshes[m], nfiles, taken))
            fsdpck_index_bad(p, "a mesh names ranks that have no file, or one twice");
    free(taken);
}
