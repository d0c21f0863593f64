/* SPDX-License-Identifier: Apache-2.0 */
/* Parses the files that index.json lists: shard files, non-tensor items, assets (FORMAT.md sections 1, 1.2 and 1.4). */
#include "format/index_parse.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "engine/decode.h"
#include "base/ioutil.h"

static void parse_list(struct index_parse *p, void (*one)(struct index_parse *p))
{
    fsdpck_json_array(&p->j);
    while (fsdpck_json_next_item(&p->j))
        one(p);
}

/* ---- shard files ---- */

struct file_fields {
    const char *name;
    uint64_t rank, nbytes, *table;
};

/* Handles a file that is missing or has the wrong size: fatal for a reader, one problem of many for `verify`. */
static int add_broken(struct index_parse *p, const char *path, const struct file_fields *x, struct index_file *f,
                      const struct fsdpck_error *why)
{
    const struct fsdpck_stat none = { .nbytes = x->nbytes };
    struct fsdpck_error *kept = fsdpck_arena_alloc(&p->src->arena, sizeof *kept, p->err);
    if (!kept)
        return FSDPCK_ERR_NOMEM;
    *kept = *why;
    f->broken = kept;
    return fsdpck_source_list_file(p->src, path, x->name, (int64_t)x->rank, &none, NULL, p->err);
}

static int add_file(struct index_parse *p, const char *path, const struct file_fields *x, struct index_file *f)
{
    struct fsdpck_error e = { 0 };
    struct fsdpck_stat st;
    int rc = fsdpck_source_stat_file(p->src, path, &st, &e);
    if (!rc && st.nbytes != x->nbytes)
        rc = fsdpck_error_set(&e, FSDPCK_ERR_DAMAGED, path, "has %" PRIu64 " bytes, the index says %" PRIu64, st.nbytes,
                              x->nbytes);
    if (!rc)
        return fsdpck_source_list_file(p->src, path, x->name, (int64_t)x->rank, &st, NULL, p->err);
    if (p->src->to_verify && rc != FSDPCK_ERR_IO && rc != FSDPCK_ERR_NOMEM)
        return add_broken(p, path, x, f, &e);
    *p->err = e;
    return rc;
}

static int add_shard_file(struct index_parse *p, const struct file_fields *x, struct index_file *f)
{
    if (!fsdpck_path_is_plain(x->name))
        return fsdpck_error_set(p->err, FSDPCK_ERR_FORMAT, p->file, "file name '%s' is not plain and relative",
                                x->name);
    if (x->rank != p->src->files.count || x->rank >= FSDPCK_MAX_RANKS)
        return fsdpck_error_set(p->err, FSDPCK_ERR_FORMAT, p->file,
                                "file '%s' is of rank %" PRIu64 ", rank %zu was next", x->name, x->rank,
                                p->src->files.count);
    if (x->nbytes > INT64_MAX)
        return fsdpck_error_set(p->err, FSDPCK_ERR_LIMIT, p->file, "file '%s' is said to have %" PRIu64 " bytes",
                                x->name, x->nbytes);
    char *path = fsdpck_path_join(p->src->path, x->name, p->err);
    int rc = path ? add_file(p, path, x, f) : FSDPCK_ERR_NOMEM;
    free(path);
    return rc;
}

static void parse_file(struct index_parse *p)
{
    enum { PATH, RANK, BYTES, TABLE, HASH, ALL = 31 };
    static const char *const fields[] = { "path", "rank", "bytes", "table", "hash", NULL };
    struct file_fields x = { 0 };
    uint32_t seen = 0, ntable = 0;
    struct index_file *f = fsdpck_vec_push(&p->index->files, p->err);
    if (!f) {
        p->j.failed = true;
        return;
    }
    fsdpck_json_object(&p->j);
    for (int field; (field = fsdpck_index_next_field(p, fields, &seen)) >= 0;)
        switch (field) {
        case PATH: x.name = fsdpck_index_parse_text(p); break;
        case RANK: x.rank = fsdpck_json_u64(&p->j); break;
        case BYTES: x.nbytes = fsdpck_json_u64(&p->j); break;
        case TABLE: x.table = fsdpck_index_parse_u64s(p, 2, &ntable); break;
        case HASH: fsdpck_index_parse_hash(p, f->table_hash.bytes); break;
        }
    if (p->j.failed)
        return;
    if (seen != ALL || ntable != 2)
        return fsdpck_index_bad(p, "a file wants path, rank, bytes, table and hash");
    f->table = x.table[0];
    f->table_nbytes = x.table[1];
    fsdpck_index_failed(p, add_shard_file(p, &x, f));
}

void fsdpck_index_parse_files(struct index_parse *p)
{
    parse_list(p, parse_file);
}

/* Each tensor is stored once, uncompressed: the tensors cannot have more bytes than the files, and no reader may plan
 * for more. If compressed, each block has its record in a chunk table. */
int fsdpck_index_check_room(struct index_parse *p)
{
    uint64_t want = 0, have = 0;
    for (size_t i = 0; i < p->src->files.count; i++)
        if (!checked_add(have, source_files(p->src)[i].pub.nbytes, &have))
            have = UINT64_MAX;
    if (p->src->compressed && !checked_mul(have, FSDPCK_BLOCK_NBYTES / FSDPCK_RECORD_NBYTES, &have))
        have = UINT64_MAX;
    for (size_t i = 0; i < p->src->tensors.count; i++) {
        const struct fsdpck_tensor *t = &source_tensors(p->src)[i];
        if (t->alias_of < 0 && (!checked_add(want, t->nbytes, &want) || want > have)) {
            fsdpck_error_set(p->err, FSDPCK_ERR_FORMAT, p->file,
                             "the tensors up to this one need more bytes than the %" PRIu64 " %s", have,
                             p->src->compressed ? "that all files could hold" : "of all files");
            fsdpck_error_tensor(p->err, t->name);
            return FSDPCK_ERR_FORMAT;
        }
    }
    return 0;
}

/* ---- items ---- */

static int add_item(struct index_parse *p, const char *name, const struct fsdpck_key *path, uint32_t npath,
                    const uint64_t place[3])
{
    size_t old;
    struct source_item *i = fsdpck_source_add_item(p->src, name, path, npath, p->err);
    if (!i)
        return p->err->code ? p->err->code : FSDPCK_ERR_NOMEM;
    i->file = (uint32_t)place[0];
    i->offset = place[1];
    i->pub.nbytes = place[2];
    int rc = fsdpck_names_add(&p->items, i->pub.name, p->src->items.count - 1, &old, p->err);
    if (!rc && old != SIZE_MAX)
        rc = fsdpck_error_set(p->err, FSDPCK_ERR_FORMAT, p->file, "item '%s' is listed twice", name);
    return rc;
}

static void parse_item(struct index_parse *p, const char *name)
{
    enum { PATH = 3, WANTED = 7 };
    static const char *const fields[] = { "file", "offset", "bytes", "path", NULL };
    const struct fsdpck_key *path = NULL;
    uint32_t seen = 0, npath = 0;
    uint64_t place[3] = { 0 };
    fsdpck_json_object(&p->j);
    for (int field; (field = fsdpck_index_next_field(p, fields, &seen)) >= 0;) {
        if (field == PATH)
            path = fsdpck_index_parse_path(p, &npath);
        else
            place[field] = fsdpck_json_u64(&p->j);
    }
    if (p->j.failed)
        return;
    if ((seen & WANTED) != WANTED || place[0] > UINT32_MAX)
        return fsdpck_index_bad(p, "an item wants file, offset and bytes");
    fsdpck_index_failed(p, add_item(p, name, path, npath, place));
}

void fsdpck_index_parse_items(struct index_parse *p)
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

int fsdpck_index_check_items(struct index_parse *p)
{
    for (size_t i = 0; i < p->src->items.count; i++) {
        const struct source_item *it = &source_items(p->src)[i];
        const struct source_file *f = it->file < p->src->files.count ? &source_files(p->src)[it->file] : NULL;
        if (!f || it->pub.nbytes > f->pub.nbytes || it->offset > f->pub.nbytes - it->pub.nbytes)
            return fsdpck_error_set(p->err, FSDPCK_ERR_FORMAT, p->file, "item '%s' is said to lie outside the files",
                                    it->pub.name);
    }
    return 0;
}

/* ---- assets ---- */

static int add_asset(struct index_parse *p, const char *name, uint64_t nbytes, const uint8_t hash[16])
{
    size_t old;
    char *folder = fsdpck_path_join(p->src->path, p->assets_folder ? p->assets_folder : "assets", p->err);
    char *from = folder ? fsdpck_path_join(folder, name, p->err) : NULL;
    struct source_asset *a = from ? fsdpck_source_add_asset(p->src, name, from, nbytes, p->err) : NULL;
    int rc = a ? fsdpck_names_add(&p->assets, a->pub.path, p->src->assets.count - 1, &old, p->err) : FSDPCK_ERR_NOMEM;
    if (!rc && old != SIZE_MAX)
        rc = fsdpck_error_set(p->err, FSDPCK_ERR_FORMAT, p->file, "asset '%s' is listed twice", name);
    if (!rc) {
        a->has_hash = true;
        memcpy(a->hash, hash, 16);
    }
    free(from);
    free(folder);
    return rc;
}

static void parse_asset(struct index_parse *p)
{
    enum { PATH, BYTES, HASH, ALL = 7 };
    static const char *const fields[] = { "path", "bytes", "hash", NULL };
    const char *name = NULL;
    uint32_t seen = 0;
    uint64_t nbytes = 0;
    uint8_t hash[16];
    fsdpck_json_object(&p->j);
    for (int field; (field = fsdpck_index_next_field(p, fields, &seen)) >= 0;)
        switch (field) {
        case PATH: name = fsdpck_index_parse_text(p); break;
        case BYTES: nbytes = fsdpck_json_u64(&p->j); break;
        case HASH: fsdpck_index_parse_hash(p, hash); break;
        }
    if (p->j.failed)
        return;
    if (seen != ALL || !fsdpck_path_is_plain(name))
        return fsdpck_index_bad(p, "an asset wants a plain relative path, bytes and hash");
    fsdpck_index_failed(p, add_asset(p, name, nbytes, hash));
}

void fsdpck_index_parse_assets(struct index_parse *p)
{
    parse_list(p, parse_asset);
}
