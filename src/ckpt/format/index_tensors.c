/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of index.json (FORMAT.md section 1.3): dtype, shape, and the positions of the chunks, by rule or listed.
 * Knows nothing of files. */
#include "format/index_parse.h"

#include <inttypes.h>
#include <string.h>

enum { PATH, DTYPE, SHAPE, MESH, PLACEMENTS, CHUNKS, CONTENT, ALIAS_OF };
static const char *const fields[] = { "path",   "dtype",   "shape",    "mesh", "placements",
                                      "chunks", "content", "alias_of", NULL };
#define BIT(field) (1u << (field))

struct tensor_fields {
    uint32_t seen; /* BIT(field) */
    const struct fsdpck_key *path;
    uint32_t npath;
    const char *alias_of;
    enum fsdpck_dtype dtype;
    uint32_t ndim;
    const uint64_t *shape;
    uint64_t mesh;
    const struct fsdpck_placement *placements;
    uint32_t nplacements;
    struct index_tensor chunks;
    uint8_t content[16];
};

static void parse_placements(struct index_parse *p, struct tensor_fields *f)
{
    struct fsdpck_vec v = FSDPCK_VEC(struct fsdpck_placement);
    fsdpck_json_array(&p->j);
    while (fsdpck_json_next_item(&p->j)) {
        const char *s = fsdpck_json_string(&p->j);
        struct fsdpck_placement *x = s ? fsdpck_vec_push(&v, p->err) : NULL;
        if (!x)
            p->j.failed = true;
        else if (v.count > FSDPCK_MAX_MESH_DIMS || !fsdpck_placement_parse(s, x))
            fsdpck_json_fail(&p->j, FSDPCK_ERR_UNSUPPORTED, "placement '%s' is not known, or one too many", s);
    }
    f->nplacements = (uint32_t)v.count;
    f->placements = fsdpck_index_keep(p, &v);
}

/* [rank, [offsets], [sizes]] */
static void parse_chunk(struct index_parse *p, struct index_chunk *c, uint32_t ndim)
{
    uint32_t noffset = 0, nsize = 0;
    unsigned i = 0;
    uint64_t rank = 0;
    fsdpck_json_array(&p->j);
    for (; fsdpck_json_next_item(&p->j); i++)
        switch (i) {
        case 0: rank = fsdpck_json_u64(&p->j); break;
        case 1: c->offset = fsdpck_index_parse_u64s(p, FSDPCK_MAX_DIMS, &noffset); break;
        case 2: c->size = fsdpck_index_parse_u64s(p, FSDPCK_MAX_DIMS, &nsize); break;
        default: fsdpck_json_skip(&p->j); break;
        }
    if (p->j.failed)
        return;
    if (i != 3 || rank >= FSDPCK_MAX_RANKS)
        return fsdpck_index_bad(p, "a chunk is [rank, [offsets], [sizes]]");
    if (noffset != ndim || nsize != ndim)
        return fsdpck_index_bad(p, "a chunk has another number of dimensions than its tensor");
    c->rank = (uint32_t)rank;
}

static void parse_chunks(struct index_parse *p, struct tensor_fields *f)
{
    struct fsdpck_vec v = FSDPCK_VEC(struct index_chunk);
    if (!(f->seen & BIT(SHAPE)))
        return fsdpck_index_bad(p, "chunks come after the shape of their tensor");
    fsdpck_json_array(&p->j);
    while (fsdpck_json_next_item(&p->j)) {
        struct index_chunk *c = fsdpck_vec_push(&v, p->err);
        if (c)
            parse_chunk(p, c, f->ndim);
        else
            p->j.failed = true;
    }
    f->chunks.nchunks = v.count;
    f->chunks.chunks = fsdpck_index_keep(p, &v);
}

static void parse_fields(struct index_parse *p, struct tensor_fields *f)
{
    fsdpck_json_object(&p->j);
    for (int field; (field = fsdpck_index_next_field(p, fields, &f->seen)) >= 0;)
        switch (field) {
        case PATH: f->path = fsdpck_index_parse_path(p, &f->npath); break;
        case DTYPE: fsdpck_index_parse_dtype(p, &f->dtype); break;
        case SHAPE: f->shape = fsdpck_index_parse_shape(p, &f->ndim); break;
        case MESH: f->mesh = fsdpck_json_u64(&p->j); break;
        case PLACEMENTS: parse_placements(p, f); break;
        case CHUNKS: parse_chunks(p, f); break;
        case CONTENT: fsdpck_index_parse_hash(p, f->content); break;
        case ALIAS_OF: f->alias_of = fsdpck_index_parse_text(p); break;
        }
}

static int add_alias(struct index_parse *p, const char *name, const struct tensor_fields *f)
{
    size_t target = fsdpck_names_find(&p->src->names, f->alias_of);
    if (f->seen & ~(BIT(PATH) | BIT(ALIAS_OF)))
        return fsdpck_error_set(p->err, FSDPCK_ERR_FORMAT, p->file,
                                "'%s' is an alias: it has no dtype, shape or chunks of its own", name);
    if (target == SIZE_MAX || source_tensors(p->src)[target].alias_of >= 0)
        return fsdpck_error_set(p->err, FSDPCK_ERR_FORMAT, p->file,
                                "'%s' is an alias of '%s', which is not a tensor listed before it", name, f->alias_of);
    return fsdpck_source_add_alias(p->src, p->file, name, f->path, f->npath, target, p->err);
}

static int check_rule(struct index_parse *p, const char *name, const struct tensor_fields *f)
{
    if (f->mesh >= p->index->nmeshes || f->nplacements != p->index->meshes[f->mesh].ndim)
        return fsdpck_error_set(p->err, FSDPCK_ERR_FORMAT, p->file,
                                "tensor '%s': mesh %" PRIu64 " is not there, or has another number of dimensions", name,
                                f->mesh);
    for (uint32_t i = 0; i < f->nplacements; i++)
        if (f->placements[i].kind != FSDPCK_REPLICATE && f->placements[i].dim >= f->ndim)
            return fsdpck_error_set(p->err, FSDPCK_ERR_FORMAT, p->file,
                                    "tensor '%s' is sharded on dimension %u, it has %u", name, f->placements[i].dim,
                                    f->ndim);
    return 0;
}

static int add_tensor(struct index_parse *p, const char *name, const struct tensor_fields *f)
{
    uint32_t place = f->seen & (BIT(MESH) | BIT(PLACEMENTS) | BIT(CHUNKS)), what = BIT(DTYPE) | BIT(SHAPE);
    if ((f->seen & what) != what || (place != (BIT(MESH) | BIT(PLACEMENTS)) && place != BIT(CHUNKS)))
        return fsdpck_error_set(p->err, FSDPCK_ERR_FORMAT, p->file,
                                "tensor '%s' wants dtype, shape, and either mesh and placements or chunks", name);
    int rc = place == BIT(CHUNKS) ? 0 : check_rule(p, name, f);
    if (rc)
        return rc;
    struct fsdpck_tensor *t =
        fsdpck_source_add_tensor(p->src, p->file, name, f->path, f->npath, f->dtype, f->ndim, f->shape, p->err);
    if (!t)
        return p->err->code ? p->err->code : FSDPCK_ERR_NOMEM;
    t->has_content = f->seen & BIT(CONTENT);
    memcpy(t->content, f->content, 16);
    t->mesh = place == BIT(CHUNKS) ? NULL : &p->index->meshes[f->mesh];
    t->placements = f->placements;
    return 0;
}

void fsdpck_index_parse_tensors(struct index_parse *p)
{
    const char *key;
    fsdpck_json_object(&p->j);
    while (fsdpck_json_next_key(&p->j, &key)) {
        struct tensor_fields f = { 0 };
        char *name = fsdpck_arena_strndup(&p->src->arena, key, strlen(key), p->err);
        parse_fields(p, &f);
        struct index_tensor *it = name && !p->j.failed ? fsdpck_vec_push(&p->index->tensors, p->err) : NULL;
        if (!it) {
            p->j.failed = true;
            return;
        }
        *it = f.chunks;
        fsdpck_index_failed(p, f.seen & BIT(ALIAS_OF) ? add_alias(p, name, &f) : add_tensor(p, name, &f));
    }
}
