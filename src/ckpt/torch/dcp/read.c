/* SPDX-License-Identifier: Apache-2.0 */
/* Turns the pickle of .metadata into the catalogue: tensors, items, files. Checks every statement; opens no file. */
#include "torch/dcp/reading.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "torch/catalogue.h"
#include "torch/dcp/ranks.h"

/* Reads the nested keys of a name from planner_data. *path: NULL if the name is the only key; in the scratch arena. */
static int read_path(struct dcp_reading *r, const struct dcp_entry *e, const char *name, struct fsdpck_key **path,
                     uint32_t *npath)
{
    size_t count = fsdpck_pickle_count(r->p, e->path);
    *path = NULL;
    *npath = 0;
    if (e->path == FSDPCK_NO_NODE || fsdpck_pickle_type(r->p, e->path) == FSDPCK_PICKLE_NONE)
        return 0;
    if (fsdpck_pickle_type(r->p, e->path) != FSDPCK_PICKLE_TUPLE || count == 0 || count > 1000)
        return fsdpck_dcp_fail(r, FSDPCK_ERR_FORMAT, name, "planner_data gives no tuple of keys for it");
    struct fsdpck_key *keys = fsdpck_arena_array(&r->scratch, count, sizeof *keys, r->err);
    if (!keys)
        return FSDPCK_ERR_NOMEM;
    for (size_t i = 0; i < count; i++) {
        fsdpck_node key = fsdpck_pickle_child(r->p, e->path, i);
        int64_t position = 0;
        keys[i].str = fsdpck_dcp_text(r, key);
        if (!keys[i].str && (fsdpck_pickle_type(r->p, key) != FSDPCK_PICKLE_INT ||
                             !fsdpck_pickle_int(r->p, key, &position) || position < 0))
            return fsdpck_dcp_fail(r, FSDPCK_ERR_FORMAT, name, "key %zu of its path is neither a string nor a position",
                                   i);
        keys[i].position = (uint64_t)position;
    }
    *path = keys;
    *npath = (uint32_t)count;
    return 0;
}

/* TensorProperties: (dtype, layout, requires_grad, memory format, pin_memory[, strides]). */
static int read_properties(struct dcp_reading *r, const char *name, fsdpck_node tensor, enum fsdpck_dtype *dtype)
{
    fsdpck_node properties = fsdpck_dcp_attribute(r, tensor, "properties"),
                state = fsdpck_pickle_state(r->p, properties);
    fsdpck_node layout = fsdpck_pickle_child(r->p, state, 1);
    size_t count = fsdpck_pickle_count(r->p, state);
    if (!fsdpck_dcp_is_a(r, properties, "TensorProperties") || fsdpck_pickle_type(r->p, state) != FSDPCK_PICKLE_TUPLE ||
        (count != 5 && count != 6))
        return fsdpck_dcp_fail(r, FSDPCK_ERR_FORMAT, name, "its properties are not the 5 or 6 values that torch saves");
    if (!fsdpck_node_dtype(r->p, fsdpck_pickle_child(r->p, state, 0), dtype))
        return fsdpck_dcp_fail(r, FSDPCK_ERR_FORMAT, name, "its properties begin with no dtype");
    const char *kind = fsdpck_pickle_made_by(r->p, layout, "torch.serialization _get_layout")
                           ? fsdpck_dcp_text(r, fsdpck_pickle_child(r->p, fsdpck_pickle_child(r->p, layout, 1), 0))
                           : NULL;
    if (!kind || strcmp(kind, "torch.strided") != 0)
        return fsdpck_dcp_fail(r, FSDPCK_ERR_UNSUPPORTED, name, "its layout is '%s'; only torch.strided is read",
                               kind ? kind : "?");
    return 0;
}

/* Returns whether `t` (with chunks d) is stored exactly where tensor `ordinal` is. */
static bool is_same(const struct dcp_reading *r, size_t ordinal, enum fsdpck_dtype dtype, uint32_t ndim,
                    const uint64_t *shape, const struct dcp_tensor *d)
{
    const struct fsdpck_tensor *t = &source_tensors(r->src)[ordinal];
    const struct dcp_tensor *o = &((const struct dcp_tensor *)r->tensors.data)[ordinal];
    if (t->dtype != dtype || t->ndim != ndim || o->nchunks != d->nchunks)
        return false;
    if (ndim && (memcmp(t->shape, shape, ndim * sizeof *shape) ||
                 memcmp(o->boxes, d->boxes, d->nchunks * 2 * ndim * sizeof *shape)))
        return false;
    for (uint64_t i = 0; i < d->nchunks; i++)
        if (o->chunks[i].file != d->chunks[i].file || o->chunks[i].item != d->chunks[i].item)
            return false;
    return true;
}

/* Finds the tensor that stores the same bytes as d; *target is SIZE_MAX if there is none. */
static int find_alias(struct dcp_reading *r, enum fsdpck_dtype dtype, uint32_t ndim, const uint64_t *shape,
                      const struct dcp_tensor *d, size_t *target)
{
    char key[64];
    *target = SIZE_MAX;
    if (!d->nchunks)
        return 0;
    snprintf(key, sizeof key, "%" PRIu32 "@%" PRIu64, d->chunks[0].file, d->chunks[0].item);
    size_t old = fsdpck_names_find(&r->locations, key);
    if (old != SIZE_MAX) {
        *target = is_same(r, old, dtype, ndim, shape, d) ? old : SIZE_MAX;
        return 0;
    }
    char *copy = fsdpck_arena_strndup(&r->scratch, key, strlen(key), r->err);
    return copy ? fsdpck_names_add(&r->locations, copy, r->src->tensors.count, &old, r->err) : FSDPCK_ERR_NOMEM;
}

static int read_tensor(struct dcp_reading *r, const struct dcp_entry *e, const char *name,
                       const struct fsdpck_key *path, uint32_t npath)
{
    enum fsdpck_dtype dtype;
    uint64_t shape[FSDPCK_MAX_DIMS], nelem, nbytes;
    uint32_t ndim;
    struct dcp_tensor found = { 0 };
    size_t target;
    int rc = read_properties(r, name, e->value, &dtype);
    if (rc)
        return rc;
    if (!fsdpck_node_dims(r->p, fsdpck_dcp_attribute(r, e->value, "size"), &ndim, shape))
        return fsdpck_dcp_fail(r, FSDPCK_ERR_FORMAT, name, "its size is not a list of at most %d integers",
                               FSDPCK_MAX_DIMS);
    if (!checked_shape(shape, ndim, fsdpck_dtype_info(dtype)->nbytes, &nelem, &nbytes))
        return fsdpck_dcp_fail(r, FSDPCK_ERR_FORMAT, name, "the product of its shape overflows");
    if ((rc = fsdpck_dcp_read_chunks(r, e, name, ndim, shape, &found)))
        return rc;
    if (r->catalogue)
        return fsdpck_dcp_rank_tensor(r, name, path, npath, dtype, ndim, shape, &found);
    if ((rc = find_alias(r, dtype, ndim, shape, &found, &target)))
        return rc;
    struct dcp_tensor *d = fsdpck_vec_push(&r->tensors, r->err);
    if (!d)
        return FSDPCK_ERR_NOMEM;
    if (target != SIZE_MAX)
        return fsdpck_source_add_alias(r->src, r->file, name, path, npath, target, r->err);
    *d = found;
    return fsdpck_source_add_tensor(r->src, r->file, name, path, npath, dtype, ndim, shape, r->err) ? 0 : r->err->code;
}

static int read_item(struct dcp_reading *r, const struct dcp_entry *e, const char *name, const struct fsdpck_key *path,
                     uint32_t npath)
{
    struct dcp_item_location location;
    if (e->nstored != 1)
        return fsdpck_dcp_fail(r, e->nstored ? FSDPCK_ERR_FORMAT : FSDPCK_ERR_MISSING, name,
                               "storage_data has %" PRIu64 " entries for it, one is wanted", e->nstored);
    fsdpck_node info = fsdpck_pickle_child(r->p, r->storage, 2 * (size_t)r->stored[e->first_stored] + 1);
    int rc = fsdpck_dcp_read_location(r, name, info, &location);
    if (rc)
        return rc;
    if (r->catalogue && fsdpck_dcp_rank_item(r, name, &location))
        return 0;
    struct source_item *item = fsdpck_source_add_item(r->src, name, path, npath, r->err);
    if (!item)
        return r->err->code;
    item->file = location.file;
    item->offset = location.offset;
    item->pub.nbytes = location.nbytes;
    item->stream_nbytes = location.packed ? location.nbytes : 0; /* pub.nbytes is set after everything was read */
    size_t old;
    return r->catalogue ? fsdpck_names_add(&r->catalogue->items, item->pub.name, r->src->items.count - 1, &old, r->err)
                        : 0;
}

static int read_entry(struct dcp_reading *r, const struct dcp_entry *e)
{
    const char *name = fsdpck_pickle_text(r->p, e->name, NULL);
    struct fsdpck_key *path;
    uint32_t npath;
    int rc = read_path(r, e, name, &path, &npath);
    if (rc)
        return rc;
    if (fsdpck_dcp_is_a(r, e->value, "TensorStorageMetadata"))
        return read_tensor(r, e, name, path, npath);
    if (fsdpck_dcp_is_a(r, e->value, "BytesStorageMetadata"))
        return read_item(r, e, name, path, npath);
    return fsdpck_dcp_fail(r, FSDPCK_ERR_FORMAT, name, "is neither a tensor nor bytes in state_dict_metadata");
}

/* ---- the tables ---- */

static int list_entries(struct dcp_reading *r, fsdpck_node dict)
{
    if (fsdpck_pickle_type(r->p, dict) != FSDPCK_PICKLE_DICT)
        return fsdpck_dcp_fail(r, FSDPCK_ERR_FORMAT, NULL, "state_dict_metadata is no dict");
    r->nentries = fsdpck_pickle_count(r->p, dict) / 2;
    r->entries = calloc(r->nentries + 1, sizeof *r->entries);
    if (!r->entries)
        return fsdpck_error_nomem(r->err, r->nentries * sizeof *r->entries);
    for (size_t i = 0; i < r->nentries; i++) {
        struct dcp_entry *e = &r->entries[i];
        size_t old;
        e->name = fsdpck_pickle_child(r->p, dict, 2 * i);
        e->value = fsdpck_pickle_child(r->p, dict, 2 * i + 1);
        e->path = FSDPCK_NO_NODE;
        const char *name = fsdpck_dcp_text(r, e->name);
        if (!name)
            return fsdpck_dcp_fail(r, FSDPCK_ERR_FORMAT, NULL, "key %zu of state_dict_metadata is no usable name", i);
        if (fsdpck_names_add(&r->names, name, i, &old, r->err))
            return FSDPCK_ERR_NOMEM;
        if (old != SIZE_MAX)
            return fsdpck_dcp_fail(r, FSDPCK_ERR_FORMAT, name, "is listed twice in state_dict_metadata");
    }
    return 0;
}

static int list_paths(struct dcp_reading *r, fsdpck_node dict)
{
    if (dict == FSDPCK_NO_NODE || fsdpck_pickle_type(r->p, dict) == FSDPCK_PICKLE_NONE)
        return 0;
    if (fsdpck_pickle_type(r->p, dict) != FSDPCK_PICKLE_DICT)
        return fsdpck_dcp_fail(r, FSDPCK_ERR_UNSUPPORTED, NULL,
                               "planner_data is not the dict that torch's own planner writes");
    for (size_t i = 0; i + 1 < fsdpck_pickle_count(r->p, dict); i += 2) {
        const char *name = fsdpck_dcp_text(r, fsdpck_pickle_child(r->p, dict, i));
        size_t e = name ? fsdpck_names_find(&r->names, name) : SIZE_MAX;
        if (e != SIZE_MAX)
            r->entries[e].path = fsdpck_pickle_child(r->p, dict, i + 1);
    }
    return 0;
}

/* Returns the entry of a key of storage_data; SIZE_MAX for names that state_dict_metadata lacks, because no reader can
 * ask for those. */
static size_t entry_of(const struct dcp_reading *r, size_t i)
{
    fsdpck_node index = fsdpck_pickle_child(r->p, r->storage, 2 * i);
    const char *name =
        fsdpck_dcp_is_a(r, index, "MetadataIndex") ? fsdpck_dcp_text(r, fsdpck_dcp_attribute(r, index, "fqn")) : NULL;
    return name ? fsdpck_names_find(&r->names, name) : SIZE_MAX;
}

/* Groups storage_data by name: counts first, then positions. */
static int list_storage(struct dcp_reading *r, fsdpck_node dict)
{
    if (fsdpck_pickle_type(r->p, dict) != FSDPCK_PICKLE_DICT)
        return fsdpck_dcp_fail(r, FSDPCK_ERR_FORMAT, NULL, "storage_data is no dict");
    size_t count = fsdpck_pickle_count(r->p, dict) / 2;
    uint64_t at = 0;
    r->storage = dict;
    r->stored = calloc(count + 1, sizeof *r->stored);
    if (!r->stored)
        return fsdpck_error_nomem(r->err, count * sizeof *r->stored);
    for (size_t i = 0; i < count; i++) {
        size_t e = entry_of(r, i);
        if (e != SIZE_MAX)
            r->entries[e].nstored++;
    }
    for (size_t e = 0; e < r->nentries; e++) {
        r->entries[e].first_stored = at;
        at += r->entries[e].nstored;
        r->entries[e].nstored = 0;
    }
    for (size_t i = 0; i < count; i++) {
        size_t e = entry_of(r, i);
        if (e != SIZE_MAX)
            r->stored[r->entries[e].first_stored + r->entries[e].nstored++] = i;
    }
    return 0;
}

/* Megatron-core up to 0.15 may split an optimizer's state along its flattened elements. Such a tensor has an artificial
 * shape, [pieces …, elements of one]; mcore_data has the true shape. These tensors are skipped. */
static void skip_reshaped(struct dcp_reading *r, fsdpck_node dict)
{
    const char *first = NULL;
    char line[600];
    size_t n = 0, count = fsdpck_pickle_type(r->p, dict) == FSDPCK_PICKLE_DICT ? fsdpck_pickle_count(r->p, dict) : 0;
    for (size_t i = 0; i + 1 < count; i += 2) {
        fsdpck_node shape =
            fsdpck_pickle_get(r->p, fsdpck_pickle_child(r->p, dict, i + 1), "nd_reformulated_orig_global_shape");
        const char *name = fsdpck_dcp_text(r, fsdpck_pickle_child(r->p, dict, i));
        size_t e = name && shape != FSDPCK_NO_NODE && fsdpck_pickle_type(r->p, shape) != FSDPCK_PICKLE_NONE
                       ? fsdpck_names_find(&r->names, name)
                       : SIZE_MAX;
        if (e == SIZE_MAX || r->entries[e].reshaped)
            continue;
        r->entries[e].reshaped = true;
        first = first ? first : name;
        n++;
    }
    snprintf(line, sizeof line,
             "%zu tensor%s of Megatron's optimizer, '%.300s' the first, left out: cut along flattened elements, which "
             "is not supported",
             n, fsdpck_plural(n), first ? first : "");
    if (n && r->src->opt.note)
        r->src->opt.note(r->src->opt.ctx, line);
}

static int read_all(struct dcp_reading *r)
{
    fsdpck_node root = fsdpck_pickle_root(r->p), version = fsdpck_dcp_attribute(r, root, "version");
    if (!fsdpck_dcp_is_a(r, root, "Metadata") && !fsdpck_dcp_is_a(r, root, "MCoreMetadata"))
        return fsdpck_dcp_fail(r, FSDPCK_ERR_FORMAT, NULL, "is not the Metadata of a PyTorch distributed checkpoint");
    const char *text = fsdpck_dcp_text(r, version);
    if (fsdpck_pickle_type(r->p, version) != FSDPCK_PICKLE_NONE && (!text || strcmp(text, "1.0.0") != 0))
        return fsdpck_dcp_fail(r, FSDPCK_ERR_UNSUPPORTED, NULL,
                               "is of version '%s'; 1.0.0 and older ones without version are read", text ? text : "?");
    int rc = list_entries(r, fsdpck_dcp_attribute(r, root, "state_dict_metadata"));
    if (!rc)
        rc = list_paths(r, fsdpck_dcp_attribute(r, root, "planner_data"));
    if (!rc)
        rc = list_storage(r, fsdpck_dcp_attribute(r, root, "storage_data"));
    if (!rc)
        skip_reshaped(r, fsdpck_dcp_attribute(r, root, "mcore_data"));
    for (size_t i = 0; !rc && i < r->nentries; i++)
        rc = r->entries[i].reshaped ? 0 : read_entry(r, &r->entries[i]);
    if (rc || r->catalogue)
        return rc;
    r->dcp->tensors = fsdpck_arena_array(&r->src->arena, r->tensors.count, sizeof *r->dcp->tensors, r->err);
    if (!r->dcp->tensors)
        return FSDPCK_ERR_NOMEM;
    if (r->tensors.count)
        memcpy(r->dcp->tensors, r->tensors.data, r->tensors.count * sizeof *r->dcp->tensors);
    return 0;
}

/* Copies the tensors of earlier documents, so that they keep their ordinals. */
static int keep_earlier(struct dcp_reading *r)
{
    for (size_t i = 0; i < r->src->tensors.count; i++) {
        struct dcp_tensor *t = fsdpck_vec_push(&r->tensors, r->err);
        if (!t)
            return FSDPCK_ERR_NOMEM;
        *t = r->dcp->tensors[i];
    }
    return 0;
}

int fsdpck_dcp_read(struct fsdpck_source *src, struct dcp *dcp, const struct fsdpck_dcp_document *doc,
                    const struct fsdpck_pickle *p, uint64_t nbytes, struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    struct dcp_reading r = { .src = src,
                             .dcp = dcp,
                             .folder = doc->folder,
                             .catalogue = doc->catalogue,
                             .rank = doc->rank,
                             .file = doc->file,
                             .p = p,
                             .err = err ? err : &own,
                             .storage = FSDPCK_NO_NODE,
                             .tensors = FSDPCK_VEC(struct dcp_tensor),
                             .budget = 2 * nbytes };
    int rc = keep_earlier(&r);
    if (!rc)
        rc = read_all(&r);
    free(r.entries);
    free(r.stored);
    fsdpck_names_free(&r.names);
    fsdpck_names_free(&r.files);
    fsdpck_names_free(&r.locations);
    fsdpck_arena_free(&r.scratch);
    fsdpck_vec_free(&r.tensors);
    return rc;
}
