/* SPDX-License-Identifier: Apache-2.0 */
/* A single safetensors file as a source, and the code it shares with the folder source: the catalogue entry and the
 * location of each tensor. It must not parse: safetensors_header.c does. */
#include "hf/safetensors_header.h"

#include <stdlib.h>
#include <string.h>

static const struct fsdpck_source_ops ops = {
    .kind = "safetensors",
    .extents = fsdpck_safetensors_extents,
    .close = fsdpck_safetensors_close,
};

int fsdpck_safetensors_begin(struct fsdpck_source *src, const struct fsdpck_source_ops *source_ops,
                             struct fsdpck_error *err)
{
    struct fsdpck_vec *locations = malloc(sizeof *locations);
    if (!locations)
        return fsdpck_error_nomem(err, sizeof *locations);
    *locations = (struct fsdpck_vec)FSDPCK_VEC(struct safetensors_location);
    src->impl = locations;
    src->ops = source_ops;
    return 0;
}

void fsdpck_safetensors_close(struct fsdpck_source *src)
{
    if (src->impl)
        fsdpck_vec_free(src->impl);
    free(src->impl);
    src->impl = NULL;
}

int fsdpck_safetensors_add(struct fsdpck_source *src, uint32_t file, const struct safetensors_entry *e,
                           struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    const char *path = source_files(src)[file].path;
    size_t old = fsdpck_names_find(&src->names, e->name);
    const struct safetensors_location *locations = ((struct fsdpck_vec *)src->impl)->data;
    if (!err)
        err = &own;
    if (old != SIZE_MAX && locations[old].file != file)
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path, "tensor '%s' is also in '%s'", e->name,
                                source_files(src)[locations[old].file].pub.name);
    struct safetensors_location *location = fsdpck_vec_push(src->impl, err);
    if (!location)
        return FSDPCK_ERR_NOMEM;
    *location = (struct safetensors_location){ e->payload, file };
    return fsdpck_source_add_tensor(src, path, e->name, NULL, 0, e->dtype, e->ndim, e->shape, err) ? 0 : err->code;
}

int fsdpck_safetensors_extents(struct fsdpck_source *src, size_t ordinal, const uint64_t *offset, const uint64_t *size,
                               fsdpck_extent_fn visit, void *ctx, struct fsdpck_error *err)
{
    static const uint64_t origin[FSDPCK_MAX_DIMS];
    const struct fsdpck_tensor *t = &source_tensors(src)[ordinal];
    const struct safetensors_location *location =
        (const struct safetensors_location *)((struct fsdpck_vec *)src->impl)->data + ordinal;
    (void)offset; /* one chunk contains every box */
    (void)size;
    struct fsdpck_extent e = { .file = location->file,
                               .offset = origin,
                               .size = t->shape,
                               .payload = location->payload,
                               .payload_nbytes = t->nbytes };
    return visit(ctx, &e, err);
}

static int add_entry(void *ctx, const struct safetensors_entry *e, struct fsdpck_error *err)
{
    return fsdpck_safetensors_add(ctx, 0, e, err);
}

int fsdpck_open_safetensors(struct fsdpck_source *src, struct fsdpck_error *err)
{
    const char *slash = strrchr(src->path, '/');
    int rc = fsdpck_safetensors_begin(src, &ops, err);
    if (!rc)
        rc = fsdpck_source_add_file(src, src->path, slash ? slash + 1 : src->path, -1, NULL, err);
    if (!rc)
        rc = fsdpck_safetensors_header(src->io, src->path, add_entry, src, err);
    return rc;
}
