/* SPDX-License-Identifier: Apache-2.0 */
/* Locates an item by .metadata: file, offset, length, and how its bytes are encoded. Opens no file. */
#include "torch/dcp/reading.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/ioutil.h"

#define MAX_RANK 0xffffffffull

/* R of "__R_N.distcp", -1 for other names. */
static int64_t rank_of(const char *path)
{
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    uint64_t number[2] = { 0, 0 };
    if (strncmp(name, "__", 2) != 0)
        return -1;
    name += 2;
    for (int i = 0; i < 2; i++) {
        const char *begin = name;
        for (; *name >= '0' && *name <= '9' && number[i] <= MAX_RANK; name++)
            number[i] = number[i] * 10 + (uint64_t)(*name - '0');
        if (name == begin || number[i] > MAX_RANK || (i == 0 && *name++ != '_'))
            return -1;
    }
    return strcmp(name, ".distcp") ? -1 : (int64_t)number[0];
}

static int find_file(struct dcp_reading *r, const char *name, const char *path, uint32_t *ordinal)
{
    size_t old = fsdpck_names_find(&r->files, path);
    if (old != SIZE_MAX) {
        *ordinal = (uint32_t)old;
        return 0;
    }
    if (!fsdpck_path_is_plain(path))
        return fsdpck_dcp_fail(r, FSDPCK_ERR_FORMAT, name, "its file '%s' is not a plain relative path", path);
    char *below = fsdpck_path_join(r->folder, path, r->err),
         *full = below ? fsdpck_path_join(r->src->path, below, r->err) : NULL;
    int rc = full ? fsdpck_source_add_file(r->src, full, below, rank_of(path), ordinal, r->err) : FSDPCK_ERR_NOMEM;
    free(below);
    free(full);
    if (rc) {
        fsdpck_error_tensor(r->err, name);
        return rc;
    }
    const struct fsdpck_file *file = &source_files(r->src)[*ordinal].pub;
    if (file->rank >= 0 && (uint64_t)file->rank >= r->src->nranks)
        r->src->nranks = (uint64_t)file->rank + 1;
    const char *key = *r->folder ? file->name + strlen(r->folder) + 1 : file->name;
    return fsdpck_names_add(&r->files, key, *ordinal, &old, r->err);
}

/* torch's own extension; torch accepts any version that begins with "1". */
static bool is_zstd(const char *descriptor)
{
    static const char name[] = "stream.zstd/1";
    return descriptor && !strncmp(descriptor, name, sizeof name - 1) &&
           (!descriptor[sizeof name - 1] || descriptor[sizeof name - 1] == '.');
}

static int read_transforms(const struct dcp_reading *r, const char *name, fsdpck_node info, bool *packed)
{
    *packed = false;
    fsdpck_node list = fsdpck_dcp_attribute(r, info, "transform_descriptors");
    if (list == FSDPCK_NO_NODE || fsdpck_pickle_type(r->p, list) == FSDPCK_PICKLE_NONE)
        return 0;
    if (fsdpck_pickle_type(r->p, list) != FSDPCK_PICKLE_LIST)
        return fsdpck_dcp_fail(r, FSDPCK_ERR_FORMAT, name, "its transform_descriptors are no list");
    size_t count = fsdpck_pickle_count(r->p, list);
    if (!count)
        return 0;
    const char *last = fsdpck_dcp_text(r, fsdpck_pickle_child(r->p, list, count - 1));
    *packed = count == 1 && is_zstd(last);
    if (*packed)
        return 0;
    const char *strange = count > 1 && is_zstd(last) ? fsdpck_dcp_text(r, fsdpck_pickle_child(r->p, list, 0)) : last;
    int rc =
        fsdpck_dcp_fail(r, FSDPCK_ERR_UNSUPPORTED, name,
                        "its item was transformed with '%s' when it was saved; only 'stream.zstd/1', once, is read",
                        strange ? strange : "?");
    fsdpck_error_hint(r->err, "save it again without storage extensions");
    return rc;
}

int fsdpck_dcp_read_location(struct dcp_reading *r, const char *name, fsdpck_node info, struct dcp_item_location *out)
{
    const char *path = fsdpck_dcp_text(r, fsdpck_dcp_attribute(r, info, "relative_path"));
    int64_t offset, nbytes;
    uint64_t end;
    if (!fsdpck_dcp_is_a(r, info, "_StorageInfo") || !path ||
        !fsdpck_pickle_int(r->p, fsdpck_dcp_attribute(r, info, "offset"), &offset) || offset < 0 ||
        !fsdpck_pickle_int(r->p, fsdpck_dcp_attribute(r, info, "length"), &nbytes) || nbytes < 0)
        return fsdpck_dcp_fail(r, FSDPCK_ERR_FORMAT, name,
                               "its entry in storage_data names no file, offset and length");
    int rc = read_transforms(r, name, info, &out->packed);
    if (rc || (rc = find_file(r, name, path, &out->file)))
        return rc;
    const struct source_file *file = &source_files(r->src)[out->file];
    r->src->streamed |= out->packed;
    out->offset = (uint64_t)offset;
    out->nbytes = (uint64_t)nbytes;
    if (checked_add(out->offset, out->nbytes, &end) && end <= file->pub.nbytes)
        return 0;
    rc = fsdpck_error_at(r->err, FSDPCK_ERR_MISSING, file->path, out->offset,
                         "the file ends at %" PRIu64 ", .metadata has an item of %" PRIu64 " bytes at %" PRIu64,
                         file->pub.nbytes, out->nbytes, out->offset);
    fsdpck_error_tensor(r->err, name);
    return rc;
}
