/* SPDX-License-Identifier: Apache-2.0 */
/* Puts a view between a source and its readers. Knows nothing of what a view does to tensors. */
#include "engine/view.h"

#include <stdlib.h>
#include <string.h>

#include "engine/value_view.h"

static int read_item(struct fsdpck_source *src, size_t item, void *buf, uint64_t n, uint64_t at,
                     struct fsdpck_error *err)
{
    struct fsdpck_view *v = src->impl;
    return v->inner.ops->read_item(&v->inner, item, buf, n, at, err);
}

void fsdpck_view_install(struct fsdpck_view *v, struct fsdpck_source *src, const struct fsdpck_source_ops *ops)
{
    v->inner = *src;
    v->ops = *ops;
    v->ops.kind = src->ops->kind;
    v->ops.read_item = src->ops->read_item ? read_item : NULL;
    src->ops = &v->ops;
    src->impl = v;
    src->tensors = (struct fsdpck_vec){ NULL, 0, 0, v->inner.tensors.item_nbytes };
    src->names = (struct fsdpck_names){ 0 };
}

void fsdpck_view_close(struct fsdpck_source *src)
{
    struct fsdpck_view *v = src->impl;
    if (v->inner.ops->close)
        v->inner.ops->close(&v->inner);
    fsdpck_vec_free(&v->inner.tensors);
    fsdpck_names_free(&v->inner.names);
    free(v);
}

void fsdpck_view_remove(struct fsdpck_source *src)
{
    struct fsdpck_view *v = src->impl;
    fsdpck_vec_free(&src->tensors);
    fsdpck_names_free(&src->names);
    src->ops = v->inner.ops;
    src->impl = v->inner.impl;
    src->tensors = v->inner.tensors;
    src->names = v->inner.names;
    free(v);
}

int fsdpck_view_show(struct fsdpck_source *src, const struct fsdpck_tensor *t, const char *name,
                     struct fsdpck_error *err)
{
    struct fsdpck_tensor *made = fsdpck_source_add_tensor(src, src->path, name ? name : t->name, name ? NULL : t->path,
                                                          name ? 0 : t->npath, t->dtype, t->ndim, t->shape, err);
    if (!made)
        return err->code;
    made->mesh = t->mesh;
    made->placements = t->placements;
    made->has_content = t->has_content;
    memcpy(made->content, t->content, sizeof made->content);
    return 0;
}

int fsdpck_view_show_all(struct fsdpck_source *src, struct fsdpck_error *err)
{
    const struct fsdpck_view *v = src->impl;
    int rc = 0;
    for (size_t i = 0; i < v->inner.tensors.count && !rc; i++) {
        const struct fsdpck_tensor *t = &source_tensors(&v->inner)[i];
        rc = t->alias_of >= 0
                 ? fsdpck_source_add_alias(src, src->path, t->name, t->path, t->npath, (size_t)t->alias_of, err)
                 : fsdpck_view_show(src, t, NULL, err);
        if (!rc && t->alias_of < 0 && fsdpck_is_computed(src, i))
            ((struct fsdpck_tensor *)src->tensors.data)[i].has_content = false;
    }
    return rc;
}

int fsdpck_view_no_extents(const struct fsdpck_source *src, size_t ordinal, const char *how, struct fsdpck_error *err)
{
    fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, src->path, "%s, so its values have no place in a file", how);
    fsdpck_error_tensor(err, source_tensors(src)[ordinal].name);
    return FSDPCK_ERR_UNSUPPORTED;
}

int fsdpck_view_finish(struct fsdpck_source *src, uint64_t *read_nbytes, struct fsdpck_error *err)
{
    struct fsdpck_view *v = src->impl;
    const struct fsdpck_values *values = v->inner.ops->values;
    return values && values->finish ? values->finish(&v->inner, read_nbytes, err) : 0;
}

uint64_t fsdpck_view_state_nbytes(const struct fsdpck_source *src)
{
    return ((const struct fsdpck_view *)src->impl)->state_nbytes;
}
