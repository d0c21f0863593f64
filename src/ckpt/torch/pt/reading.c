/* SPDX-License-Identifier: Apache-2.0 */
/* The current file, the location of a tensor's bytes in it, and error reporting. */
#include "torch/pt/reading.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/checked.h"

/* Views share storage, so tensors may be larger than their file: slightly in torch's own saves of a model; without
 * limit by stride 0. */
#define MAX_EXPANSION         8u
#define FREE_EXPANSION_NBYTES (1ull << 30)

const char *fsdpck_pt_path(const struct fsdpck_pt_reading *r)
{
    return source_files(r->src)[r->file].path;
}

int fsdpck_pt_fail(struct fsdpck_pt_reading *r, int code, const char *name, const char *what)
{
    fsdpck_error_set(r->err, code, fsdpck_pt_path(r), "%s", what);
    if (name)
        fsdpck_error_tensor(r->err, name);
    return r->err->code;
}

int fsdpck_pt_locate(struct fsdpck_pt_reading *r, const char *name, const struct fsdpck_tensor_node *t,
                     struct fsdpck_stored_box *out, const struct fsdpck_zip_record **record)
{
    char key[300], text[512];
    uint64_t item_nbytes = fsdpck_dtype_info(t->dtype)->nbytes, nbytes, nelem;
    snprintf(key, sizeof key, "data/%s", t->key);
    size_t i = fsdpck_names_find(&r->records, key);
    if (i == SIZE_MAX) {
        snprintf(text, sizeof text, "its storage is record '%s', which the zip does not have", key);
        return fsdpck_pt_fail(r, FSDPCK_ERR_MISSING, name, text);
    }
    *record = &r->archive.zip.records[i];
    if (!checked_mul(t->storage_nelem, item_nbytes, &nbytes) || nbytes > (*record)->nbytes) {
        snprintf(text, sizeof text,
                 "its storage has %" PRIu64 " elements of %" PRIu64 " bytes, but record '%s' has %" PRIu64 " bytes",
                 t->storage_nelem, item_nbytes, key, (*record)->nbytes);
        return fsdpck_pt_fail(r, FSDPCK_ERR_FORMAT, name, text);
    }
    if (!fsdpck_tensor_node_inside(t)) {
        snprintf(text, sizeof text, "reaches beyond its storage of %" PRIu64 " elements", t->storage_nelem);
        return fsdpck_pt_fail(r, FSDPCK_ERR_FORMAT, name, text);
    }
    if (!checked_shape(t->size, t->ndim, item_nbytes, &nelem, &nbytes))
        return fsdpck_pt_fail(r, FSDPCK_ERR_FORMAT, name, "the product of its shape overflows");
    if (!checked_add(r->tensor_nbytes, nbytes, &r->tensor_nbytes) ||
        r->tensor_nbytes > MAX_EXPANSION * r->file_nbytes + FREE_EXPANSION_NBYTES) {
        snprintf(text, sizeof text,
                 "the views up to it add up to %" PRIu64 " bytes, out of %" PRIu64 " in the file: too many",
                 r->tensor_nbytes, r->file_nbytes);
        return fsdpck_pt_fail(r, FSDPCK_ERR_LIMIT, name, text);
    }
    out->file = r->file;
    out->found = true;
    out->swap = r->archive.swap;
    out->crc = r->crcs[i];
    out->payload = nelem ? (*record)->offset + t->first * item_nbytes : 0;
    out->strides = fsdpck_tensor_node_is_dense(t) ? NULL : t->strides;
    return 0;
}

uint32_t fsdpck_pt_rank(const struct fsdpck_pt_reading *r)
{
    return r->rank < 0 ? 0 : (uint32_t)r->rank;
}
