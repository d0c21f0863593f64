/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the description of a tensor in torch's pickles. Checks all numbers. */
#include "torch/pickle/tensor_node.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"

bool fsdpck_node_dims(const struct fsdpck_pickle *p, fsdpck_node n, uint32_t *ndim, uint64_t *dims)
{
    if (fsdpck_pickle_made_by(p, n, "torch Size"))
        n = fsdpck_pickle_child(p, fsdpck_pickle_child(p, n, 1), 0);
    enum fsdpck_pickle_type type = fsdpck_pickle_type(p, n);
    size_t count = fsdpck_pickle_count(p, n);
    if ((type != FSDPCK_PICKLE_TUPLE && type != FSDPCK_PICKLE_LIST) || count > FSDPCK_MAX_DIMS)
        return false;
    for (size_t d = 0; d < count; d++) {
        int64_t v;
        fsdpck_node child = fsdpck_pickle_child(p, n, d);
        if (fsdpck_pickle_type(p, child) != FSDPCK_PICKLE_INT || !fsdpck_pickle_int(p, child, &v) || v < 0)
            return false;
        dims[d] = (uint64_t)v;
    }
    *ndim = (uint32_t)count;
    return true;
}

bool fsdpck_node_dtype(const struct fsdpck_pickle *p, fsdpck_node n, enum fsdpck_dtype *out)
{
    const char *name = fsdpck_pickle_type(p, n) == FSDPCK_PICKLE_GLOBAL ? fsdpck_pickle_text(p, n, NULL) : "";
    return !strncmp(name, "torch ", 6) && fsdpck_dtype_from_name(name + 6, out);
}

const char *fsdpck_format_dims(char *buf, size_t nbytes, const uint64_t *dims, uint32_t ndim)
{
    size_t at = (size_t)snprintf(buf, nbytes, "[");
    for (uint32_t d = 0; d < ndim && at < nbytes; d++)
        at += (size_t)snprintf(buf + at, nbytes - at, "%s%" PRIu64, d ? ", " : "", dims[d]);
    if (at < nbytes)
        snprintf(buf + at, nbytes - at, "]");
    return buf;
}

/* Gets the dtype of a typed storage; false for UntypedStorage and any other class. */
static bool storage_dtype(const struct fsdpck_pickle *p, fsdpck_node class, enum fsdpck_dtype *out)
{
    const char *name = fsdpck_pickle_type(p, class) == FSDPCK_PICKLE_GLOBAL ? fsdpck_pickle_text(p, class, NULL) : "";
    for (int i = 0; i < FSDPCK_NDTYPES && !strncmp(name, "torch ", 6); i++) {
        const char *storage = fsdpck_dtype_info((enum fsdpck_dtype)i)->torch_storage;
        if (storage && !strcmp(name + 6, storage)) {
            *out = (enum fsdpck_dtype)i;
            return true;
        }
    }
    return false;
}

/* ('storage', class, key, location, number of elements; number of bytes if untyped). dtype: from _rebuild_tensor_v3,
 * else NULL. */
static bool read_storage(const struct fsdpck_pickle *p, fsdpck_node n, const enum fsdpck_dtype *dtype,
                         struct fsdpck_tensor_node *s)
{
    fsdpck_node id =
        fsdpck_pickle_type(p, n) == FSDPCK_PICKLE_PERSISTENT ? fsdpck_pickle_child(p, n, 0) : FSDPCK_NO_NODE;
    const char *what = fsdpck_pickle_text(p, fsdpck_pickle_child(p, id, 0), NULL);
    fsdpck_node class = fsdpck_pickle_child(p, id, 1), key = fsdpck_pickle_child(p, id, 2);
    size_t key_nbytes = 0;
    int64_t count;
    if (fsdpck_pickle_type(p, id) != FSDPCK_PICKLE_TUPLE || fsdpck_pickle_count(p, id) != 5 || !what ||
        strcmp(what, "storage") != 0 || fsdpck_pickle_type(p, key) != FSDPCK_PICKLE_STRING ||
        !fsdpck_pickle_int(p, fsdpck_pickle_child(p, id, 4), &count) || count < 0)
        return false;
    s->key = fsdpck_pickle_text(p, key, &key_nbytes);
    if (strlen(s->key) != key_nbytes)
        return false;
    enum fsdpck_dtype stored;
    uint64_t unit = 1, nbytes;
    if (storage_dtype(p, class, &stored))
        unit = fsdpck_dtype_info(stored)->nbytes;
    else if (!dtype || !fsdpck_pickle_is(p, class, "torch.storage UntypedStorage"))
        return false;
    s->dtype = dtype ? *dtype : stored;
    if (!checked_mul((uint64_t)count, unit, &nbytes))
        return false;
    s->storage_nelem = nbytes / fsdpck_dtype_info(s->dtype)->nbytes;
    return true;
}

const char *fsdpck_tensor_node_maker(const struct fsdpck_pickle *p, fsdpck_node n, fsdpck_node *args)
{
    fsdpck_node maker = FSDPCK_NO_NODE;
    while (fsdpck_pickle_made_by(p, n, "torch._utils _rebuild_parameter") ||
           fsdpck_pickle_made_by(p, n, "torch._utils _rebuild_parameter_with_state"))
        n = fsdpck_pickle_child(p, fsdpck_pickle_child(p, n, 1), 0);
    if (fsdpck_pickle_type(p, n) != FSDPCK_PICKLE_CALL)
        return NULL;
    maker = fsdpck_pickle_child(p, n, 0);
    *args = fsdpck_pickle_child(p, n, 1);
    if (fsdpck_pickle_is(p, maker,
                         "torch._tensor _rebuild_from_type_v2")) { /* (maker, class, its arguments, attributes) */
        maker = fsdpck_pickle_child(p, *args, 0);
        *args = fsdpck_pickle_child(p, *args, 2);
    }
    const char *name = fsdpck_pickle_type(p, maker) == FSDPCK_PICKLE_GLOBAL ? fsdpck_pickle_text(p, maker, NULL) : NULL;
    return name && !strncmp(name, "torch._utils _rebuild_", 22) ? name + strlen("torch._utils ") : NULL;
}

int fsdpck_tensor_node_read(const struct fsdpck_pickle *p, fsdpck_node n, struct fsdpck_tensor_node *out,
                            const char **why)
{
    fsdpck_node args = FSDPCK_NO_NODE;
    const char *maker = fsdpck_tensor_node_maker(p, n, &args);
    bool v3 = maker && !strcmp(maker, "_rebuild_tensor_v3"), v1 = maker && !strcmp(maker, "_rebuild_tensor");
    *why = "data.pkl does not describe a tensor";
    if (!maker)
        return FSDPCK_ERR_FORMAT;
    *why = "it is of a kind (quantized, sparse, nested, without data, or of another class) that is not read";
    if (!v3 && !v1 && strcmp(maker, "_rebuild_tensor_v2") != 0)
        return FSDPCK_ERR_UNSUPPORTED;
    enum fsdpck_dtype dtype = FSDPCK_NDTYPES;
    uint32_t nstrides;
    int64_t first;
    *why = "data.pkl describes a tensor in a way that torch does not";
    if (fsdpck_pickle_type(p, args) != FSDPCK_PICKLE_TUPLE ||
        (v3 && !fsdpck_node_dtype(p, fsdpck_pickle_child(p, args, 6), &dtype)) ||
        !read_storage(p, fsdpck_pickle_child(p, args, 0), v3 ? &dtype : NULL, out) ||
        !fsdpck_pickle_int(p, fsdpck_pickle_child(p, args, 1), &first) || first < 0 ||
        !fsdpck_node_dims(p, fsdpck_pickle_child(p, args, 2), &out->ndim, out->size) ||
        !fsdpck_node_dims(p, fsdpck_pickle_child(p, args, 3), &nstrides, out->strides) || nstrides != out->ndim)
        return FSDPCK_ERR_FORMAT;
    out->first = (uint64_t)first;
    fsdpck_node flags = fsdpck_pickle_child(p, args, v3 ? 7 : 6);
    *why = "it was saved with pending operations (conjugate or negative bit)";
    return fsdpck_pickle_type(p, flags) != FSDPCK_PICKLE_NONE && fsdpck_pickle_count(p, flags) ? FSDPCK_ERR_UNSUPPORTED
                                                                                               : 0;
}

bool fsdpck_tensor_node_inside(const struct fsdpck_tensor_node *t)
{
    uint64_t end = t->first;
    for (uint32_t d = 0; d < t->ndim; d++)
        if (t->size[d] == 0)
            return true;
    for (uint32_t d = 0; d < t->ndim; d++) {
        uint64_t span;
        if (!checked_mul(t->size[d] - 1, t->strides[d], &span) || !checked_add(end, span, &end))
            return false;
    }
    return end < t->storage_nelem;
}

bool fsdpck_tensor_node_is_dense(const struct fsdpck_tensor_node *t)
{
    uint64_t step = 1;
    for (uint32_t d = t->ndim; d-- > 0; step *= t->size[d])
        if (t->size[d] != 1 && t->strides[d] != step)
            return false;
    return true;
}
