/* SPDX-License-Identifier: Apache-2.0 */
/* Reads index.json into the catalogue of a source. Checks the hash at the end of the document first. The document
 * remains untrusted: anyone can compute the hash. Knows nothing of payloads. */
#include "format/index_parse.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"
#include "base/json_write.h"

#define MAX_INDEX_NBYTES (4ull << 30)

/* The keys of the document; for some the order matters. */
enum {
    FORMAT,
    VERSION,
    REQUIRES,
    SAVE_ID,
    BLOCK_BYTES,
    MESHES,
    FILES,
    TENSORS,
    ITEMS,
    ASSETS_FOLDER,
    ASSETS,
    STATE,
    BASE,
    METADATA
};
static const char *const keys[] = { "format", "version", "requires", "save_id",  "block_bytes",
                                    "meshes", "files",   "tensors",  "items",    "assets_folder",
                                    "assets", "state",   "base",     "metadata", NULL };
#define BIT(key) (1u << (key))

static void parse_format(struct index_parse *p)
{
    const char *s = fsdpck_json_string(&p->j);
    if (s && strcmp(s, "fsdpck") != 0)
        fsdpck_json_fail(&p->j, FSDPCK_ERR_UNSUPPORTED, "format is '%s', not 'fsdpck'", s);
}

static void parse_number(struct index_parse *p, const char *key, uint64_t want)
{
    uint64_t v = fsdpck_json_u64(&p->j);
    if (!p->j.failed && v != want)
        fsdpck_json_fail(&p->j, FSDPCK_ERR_UNSUPPORTED, "%s is %" PRIu64 "; this program reads %" PRIu64, key, v, want);
}

static void parse_requires(struct index_parse *p)
{
    fsdpck_json_array(&p->j);
    while (fsdpck_json_next_item(&p->j)) {
        const char *s = fsdpck_json_string(&p->j);
        if (s && strcmp(s, FSDPCK_FEATURE_COMPRESSION) == 0)
            p->src->compressed = true;
        else if (s)
            fsdpck_json_fail(&p->j, FSDPCK_ERR_UNSUPPORTED, "requires '%s', which this version does not know", s);
    }
}

static void parse_save_id(struct index_parse *p)
{
    const char *s = fsdpck_index_parse_text(p);
    if (s && !fsdpck_uuid_parse(s, p->index->save_id))
        fsdpck_index_bad(p, "save_id is no UUID");
    p->src->save_id = s;
}

static void parse_assets_folder(struct index_parse *p, uint32_t seen)
{
    p->assets_folder = fsdpck_index_parse_text(p);
    if (p->assets_folder && !fsdpck_path_is_plain(p->assets_folder))
        fsdpck_index_bad(p, "assets_folder is not a plain relative path");
    if (seen & BIT(ASSETS))
        fsdpck_index_bad(p, "assets_folder comes before assets");
}

static void parse_metadata(struct index_parse *p)
{
    enum { BYTES, HASH, ALL = 3 };
    static const char *const fields[] = { "bytes", "hash", NULL };
    uint32_t seen = 0;
    fsdpck_json_object(&p->j);
    for (int field; (field = fsdpck_index_next_field(p, fields, &seen)) >= 0;) {
        if (field == BYTES)
            p->index->metadata_nbytes = fsdpck_json_u64(&p->j);
        else
            fsdpck_index_parse_hash(p, p->index->metadata_hash.bytes);
    }
    if (!p->j.failed && seen != ALL)
        fsdpck_index_bad(p, "metadata wants bytes and hash");
    p->index->has_metadata = true;
}

static void parse_state(struct index_parse *p)
{
    const char *text;
    size_t nbytes;
    if (fsdpck_json_peek(&p->j) != FSDPCK_JSON_OBJECT)
        return fsdpck_index_bad(p, "state is not an object");
    fsdpck_json_raw(&p->j, &text, &nbytes);
    if (!p->j.failed && !(p->src->state = fsdpck_arena_strndup(&p->src->arena, text, nbytes, p->err)))
        p->j.failed = true;
}

static void parse_key(struct index_parse *p, int key, uint32_t seen)
{
    switch (key) {
    case FORMAT: parse_format(p); break;
    case VERSION: parse_number(p, "version", 1); break;
    case REQUIRES: parse_requires(p); break;
    case SAVE_ID: parse_save_id(p); break;
    case BLOCK_BYTES: parse_number(p, "block_bytes", FSDPCK_BLOCK_NBYTES); break;
    case MESHES: fsdpck_index_parse_meshes(p); break;
    case FILES: fsdpck_index_parse_files(p); break;
    case TENSORS: fsdpck_index_parse_tensors(p); break;
    case ITEMS: fsdpck_index_parse_items(p); break;
    case ASSETS_FOLDER: parse_assets_folder(p, seen); break;
    case ASSETS: fsdpck_index_parse_assets(p); break;
    case STATE: parse_state(p); break;
    case BASE: fsdpck_index_parse_base(p); break;
    case METADATA: parse_metadata(p); break;
    }
}

static void check_document(struct index_parse *p, uint32_t seen)
{
    const uint32_t wanted = BIT(FORMAT) | BIT(VERSION) | BIT(SAVE_ID) | BIT(BLOCK_BYTES) | BIT(FILES) | BIT(TENSORS);
    if (!p->j.failed && (seen & wanted) != wanted)
        fsdpck_index_bad(p, "one of format, version, save_id, block_bytes, files, tensors is missing");
    if (!p->j.failed)
        fsdpck_index_check_meshes(p);
    if (!p->j.failed)
        fsdpck_index_failed(p, fsdpck_index_check_items(p));
    if (!p->j.failed)
        fsdpck_index_failed(p, fsdpck_index_check_room(p));
}

static int parse_document(struct index_parse *p, const char *text, uint64_t nbytes)
{
    uint32_t seen = 0;
    fsdpck_json_begin(&p->j, p->file, 0, text, nbytes, p->err);
    fsdpck_json_object(&p->j);
    for (int key; (key = fsdpck_index_next_field(p, keys, &seen)) >= 0;)
        parse_key(p, key, seen);
    fsdpck_json_end(&p->j);
    check_document(p, seen);
    bool ok = !p->j.failed;
    fsdpck_json_free(&p->j);
    fsdpck_names_free(&p->items);
    fsdpck_names_free(&p->assets);
    return ok ? 0 : p->err->code ? p->err->code : FSDPCK_ERR_FORMAT;
}

static int no_tail(const char *file, uint64_t nbytes, struct fsdpck_error *err)
{
    fsdpck_error_at(err, FSDPCK_ERR_DAMAGED, file, nbytes - FSDPCK_INDEX_TAIL_NBYTES,
                    "does not end with its hash: it is cut, or no index of fsdpck");
    fsdpck_error_hint(err, "if this file belongs to something else, '--from' says what the folder is");
    return FSDPCK_ERR_DAMAGED;
}

static int check_tail(const char *file, const char *text, uint64_t nbytes, struct fsdpck_error *err)
{
    struct fsdpck_hash128 want, got;
    if (nbytes < FSDPCK_INDEX_TAIL_NBYTES)
        return fsdpck_error_set(err, FSDPCK_ERR_DAMAGED, file, "%" PRIu64 " bytes are too few for an index", nbytes);
    const char *tail = text + nbytes - FSDPCK_INDEX_TAIL_NBYTES;
    char digits[33] = { 0 };
    memcpy(digits, tail + 8, 32);
    if (memcmp(tail, "\"hash\":\"", 8) != 0 || memcmp(tail + 40, "\"}\n", 3) != 0 ||
        !fsdpck_hex_parse(digits, want.bytes, 16))
        return no_tail(file, nbytes, err);
    fsdpck_hash(text, nbytes - FSDPCK_INDEX_TAIL_NBYTES, &got);
    if (!fsdpck_hash_equal(&want, &got))
        return fsdpck_error_set(err, FSDPCK_ERR_DAMAGED, file, "its bytes do not match the hash at its end");
    return 0;
}

int fsdpck_index_read(struct fsdpck_source *src, struct fsdpck_index *index, struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    char *text = NULL, *file = fsdpck_path_join(src->path, "index.json", err);
    uint64_t nbytes;
    struct index_parse p = { .src = src, .index = index, .file = file, .err = err ? err : &own };
    index->files.item_nbytes = sizeof(struct index_file);
    index->tensors.item_nbytes = sizeof(struct index_tensor);
    int rc = file ? fsdpck_read_file(src->io, file, MAX_INDEX_NBYTES, &text, &nbytes, err) : FSDPCK_ERR_NOMEM;
    if (!rc)
        rc = check_tail(file, text, nbytes, err);
    if (!rc)
        rc = parse_document(&p, text, nbytes);
    free(text);
    free(file);
    return rc;
}
