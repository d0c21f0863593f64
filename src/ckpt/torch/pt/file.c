/* SPDX-License-Identifier: Apache-2.0 */
/* Reads torch.save files, one after another, into a catalogue: their records, the tensors that view them, and the
 * values stored as items. shard.c handles DTensors. */
#include "torch/pt/file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/ioutil.h"
#include "engine/checks.h"
#include "engine/files.h"
#include "tensor/box.h"
#include "torch/pickle/dtensor_node.h"
#include "torch/zip/item.h"
#include "torch/pt/shard.h"
#include "torch/pt/value.h"
#include "torch/pt/walk.h"

#define MAX_PICKLE_NBYTES   (1u << 30)
#define MAX_VALUE_EXPANSION 8u  /* limit for the bytes of values per byte of their pickle */
#define MAX_VERSION         10u /* of torch's zip format; 3 is written */

struct pt_value {
    const uint8_t *pickle;
    uint64_t nbytes;
    bool differs; /* ranks differ, and a note was given */
};

static void note(const struct fsdpck_pt_reading *r, const char *name, const char *what)
{
    char line[512];
    if (!r->src->opt.note)
        return;
    snprintf(line, sizeof line, "%s %s", name, what);
    r->src->opt.note(r->src->opt.ctx, line);
}

/* ---- tensors ---- */

/* Adds a tensor saved whole. If every rank saves one, all should be equal. */
static int add_whole(struct fsdpck_pt_reading *r, const char *name, const struct fsdpck_key *path, uint32_t npath,
                     fsdpck_node n)
{
    struct fsdpck_tensor_node t;
    struct fsdpck_stored_box piece = { 0 };
    const struct fsdpck_zip_record *record;
    const char *why;
    uint64_t box[2 * FSDPCK_MAX_DIMS] = { 0 };
    int rc = fsdpck_tensor_node_read(r->archive.pickle, n, &t, &why);
    if (rc)
        return fsdpck_pt_fail(r, rc, name, why);
    if ((rc = fsdpck_pt_locate(r, name, &t, &piece, &record)) ||
        (rc = fsdpck_catalogue_tensor(&r->catalogue, fsdpck_pt_path(r), fsdpck_pt_rank(r), name, path, npath, t.dtype,
                                      t.ndim, t.size, &piece.tensor)))
        return rc;
    if (t.ndim)
        memcpy(box + t.ndim, t.size, t.ndim * sizeof *box);
    piece.box = box;
    if (r->rank >= 0 && fsdpck_pt_differs(r, piece.tensor, record)) {
        if (!r->per_rank)
            return fsdpck_pt_fail(
                r, FSDPCK_ERR_UNSUPPORTED, name,
                "is not the same on all ranks, and is no DTensor that says which part of it each rank has");
        note(r, name, "is not the same on all ranks: the lowest rank's is taken");
    }
    return fsdpck_catalogue_add_box(&r->catalogue, &piece);
}

int fsdpck_pt_add_tensor(void *ctx, const char *name, const struct fsdpck_key *path, uint32_t npath, fsdpck_node n)
{
    struct fsdpck_pt_reading *r = ctx;
    if (fsdpck_dtensor_node_is(r->archive.pickle, n))
        return fsdpck_pt_add_shard(r, name, path, npath, n);
    return add_whole(r, name, path, npath, n);
}

/* ---- other values ---- */

static int add_value(struct fsdpck_pt_reading *r, const char *name, const struct fsdpck_key *path, uint32_t npath,
                     const struct fsdpck_text *text)
{
    size_t old;
    struct pt_value *values = r->pt->values.data;
    if ((old = fsdpck_names_find(&r->values, name)) != SIZE_MAX) {
        if (r->rank < 0)
            return fsdpck_pt_fail(r, FSDPCK_ERR_FORMAT, name, "is listed twice");
        bool same = values[old].nbytes == text->nbytes && memcmp(values[old].pickle, text->data, text->nbytes) == 0;
        if (!same && !values[old].differs)
            note(r, name, "is not the same on all ranks: the lowest rank's is taken");
        values[old].differs |= !same;
        return 0;
    }
    char *pickle = fsdpck_arena_alloc(&r->src->arena, text->nbytes, r->err);
    struct source_item *item = pickle ? fsdpck_source_add_item(r->src, name, path, npath, r->err) : NULL;
    struct pt_value *value = item ? fsdpck_vec_push(&r->pt->values, r->err) : NULL;
    if (!value)
        return r->err->code ? r->err->code : FSDPCK_ERR_NOMEM;
    memcpy(pickle, text->data, text->nbytes);
    *value = (struct pt_value){ (uint8_t *)pickle, text->nbytes, false };
    item->file = r->file;
    item->pub.nbytes = fsdpck_item_value(value->pickle, value->nbytes, NULL);
    return fsdpck_names_add(&r->values, item->pub.name, r->src->items.count - 1, &old, r->err);
}

int fsdpck_pt_add_value(void *ctx, const char *name, const struct fsdpck_key *path, uint32_t npath, fsdpck_node n)
{
    struct fsdpck_pt_reading *r = ctx;
    struct fsdpck_text text = { 0 };
    int rc = fsdpck_pt_value(r->archive.pickle, n, r->value_nbytes, fsdpck_pt_path(r), &text, r->err);
    if (!rc) {
        r->value_nbytes -= text.nbytes < r->value_nbytes ? text.nbytes : r->value_nbytes;
        rc = add_value(r, name, path, npath, &text);
    }
    if (rc)
        fsdpck_error_tensor(r->err, name);
    fsdpck_text_free(&text);
    return rc;
}

/* ---- the file ---- */

static int check_version(struct fsdpck_pt_reading *r)
{
    const struct fsdpck_zip_record *record = fsdpck_zip_find(&r->archive.zip, "version");
    char text[8] = "";
    if (!record)
        record = fsdpck_zip_find(&r->archive.zip, ".data/version");
    if (!record)
        return 0;
    if (record->nbytes < sizeof text) {
        const struct fsdpck_extent e = { .file = r->file,
                                         .payload = record->offset,
                                         .crc = r->crcs[record - r->archive.zip.records] };
        int rc = fsdpck_files_read(r->src, r->file, text, record->nbytes, record->offset, r->err);
        if (!rc)
            rc = fsdpck_checks_bytes(r->src, FSDPCK_CHECKS_NO_TENSOR, &e, 0, text, record->nbytes, r->err);
        if (rc)
            return rc;
    }
    unsigned version = (unsigned)strtoul(text, NULL, 10);
    return version >= 1 && version <= MAX_VERSION
               ? 0
               : fsdpck_pt_fail(r, FSDPCK_ERR_UNSUPPORTED, NULL,
                                "is of a version of torch's zip format that is not known");
}

static int expect_crc(struct fsdpck_pt_reading *r, size_t i)
{
    const struct fsdpck_zip_record *record = &r->archive.zip.records[i];
    struct fsdpck_crc_record *crc = fsdpck_arena_alloc(&r->src->arena, sizeof *crc, r->err);
    if (crc)
        r->crcs[i] = fsdpck_checks_expect(r->src, crc, record->offset, record->nbytes, record->crc32);
    return crc ? 0 : FSDPCK_ERR_NOMEM;
}

/* All records lie below the folder of data.pkl. */
static int list_records(struct fsdpck_pt_reading *r)
{
    const struct fsdpck_zip *zip = &r->archive.zip;
    const char *pickle = fsdpck_zip_find(zip, "data.pkl")->name;
    size_t root = strlen(pickle) - strlen("data.pkl"), old;
    char text[400];
    r->crcs = fsdpck_arena_array(&r->src->arena, zip->nrecords, sizeof *r->crcs, r->err);
    if (!r->crcs)
        return FSDPCK_ERR_NOMEM;
    for (size_t i = 0; i < zip->nrecords; i++) {
        const char *name = zip->records[i].name;
        if (strncmp(name, pickle, root) != 0) {
            snprintf(text, sizeof text, "record '%.100s' lies outside of the folder of '%.100s'", name, pickle);
            return fsdpck_pt_fail(r, FSDPCK_ERR_FORMAT, NULL, text);
        }
        if (fsdpck_names_add(&r->records, name + root, i, &old, r->err) || expect_crc(r, i))
            return FSDPCK_ERR_NOMEM;
    }
    if (fsdpck_names_find(&r->records, "constants.pkl") != SIZE_MAX)
        return fsdpck_pt_fail(r, FSDPCK_ERR_UNSUPPORTED, NULL, "is a TorchScript program, not what torch.save writes");
    return check_version(r);
}

static bool is_zip(const uint8_t *head)
{
    return !memcmp(head, "PK\x03\x04", 4);
}
static bool is_tar(const uint8_t *head)
{
    return !memcmp(head + 257, "ustar", 5);
}

/* Returns whether the file begins with a pickle of torch's magic number. */
static bool is_legacy(const uint8_t *head)
{
    static const uint8_t magic[] = { 0x8a, 0x0a, 'l', 0xfc, 0x9c, 'F', 0xf9, ' ', 'j', 0xa8, 'P', 0x19 };
    return head[0] == 0x80 && !memcmp(head + 2, magic, sizeof magic);
}

bool fsdpck_pt_is(const uint8_t head[512])
{
    return is_zip(head) || is_tar(head) || is_legacy(head);
}

static int check_kind(struct fsdpck_pt_reading *r)
{
    uint64_t size = source_files(r->src)[r->file].pub.nbytes, n = size < 512 ? size : 512;
    uint8_t head[512] = { 0 };
    int rc = fsdpck_files_read(r->src, r->file, head, n, 0, r->err);
    if (rc || is_zip(head))
        return rc;
    bool old = is_legacy(head);
    if (!old && !is_tar(head))
        return fsdpck_pt_fail(r, FSDPCK_ERR_FORMAT, NULL, "is no zip, as torch.save writes them");
    rc = fsdpck_pt_fail(r, FSDPCK_ERR_UNSUPPORTED, NULL,
                        old ? "is in torch's format from before version 1.6 (no zip), which is not read"
                            : "is in torch's tar format of 2016, which is not read");
    fsdpck_error_hint(r->err, "let torch save it again: torch.save(torch.load(FILE, map_location='cpu'), NEW_FILE)");
    return rc;
}

int fsdpck_pt_add_tree(struct fsdpck_pt_reading *r, fsdpck_node root, const char *tree)
{
    const struct fsdpck_pt_walk walk = { .p = r->archive.pickle,
                                         .file = fsdpck_pt_path(r),
                                         .nbytes = fsdpck_zip_find(&r->archive.zip, "data.pkl")->nbytes,
                                         .root = root,
                                         .tree = tree,
                                         .tensor = fsdpck_pt_add_tensor,
                                         .value = fsdpck_pt_add_value,
                                         .ctx = r,
                                         .err = r->err };
    return fsdpck_pt_walk(&walk);
}

int fsdpck_pt_file_open(struct fsdpck_pt_reading *r, const char *path, const char *name,
                        const struct fsdpck_pt_rank_file *role)
{
    const struct fsdpck_archive_terms terms = { .allowed = r->allowed,
                                                .max_nbytes = MAX_PICKLE_NBYTES,
                                                .check_crc = !r->src->opt.no_verify };
    int rc = fsdpck_source_add_file(r->src, path, name, role ? role->rank : -1, &r->file, r->err);
    if (rc)
        return rc;
    uint64_t nbytes = source_files(r->src)[r->file].pub.nbytes;
    r->rank = role ? role->rank : -1;
    r->nranks = role ? role->nranks : 0;
    r->tree = role ? role->tree : NULL;
    r->per_rank = role && role->per_rank;
    r->mesh.node = FSDPCK_NO_NODE;
    r->file_nbytes += nbytes;
    if ((rc = check_kind(r)) || (rc = fsdpck_archive_open(r->src, r->file, 0, nbytes, &terms, &r->archive, r->err)))
        return rc;
    r->value_nbytes = MAX_VALUE_EXPANSION * fsdpck_zip_find(&r->archive.zip, "data.pkl")->nbytes + 65536;
    if ((rc = list_records(r)))
        fsdpck_pt_file_close(r);
    return rc;
}

void fsdpck_pt_file_close(struct fsdpck_pt_reading *r)
{
    fsdpck_names_free(&r->records);
    fsdpck_archive_free(&r->archive);
}

int fsdpck_pt_read(struct fsdpck_pt_reading *r, const char *path, const char *name,
                   const struct fsdpck_pt_rank_file *role)
{
    int rc = fsdpck_pt_file_open(r, path, name, role);
    if (rc)
        return rc;
    rc = fsdpck_pt_add_tree(r, fsdpck_pickle_root(r->archive.pickle), r->tree);
    fsdpck_pt_file_close(r);
    return rc;
}

/* ---- the reading ---- */

int fsdpck_pt_begin(struct fsdpck_pt_reading *r, struct fsdpck_source *src, struct fsdpck_error *err)
{
    struct fsdpck_pt *pt = calloc(1, sizeof *pt);
    *r = (struct fsdpck_pt_reading){
        .src = src, .pt = pt, .err = err, .allowed = fsdpck_pt_names, .plain = FSDPCK_VEC(struct fsdpck_pt_plain)
    };
    if (!pt)
        return fsdpck_error_nomem(err, sizeof *pt);
    pthread_mutex_init(&pt->dcp.lock, NULL);
    pt->values = (struct fsdpck_vec)FSDPCK_VEC(struct pt_value);
    src->impl = pt;
    fsdpck_catalogue_begin(&r->catalogue, src, &pt->dcp, err);
    return 0;
}

int fsdpck_pt_finish(struct fsdpck_pt_reading *r)
{
    int rc = fsdpck_catalogue_finish(&r->catalogue, r->src->path);
    if (rc || r->src->tensors.count)
        return rc;
    return fsdpck_error_set(r->err, FSDPCK_ERR_FORMAT, r->src->path, "holds no tensor");
}

void fsdpck_pt_end(struct fsdpck_pt_reading *r)
{
    fsdpck_names_free(&r->values);
    fsdpck_vec_free(&r->plain);
    fsdpck_catalogue_free(&r->catalogue);
}

/* ---- the source ---- */

int fsdpck_pt_read_item(struct fsdpck_source *src, size_t item, void *buf, uint64_t nbytes, uint64_t at,
                        struct fsdpck_error *err)
{
    const struct pt_value *value = (const struct pt_value *)((const struct fsdpck_pt *)src->impl)->values.data + item;
    uint64_t total = source_items(src)[item].pub.nbytes;
    uint8_t *zip = malloc(total);
    if (!zip)
        return fsdpck_error_nomem(err, total);
    fsdpck_item_value(value->pickle, value->nbytes, zip);
    memcpy(buf, zip + at, nbytes);
    free(zip);
    return 0;
}

void fsdpck_pt_close(struct fsdpck_source *src)
{
    struct fsdpck_pt *pt = src->impl;
    if (!pt)
        return;
    fsdpck_vec_free(&pt->values);
    fsdpck_dcp_close(src); /* frees impl: struct fsdpck_pt begins with a struct dcp */
}
