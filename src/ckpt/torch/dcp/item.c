/* SPDX-License-Identifier: Apache-2.0 */
/* Reads one item of a .distcp file: a torch.save zip with one tensor. Finds the location of the elements and checks the
 * tensor against .metadata. It does not know other items. */
#include "torch/dcp/dcp.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "tensor/box.h"
#include "torch/zip/archive.h"
#include "torch/pickle/tensor_node.h"
#include "torch/pickle/torch_names.h"

#define MAX_PICKLE_NBYTES (1u << 20) /* limit for one tensor's data.pkl; usual ones have 150 bytes */

static const char *const allowed[] = {
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_tensor_v3",
    "torch._utils _rebuild_parameter",
    "collections OrderedDict",
    "torch.storage UntypedStorage",
    FSDPCK_TORCH_STORAGES,
    FSDPCK_TORCH_DTYPES,
    NULL,
};

struct item_check {
    const struct fsdpck_tensor *t;
    const uint64_t *size; /* the chunk's */
    const char *file;
    uint64_t item;
    struct fsdpck_error *err;
};

#define FAIL(l, code, ...) fsdpck_error_at((l)->err, code, (l)->file, (l)->item, __VA_ARGS__)

static int check_kind(struct item_check *l, const struct fsdpck_tensor_node *s)
{
    char have[128], want[128];
    if (s->dtype != l->t->dtype)
        return FAIL(l, FSDPCK_ERR_FORMAT, "the item holds %s, .metadata says %s", fsdpck_dtype_info(s->dtype)->name,
                    fsdpck_dtype_info(l->t->dtype)->name);
    if (s->ndim != l->t->ndim || (s->ndim && memcmp(s->size, l->size, s->ndim * sizeof *s->size) != 0))
        return FAIL(l, FSDPCK_ERR_FORMAT, "the item holds a tensor of shape %s, .metadata says %s",
                    fsdpck_format_dims(have, sizeof have, s->size, s->ndim),
                    fsdpck_format_dims(want, sizeof want, l->size, l->t->ndim));
    return 0;
}

static int locate_payload(struct item_check *l, const struct fsdpck_zip *zip, const struct fsdpck_tensor_node *s,
                          struct dcp_payload *out)
{
    char name[300];
    uint64_t item_nbytes = fsdpck_dtype_info(s->dtype)->nbytes, nbytes;
    snprintf(name, sizeof name, "data/%s", s->key);
    const struct fsdpck_zip_record *record = fsdpck_zip_find(zip, name);
    if (!record)
        return FAIL(l, FSDPCK_ERR_MISSING, "the item has no record '%s'", name);
    if (!checked_mul(s->storage_nelem, item_nbytes, &nbytes) || nbytes > record->nbytes)
        return FAIL(l, FSDPCK_ERR_FORMAT,
                    "a storage of %" PRIu64 " elements of %" PRIu64 " bytes, its record '%s' has %" PRIu64 " bytes",
                    s->storage_nelem, item_nbytes, name, record->nbytes);
    if (!fsdpck_tensor_node_inside(s))
        return FAIL(l, FSDPCK_ERR_FORMAT, "the tensor reaches beyond its storage of %" PRIu64 " elements",
                    s->storage_nelem);
    out->payload = record->offset + s->first * item_nbytes;
    out->record = record->offset;
    out->record_nbytes = record->nbytes;
    out->crc32 = record->crc32;
    out->dense = fsdpck_tensor_node_is_dense(s);
    memcpy(out->strides, s->strides, s->ndim * sizeof *s->strides);
    return 0;
}

/* torch saves only the tensor's part of a storage, so a packed item is little larger than its chunk. */
static int open_item(struct fsdpck_source *src, const struct fsdpck_tensor *t, const struct dcp_chunk *chunk,
                     const uint64_t *size, struct fsdpck_archive *out, struct fsdpck_error *err)
{
    const struct fsdpck_archive_terms terms = { .allowed = allowed,
                                                .max_nbytes = MAX_PICKLE_NBYTES,
                                                .check_crc = !src->opt.no_verify };
    const struct fsdpck_zstream_range range = { .file = chunk->file,
                                                .offset = chunk->item,
                                                .nbytes = chunk->item_nbytes };
    struct fsdpck_packed packed;
    if (!(atomic_load(&chunk->state) & DCP_PACKED))
        return fsdpck_archive_open(src, chunk->file, chunk->item, chunk->item_nbytes, &terms, out, err);
    int rc = fsdpck_packed_open(src, &range, fsdpck_dcp_packed_max(t, size), &packed, err);
    if (!rc)
        rc = fsdpck_archive_open_packed(&packed, source_files(src)[chunk->file].path, &terms, out, err);
    fsdpck_packed_free(&packed);
    return rc;
}

uint64_t fsdpck_dcp_packed_max(const struct fsdpck_tensor *t, const uint64_t *size)
{
    /* at most the tensor's size, so it does not overflow */
    uint64_t nbytes = fsdpck_box_nelem(size, t->ndim) * fsdpck_dtype_info(t->dtype)->nbytes;
    return nbytes < UINT64_MAX - FSDPCK_PACKED_ENVELOPE_NBYTES ? nbytes + FSDPCK_PACKED_ENVELOPE_NBYTES : UINT64_MAX;
}

int fsdpck_dcp_find_payload(struct fsdpck_source *src, const struct fsdpck_tensor *t, const struct dcp_chunk *chunk,
                            const uint64_t *size, struct dcp_payload *out, struct fsdpck_error *err)
{
    struct item_check l = {
        .t = t, .size = size, .file = source_files(src)[chunk->file].path, .item = chunk->item, .err = err
    };
    struct fsdpck_archive archive;
    struct fsdpck_tensor_node saved;
    const char *why;
    *out = (struct dcp_payload){ 0 };
    int rc = open_item(src, t, chunk, size, &archive, err);
    if (!rc) {
        if ((rc = fsdpck_tensor_node_read(archive.pickle, fsdpck_pickle_root(archive.pickle), &saved, &why)))
            FAIL(&l, rc, "%s", why);
        else if (!(rc = check_kind(&l, &saved)))
            rc = locate_payload(&l, &archive.zip, &saved, out);
        out->swap = archive.swap;
        fsdpck_archive_free(&archive);
    }
    if (rc)
        fsdpck_error_tensor(err, t->name);
    return rc;
}
