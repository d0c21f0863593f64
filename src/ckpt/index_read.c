/* index.json to the catalogue of a source. The hash at its end is checked before anything is believed; after that, the document is still
 * untrusted: it may come from anybody. Knows nothing of payloads. */
#include "index.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ioutil.h"
#include "json_read.h"
#include "json_write.h"

#define MAX_INDEX_NBYTES (4ull << 30)

struct parse {
    struct fsdpck_json j;
    struct fsdpck_source *src;
    struct fsdpck_index *index;
    const char *file; /* path of index.json */
    const char *dir;  /* of the checkpoint */
    const char *assets_folder;
    bool has_format, has_version, has_save_id, has_files, has_tensors, has_block;
    struct fsdpck_error *err;
};

/* Keeps a code that a library call returned: the JSON reader then stops everywhere. */
static bool failed(struct parse *p, int code)
{
    if (code != 0)
        p->j.failed = true;
    return p->j.failed;
}

static void bad(struct parse *p, const char *what) { fsdpck_json_fail(&p->j, FSDPCK_ERR_FORMAT, "%s", what); }

/* ---- small values ---- */

static void parse_hash(struct parse *p, uint8_t hash[16])
{
    const char *s = fsdpck_json_string(&p->j);
    if (s && (strlen(s) != 32 || !fsdpck_hex_parse(s, hash, 16)))
        bad(p, "a hash is not 32 lower-case hex digits");
}

static char *parse_text(struct parse *p)
{
    const char *s = fsdpck_json_string(&p->j);
    char *copy = s ? fsdpck_arena_strndup(&p->src->arena, s, strlen(s), p->err) : NULL;
    if (!copy)
        p->j.failed = true;
    return copy;
}

/* A list of integers into the arena. */
static uint64_t *parse_u64s(struct parse *p, uint32_t max, uint32_t *count)
{
    uint64_t values[FSDPCK_MAX_DIMS];
    *count = 0;
    fsdpck_json_array(&p->j);
    while (fsdpck_json_next_item(&p->j)) {
        if (*count == max || *count == FSDPCK_MAX_DIMS) {
            fsdpck_json_fail(&p->j, FSDPCK_ERR_LIMIT, "more than %u numbers in a list", max);
            return NULL;
        }
        values[(*count)++] = fsdpck_json_u64(&p->j);
    }
    uint64_t *copy = p->j.failed ? NULL : fsdpck_arena_array(&p->src->arena, *count, sizeof *copy, p->err);
    if (copy && *count)
        memcpy(copy, values, *count * sizeof *copy);
    p->j.failed |= !copy;
    return copy;
}

static const struct fsdpck_key *parse_path(struct parse *p, uint32_t *npath)
{
    struct fsdpck_key keys[FSDPCK_MAX_DIMS] = { { 0 } };
    *npath = 0;
    fsdpck_json_array(&p->j);
    while (fsdpck_json_next_item(&p->j)) {
        if (*npath == FSDPCK_MAX_DIMS) {
            fsdpck_json_fail(&p->j, FSDPCK_ERR_LIMIT, "a path of more than %d keys", FSDPCK_MAX_DIMS);
            return NULL;
        }
        if (fsdpck_json_peek(&p->j) == FSDPCK_JSON_STRING)
            keys[*npath].str = parse_text(p);
        else
            keys[*npath].position = fsdpck_json_u64(&p->j);
        ++*npath;
    }
    if (!p->j.failed && *npath == 0)
        bad(p, "an empty path");
    const struct fsdpck_key *copy = p->j.failed ? NULL : fsdpck_source_copy_path(p->src, keys, *npath, p->err);
    p->j.failed |= !copy;
    return copy;
}

/* ---- header ---- */

static void parse_requires(struct parse *p)
{
    fsdpck_json_array(&p->j);
    while (fsdpck_json_next_item(&p->j)) {
        const char *s = fsdpck_json_string(&p->j);
        if (s)
            fsdpck_json_fail(&p->j, FSDPCK_ERR_UNSUPPORTED, "requires '%s', which this version does not know", s);
    }
}

static void parse_save_id(struct parse *p)
{
    const char *s = parse_text(p);
    if (s && !fsdpck_uuid_parse(s, p->index->save_id))
        bad(p, "save_id is no UUID");
    p->src->save_id = s;
}

static void parse_metadata(struct parse *p)
{
    const char *key;
    unsigned seen = 0;
    fsdpck_json_object(&p->j);
    while (fsdpck_json_next_key(&p->j, &key)) {
        if (strcmp(key, "bytes") == 0)
            p->index->metadata_nbytes = fsdpck_json_u64(&p->j), seen |= 1;
        else if (strcmp(key, "hash") == 0)
            parse_hash(p, p->index->metadata_hash.bytes), seen |= 2;
        else
            fsdpck_json_skip(&p->j);
    }
    if (!p->j.failed && seen != 3)
        bad(p, "metadata wants bytes and hash");
    p->index->has_metadata = true;
}

static void parse_state(struct parse *p)
{
    const char *text;
    size_t nbytes;
    if (fsdpck_json_peek(&p->j) != FSDPCK_JSON_OBJECT)
        return bad(p, "state is not an object");
    fsdpck_json_raw(&p->j, &text, &nbytes);
    if (!p->j.failed && !(p->src->state = fsdpck_arena_strndup(&p->src->arena, text, nbytes, p->err)))
        p->j.failed = true;
}

/* ---- meshes ---- */

static void parse_mesh_ranks(struct parse *p, struct fsdpck_mesh *m)
{
    struct fsdpck_vec v = FSDPCK_VEC(uint32_t);
    fsdpck_json_array(&p->j);
    while (fsdpck_json_next_item(&p->j)) {
        uint64_t rank = fsdpck_json_u64(&p->j);
        uint32_t *slot = v.count < FSDPCK_MAX_RANKS ? fsdpck_vec_push(&v, p->err) : NULL;
        if (!slot || rank >= FSDPCK_MAX_RANKS) {
            bad(p, "a mesh has too many ranks");
            break;
        }
        *slot = (uint32_t)rank;
    }
    uint32_t *ranks = fsdpck_arena_array(&p->src->arena, v.count, sizeof *ranks, p->err);
    if (ranks && v.count)
        memcpy(ranks, v.data, v.count * sizeof *ranks);
    if (!ranks)
        p->j.failed = true;
    else if (!p->j.failed && v.count != fsdpck_mesh_nranks(m))
        bad(p, "ranks of a mesh: their number is not the product of its sizes");
    m->ranks = ranks;
    fsdpck_vec_free(&v);
}

static void parse_mesh(struct parse *p, struct fsdpck_mesh *m)
{
    const char *key;
    uint32_t nsizes = 0;
    fsdpck_json_object(&p->j);
    while (fsdpck_json_next_key(&p->j, &key)) {
        if (strcmp(key, "dims") == 0) {
            fsdpck_json_array(&p->j);
            while (fsdpck_json_next_item(&p->j)) {
                if (m->ndim == FSDPCK_MAX_MESH_DIMS)
                    return fsdpck_json_fail(&p->j, FSDPCK_ERR_LIMIT, "a mesh of more than %d dimensions", FSDPCK_MAX_MESH_DIMS);
                m->names[m->ndim++] = parse_text(p);
            }
        } else if (strcmp(key, "sizes") == 0) {
            uint64_t *sizes = parse_u64s(p, FSDPCK_MAX_MESH_DIMS, &nsizes);
            for (uint32_t i = 0; sizes && i < nsizes; i++) {
                if (sizes[i] == 0 || sizes[i] > FSDPCK_MAX_RANKS)
                    return bad(p, "the size of a mesh dimension is not between 1 and 65536");
                m->sizes[i] = (uint32_t)sizes[i];
            }
        } else if (strcmp(key, "ranks") == 0) { /* after dims and sizes */
            parse_mesh_ranks(p, m);
        } else {
            fsdpck_json_skip(&p->j);
        }
    }
    if (!p->j.failed && (m->ndim == 0 || m->ndim != nsizes || fsdpck_mesh_nranks(m) > FSDPCK_MAX_RANKS))
        bad(p, "a mesh wants as many sizes as dims, and at most 65536 ranks");
}

static void parse_meshes(struct parse *p)
{
    struct fsdpck_vec v = FSDPCK_VEC(struct fsdpck_mesh);
    fsdpck_json_array(&p->j);
    while (fsdpck_json_next_item(&p->j)) {
        struct fsdpck_mesh *m = fsdpck_vec_push(&v, p->err);
        if (!m) {
            p->j.failed = true;
            break;
        }
        parse_mesh(p, m);
    }
    struct fsdpck_mesh *meshes = fsdpck_arena_array(&p->src->arena, v.count, sizeof *meshes, p->err);
    if (meshes && v.count)
        memcpy(meshes, v.data, v.count * sizeof *meshes);
    p->j.failed |= !meshes;
    p->index->meshes = meshes;
    p->index->nmeshes = v.count;
    fsdpck_vec_free(&v);
}

/* ---- files and assets ---- */

static int add_shard_file(struct parse *p, const char *name, uint64_t rank, uint64_t nbytes)
{
    if (!fsdpck_path_is_plain(name))
        return fsdpck_error_set(p->err, FSDPCK_ERR_FORMAT, p->file, "file name '%s' is not plain and relative", name);
    if (rank != p->src->files.count || rank >= FSDPCK_MAX_RANKS)
        return fsdpck_error_set(p->err, FSDPCK_ERR_FORMAT, p->file, "file '%s' is of rank %" PRIu64 ", rank %zu was next", name, rank,
                                p->src->files.count);
    char *path = fsdpck_path_join(p->dir, name, p->err);
    int r = path ? fsdpck_source_add_file(p->src, path, name, (int64_t)rank, NULL, p->err) : FSDPCK_ERR_NOMEM;
    if (r == 0 && source_files(p->src)[rank].pub.nbytes != nbytes)
        r = fsdpck_error_set(p->err, FSDPCK_ERR_DAMAGED, path, "has %" PRIu64 " bytes, the index says %" PRIu64,
                             source_files(p->src)[rank].pub.nbytes, nbytes);
    free(path);
    return r;
}

static void parse_file(struct parse *p)
{
    const char *key, *name = NULL;
    uint64_t rank = UINT64_MAX, nbytes = UINT64_MAX, *table = NULL;
    uint32_t ntable = 0;
    bool has_hash = false;
    struct index_file *f = fsdpck_vec_push(&p->index->files, p->err);
    if (!f) {
        p->j.failed = true;
        return;
    }
    fsdpck_json_object(&p->j);
    while (fsdpck_json_next_key(&p->j, &key)) {
        if (strcmp(key, "path") == 0)
            name = parse_text(p);
        else if (strcmp(key, "rank") == 0)
            rank = fsdpck_json_u64(&p->j);
        else if (strcmp(key, "bytes") == 0)
            nbytes = fsdpck_json_u64(&p->j);
        else if (strcmp(key, "table") == 0)
            table = parse_u64s(p, 2, &ntable);
        else if (strcmp(key, "hash") == 0)
            parse_hash(p, f->table_hash.bytes), has_hash = true;
        else
            fsdpck_json_skip(&p->j);
    }
    if (p->j.failed)
        return;
    if (!name || rank == UINT64_MAX || nbytes == UINT64_MAX || ntable != 2 || !has_hash)
        return bad(p, "a file wants path, rank, bytes, table and hash");
    f->table = table[0];
    f->table_nbytes = table[1];
    failed(p, add_shard_file(p, name, rank, nbytes));
}

static void parse_asset(struct parse *p)
{
    const char *key, *name = NULL;
    uint64_t nbytes = UINT64_MAX;
    uint8_t hash[16];
    bool has_hash = false;
    fsdpck_json_object(&p->j);
    while (fsdpck_json_next_key(&p->j, &key)) {
        if (strcmp(key, "path") == 0)
            name = parse_text(p);
        else if (strcmp(key, "bytes") == 0)
            nbytes = fsdpck_json_u64(&p->j);
        else if (strcmp(key, "hash") == 0)
            parse_hash(p, hash), has_hash = true;
        else
            fsdpck_json_skip(&p->j);
    }
    if (p->j.failed)
        return;
    if (!name || nbytes == UINT64_MAX || !has_hash || !fsdpck_path_is_plain(name))
        return bad(p, "an asset wants a plain path, bytes and hash");
    char *assets = fsdpck_path_join(p->dir, p->assets_folder ? p->assets_folder : "assets", p->err), *from = assets ? fsdpck_path_join(assets, name, p->err) : NULL;
    struct source_asset *a = from ? fsdpck_source_add_asset(p->src, name, from, nbytes, p->err) : NULL;
    if (a) {
        a->has_hash = true;
        memcpy(a->hash, hash, 16);
    }
    free(from);
    free(assets);
    p->j.failed |= !a;
}

/* Before the assets. */
static void parse_assets_folder(struct parse *p)
{
    p->assets_folder = parse_text(p);
    if (p->assets_folder && !fsdpck_path_is_plain(p->assets_folder))
        bad(p, "assets_folder is not a plain relative path");
}

static void parse_list(struct parse *p, void (*one)(struct parse *p))
{
    fsdpck_json_array(&p->j);
    while (fsdpck_json_next_item(&p->j))
        one(p);
}

/* ---- tensors ---- */

struct tensor_fields {
    const struct fsdpck_key *path;
    uint32_t npath;
    const char *alias_of;
    bool has_dtype, has_shape, has_mesh, has_content;
    enum fsdpck_dtype dtype;
    uint32_t ndim;
    const uint64_t *shape;
    uint64_t mesh;
    const struct fsdpck_placement *placements;
    uint32_t nplacements;
    struct index_tensor chunks;
    uint8_t content[16];
};

static void parse_dtype(struct parse *p, struct tensor_fields *f)
{
    const char *s = fsdpck_json_string(&p->j);
    if (s && !fsdpck_dtype_from_name(s, &f->dtype))
        fsdpck_json_fail(&p->j, FSDPCK_ERR_UNSUPPORTED, "dtype '%s' is not known", s);
    f->has_dtype = true;
}

static void parse_placements(struct parse *p, struct tensor_fields *f)
{
    struct fsdpck_placement list[FSDPCK_MAX_MESH_DIMS];
    fsdpck_json_array(&p->j);
    while (fsdpck_json_next_item(&p->j)) {
        const char *s = fsdpck_json_string(&p->j);
        if (s && (f->nplacements == FSDPCK_MAX_MESH_DIMS || !fsdpck_placement_parse(s, &list[f->nplacements])))
            fsdpck_json_fail(&p->j, FSDPCK_ERR_UNSUPPORTED, "placement '%s' is not known, or one too many", s);
        else
            f->nplacements++;
    }
    struct fsdpck_placement *copy = p->j.failed ? NULL : fsdpck_arena_array(&p->src->arena, f->nplacements, sizeof *copy, p->err);
    if (copy && f->nplacements)
        memcpy(copy, list, f->nplacements * sizeof *copy);
    p->j.failed |= !copy;
    f->placements = copy;
}

static void parse_chunk(struct parse *p, struct index_chunk *c, uint32_t *noffset, uint32_t *nsize)
{
    unsigned i = 0;
    fsdpck_json_array(&p->j);
    while (fsdpck_json_next_item(&p->j)) {
        if (i == 0) {
            uint64_t rank = fsdpck_json_u64(&p->j);
            if (rank >= FSDPCK_MAX_RANKS)
                return bad(p, "a chunk's rank is too large");
            c->rank = (uint32_t)rank;
        } else if (i == 1) {
            c->offset = parse_u64s(p, FSDPCK_MAX_DIMS, noffset);
        } else if (i == 2) {
            c->size = parse_u64s(p, FSDPCK_MAX_DIMS, nsize);
        } else {
            return bad(p, "a chunk is [rank, [offsets], [sizes]]");
        }
        i++;
    }
    if (!p->j.failed && i != 3)
        bad(p, "a chunk is [rank, [offsets], [sizes]]");
}

static void parse_chunks(struct parse *p, struct tensor_fields *f)
{
    struct fsdpck_vec v = FSDPCK_VEC(struct index_chunk);
    fsdpck_json_array(&p->j);
    while (fsdpck_json_next_item(&p->j)) {
        uint32_t noffset = 0, nsize = 0;
        struct index_chunk *c = fsdpck_vec_push(&v, p->err);
        if (!c) {
            p->j.failed = true;
            break;
        }
        parse_chunk(p, c, &noffset, &nsize);
        if (!p->j.failed && (!f->has_shape || noffset != f->ndim || nsize != f->ndim))
            bad(p, "a chunk has another number of dimensions than its tensor (whose shape comes first)");
    }
    struct index_chunk *copy = p->j.failed ? NULL : fsdpck_arena_array(&p->src->arena, v.count, sizeof *copy, p->err);
    if (copy && v.count)
        memcpy(copy, v.data, v.count * sizeof *copy);
    p->j.failed |= !copy;
    f->chunks = (struct index_tensor){ .chunks = copy, .nchunks = v.count };
    fsdpck_vec_free(&v);
}

static void parse_fields(struct parse *p, struct tensor_fields *f)
{
    const char *key;
    fsdpck_json_object(&p->j);
    while (fsdpck_json_next_key(&p->j, &key)) {
        if (strcmp(key, "dtype") == 0)
            parse_dtype(p, f);
        else if (strcmp(key, "shape") == 0)
            f->shape = parse_u64s(p, FSDPCK_MAX_DIMS, &f->ndim), f->has_shape = true;
        else if (strcmp(key, "mesh") == 0)
            f->mesh = fsdpck_json_u64(&p->j), f->has_mesh = true;
        else if (strcmp(key, "placements") == 0)
            parse_placements(p, f);
        else if (strcmp(key, "chunks") == 0)
            parse_chunks(p, f);
        else if (strcmp(key, "content") == 0)
            parse_hash(p, f->content), f->has_content = true;
        else if (strcmp(key, "path") == 0)
            f->path = parse_path(p, &f->npath);
        else if (strcmp(key, "alias_of") == 0)
            f->alias_of = parse_text(p);
        else
            fsdpck_json_skip(&p->j);
    }
}

static int add_alias(struct parse *p, const char *name, const struct tensor_fields *f)
{
    size_t target = fsdpck_names_find(&p->src->names, f->alias_of);
    if (target == SIZE_MAX || source_tensors(p->src)[target].alias_of >= 0)
        return fsdpck_error_set(p->err, FSDPCK_ERR_FORMAT, p->file, "'%s' is an alias of '%s', which is not a tensor listed before it", name,
                                f->alias_of);
    return fsdpck_source_add_alias(p->src, p->file, name, f->path, f->npath, target, p->err);
}

static int add_tensor(struct parse *p, const char *name, const struct tensor_fields *f)
{
    bool by_rule = f->has_mesh && f->placements, explicit = f->chunks.chunks != NULL;
    if (!f->has_dtype || !f->has_shape || by_rule == explicit)
        return fsdpck_error_set(p->err, FSDPCK_ERR_FORMAT, p->file, "tensor '%s' wants dtype, shape, and either mesh and placements or chunks", name);
    struct fsdpck_tensor *t = fsdpck_source_add_tensor(p->src, p->file, name, f->path, f->npath, f->dtype, f->ndim, f->shape, p->err);
    if (!t)
        return FSDPCK_ERR_FORMAT;
    t->has_content = f->has_content;
    memcpy(t->content, f->content, 16);
    if (explicit)
        return 0;
    if (f->mesh >= p->index->nmeshes || f->nplacements != p->index->meshes[f->mesh].ndim)
        return fsdpck_error_set(p->err, FSDPCK_ERR_FORMAT, p->file, "tensor '%s': mesh %" PRIu64 " is not there, or has another number of dimensions", name,
                                f->mesh);
    for (uint32_t i = 0; i < f->nplacements; i++)
        if (f->placements[i].kind != FSDPCK_REPLICATE && f->placements[i].dim >= f->ndim)
            return fsdpck_error_set(p->err, FSDPCK_ERR_FORMAT, p->file, "tensor '%s' is sharded on dimension %u, it has %u", name,
                                    f->placements[i].dim, f->ndim);
    t->mesh = &p->index->meshes[f->mesh];
    t->placements = f->placements;
    return 0;
}

static void parse_tensors(struct parse *p)
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
        failed(p, f.alias_of ? add_alias(p, name, &f) : add_tensor(p, name, &f));
    }
}

/* ---- items ---- */

static void parse_item(struct parse *p, const char *name)
{
    const char *key;
    const struct fsdpck_key *path = NULL;
    uint32_t npath = 0;
    uint64_t file = UINT64_MAX, offset = UINT64_MAX, nbytes = UINT64_MAX;
    fsdpck_json_object(&p->j);
    while (fsdpck_json_next_key(&p->j, &key)) {
        if (strcmp(key, "path") == 0)
            path = parse_path(p, &npath);
        else if (strcmp(key, "file") == 0)
            file = fsdpck_json_u64(&p->j);
        else if (strcmp(key, "offset") == 0)
            offset = fsdpck_json_u64(&p->j);
        else if (strcmp(key, "bytes") == 0)
            nbytes = fsdpck_json_u64(&p->j);
        else
            fsdpck_json_skip(&p->j);
    }
    if (p->j.failed)
        return;
    if (file > UINT32_MAX || offset == UINT64_MAX || nbytes == UINT64_MAX)
        return bad(p, "an item wants file, offset and bytes");
    struct source_item *i = fsdpck_source_add_item(p->src, name, path, npath, p->err);
    if (!i) {
        p->j.failed = true;
        return;
    }
    i->file = (uint32_t)file;
    i->offset = offset;
    i->pub.nbytes = nbytes;
}

static void parse_items(struct parse *p)
{
    const char *key;
    fsdpck_json_object(&p->j);
    while (fsdpck_json_next_key(&p->j, &key)) {
        char *name = fsdpck_arena_strndup(&p->src->arena, key, strlen(key), p->err);
        if (!name) {
            p->j.failed = true;
            return;
        }
        parse_item(p, name);
    }
}

/* ---- the document ---- */

static void parse_format(struct parse *p)
{
    const char *s = fsdpck_json_string(&p->j);
    if (s && strcmp(s, "fsdpck") != 0)
        fsdpck_json_fail(&p->j, FSDPCK_ERR_UNSUPPORTED, "format is '%s', not 'fsdpck'", s);
    p->has_format = true;
}

static void parse_number(struct parse *p, const char *key, uint64_t want, bool *seen)
{
    uint64_t v = fsdpck_json_u64(&p->j);
    if (!p->j.failed && v != want)
        fsdpck_json_fail(&p->j, FSDPCK_ERR_UNSUPPORTED, "%s is %" PRIu64 "; this program reads %" PRIu64, key, v, want);
    *seen = true;
}

static void parse_key(struct parse *p, const char *key)
{
    if (strcmp(key, "format") == 0)
        parse_format(p);
    else if (strcmp(key, "version") == 0)
        parse_number(p, "version", 1, &p->has_version);
    else if (strcmp(key, "requires") == 0)
        parse_requires(p);
    else if (strcmp(key, "save_id") == 0)
        parse_save_id(p), p->has_save_id = true;
    else if (strcmp(key, "block_bytes") == 0)
        parse_number(p, "block_bytes", FSDPCK_BLOCK_NBYTES, &p->has_block);
    else if (strcmp(key, "meshes") == 0)
        parse_meshes(p);
    else if (strcmp(key, "files") == 0)
        parse_list(p, parse_file), p->has_files = true;
    else if (strcmp(key, "tensors") == 0)
        parse_tensors(p), p->has_tensors = true;
    else if (strcmp(key, "items") == 0)
        parse_items(p);
    else if (strcmp(key, "assets_folder") == 0)
        parse_assets_folder(p);
    else if (strcmp(key, "assets") == 0)
        parse_list(p, parse_asset);
    else if (strcmp(key, "state") == 0)
        parse_state(p);
    else if (strcmp(key, "metadata") == 0)
        parse_metadata(p);
    else
        fsdpck_json_skip(&p->j);
}

static void check_meshes(struct parse *p)
{
    for (size_t m = 0; m < p->index->nmeshes; m++) {
        const struct fsdpck_mesh *mesh = &p->index->meshes[m];
        uint64_t n = fsdpck_mesh_nranks(mesh);
        bool fits = mesh->ranks || n <= p->src->files.count;
        for (uint64_t i = 0; mesh->ranks && i < n; i++)
            fits &= mesh->ranks[i] < p->src->files.count;
        if (!fits)
            return bad(p, "a mesh names ranks that have no file");
    }
}

static int check_items(struct parse *p)
{
    for (size_t i = 0; i < p->src->items.count; i++) {
        const struct source_item *it = &source_items(p->src)[i];
        const struct source_file *f = it->file < p->src->files.count ? &source_files(p->src)[it->file] : NULL;
        if (!f || it->pub.nbytes > f->pub.nbytes || it->offset > f->pub.nbytes - it->pub.nbytes)
            return fsdpck_error_set(p->err, FSDPCK_ERR_FORMAT, p->file, "item '%s' is said to lie outside the files", it->pub.name);
    }
    return 0;
}

static int check_tail(const char *file, const char *text, uint64_t nbytes, struct fsdpck_error *err)
{
    struct fsdpck_hash128 want, got;
    if (nbytes < FSDPCK_INDEX_TAIL_NBYTES)
        return fsdpck_error_set(err, FSDPCK_ERR_DAMAGED, file, "%" PRIu64 " bytes are too few for an index", nbytes);
    const char *tail = text + nbytes - FSDPCK_INDEX_TAIL_NBYTES;
    char digits[33] = { 0 };
    memcpy(digits, tail + 8, 32);
    if (memcmp(tail, "\"hash\":\"", 8) != 0 || memcmp(tail + 40, "\"}\n", 3) != 0 || !fsdpck_hex_parse(digits, want.bytes, 16))
        return fsdpck_error_at(err, FSDPCK_ERR_DAMAGED, file, nbytes - FSDPCK_INDEX_TAIL_NBYTES, "does not end with its hash: it is cut, or no index of fsdpck");
    fsdpck_hash(text, nbytes - FSDPCK_INDEX_TAIL_NBYTES, &got);
    if (!fsdpck_hash_equal(&want, &got))
        return fsdpck_error_set(err, FSDPCK_ERR_DAMAGED, file, "its bytes do not match the hash at its end");
    return 0;
}

static int parse_document(struct parse *p, const char *text, uint64_t nbytes)
{
    const char *key;
    fsdpck_json_begin(&p->j, p->file, 0, text, nbytes, p->err);
    fsdpck_json_object(&p->j);
    while (fsdpck_json_next_key(&p->j, &key))
        parse_key(p, key);
    fsdpck_json_end(&p->j);
    if (!p->j.failed && !(p->has_format && p->has_version && p->has_save_id && p->has_files && p->has_tensors && p->has_block))
        bad(p, "one of format, version, save_id, block_bytes, files, tensors is missing");
    if (!p->j.failed)
        check_meshes(p);
    if (!p->j.failed)
        failed(p, check_items(p));
    bool ok = !p->j.failed;
    fsdpck_json_free(&p->j);
    return ok ? 0 : p->err->code ? p->err->code : FSDPCK_ERR_FORMAT;
}

int fsdpck_index_read(struct fsdpck_source *src, struct fsdpck_index *index, struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    char *text = NULL, *file = fsdpck_path_join(src->path, "index.json", err);
    uint64_t nbytes;
    struct parse p = { .src = src, .index = index, .file = file, .dir = src->path, .err = err ? err : &own };
    index->files.item_nbytes = sizeof(struct index_file);
    index->tensors.item_nbytes = sizeof(struct index_tensor);
    int r = file ? fsdpck_read_file(src->io, file, MAX_INDEX_NBYTES, &text, &nbytes, err) : FSDPCK_ERR_NOMEM;
    if (r == 0)
        r = check_tail(file, text, nbytes, err);
    if (r == 0)
        r = parse_document(&p, text, nbytes);
    index->nbytes = r == 0 ? nbytes : 0;
    free(text);
    free(file);
    return r;
}
