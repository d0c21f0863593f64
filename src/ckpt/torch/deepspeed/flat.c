/* SPDX-License-Identifier: Apache-2.0 */
/* Flat tensors as parts of parameters: a range of elements is a few boxes, each of them dense in the file. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "torch/deepspeed/deepspeed.h"

enum { MAX_NAME_NBYTES = 4096 };

int fsdpck_ds_fail(struct deepspeed *d, int code, const char *name, const char *what, ...)
{
    char text[400];
    va_list args;
    va_start(args, what);
    vsnprintf(text, sizeof text, what, args);
    va_end(args);
    return fsdpck_pt_fail(&d->r, code, name, text);
}

int fsdpck_ds_dense(struct deepspeed *d, const char *name, fsdpck_node n, struct fsdpck_tensor_node *t,
                    struct ds_flat *out)
{
    const struct fsdpck_zip_record *record;
    const char *why;
    uint64_t nbytes;
    *out = (struct ds_flat){ .nelem = 0 };
    int rc = fsdpck_tensor_node_read(d->r.archive.pickle, n, t, &why);
    if (rc)
        return fsdpck_pt_fail(&d->r, rc, name, why);
    if (!fsdpck_tensor_node_is_dense(t))
        return fsdpck_pt_fail(&d->r, FSDPCK_ERR_UNSUPPORTED, name, "is stored as no dense tensor");
    out->dtype = t->dtype;
    if (!checked_shape(t->size, t->ndim, sizeof(double), &out->nelem, &nbytes))
        return fsdpck_ds_fail(d, FSDPCK_ERR_FORMAT, name, "the product of its shape overflows");
    return fsdpck_pt_locate(&d->r, name, t, &out->at, &record);
}

int fsdpck_ds_flat(struct deepspeed *d, const char *name, fsdpck_node n, struct ds_flat *out)
{
    struct fsdpck_tensor_node t;
    int rc = fsdpck_ds_dense(d, name, n, &t, out);
    if (!rc && t.ndim != 1)
        rc = fsdpck_pt_fail(&d->r, FSDPCK_ERR_UNSUPPORTED, name, "a partition of it is no flat tensor");
    return rc;
}

int fsdpck_ds_add_param(struct deepspeed *d, const char *name, const uint64_t *shape, uint32_t ndim, size_t group,
                        bool frozen)
{
    struct fsdpck_error *err = d->r.err;
    uint64_t nbytes;
    size_t old;
    char *copy = fsdpck_arena_strndup(&d->scratch, name, strlen(name), err);
    uint64_t *dims = copy ? fsdpck_arena_array(&d->scratch, ndim ? ndim : 1, sizeof *dims, err) : NULL;
    struct ds_param *p = dims ? fsdpck_vec_push(&d->params, err) : NULL;
    if (!p || fsdpck_names_add(&d->by_name, copy, d->params.count - 1, &old, err))
        return FSDPCK_ERR_NOMEM;
    if (old != SIZE_MAX)
        return fsdpck_ds_fail(d, FSDPCK_ERR_FORMAT, name, "is listed twice");
    if (ndim)
        memcpy(dims, shape, ndim * sizeof *dims);
    *p = (struct ds_param){ .name = copy,
                            .ndim = ndim,
                            .shape = dims,
                            .group = group,
                            .frozen = frozen,
                            .targets = SIZE_MAX,
                            .shared = SIZE_MAX };
    if (!checked_shape(shape, ndim, sizeof(double), &p->nelem, &nbytes))
        return fsdpck_ds_fail(d, FSDPCK_ERR_FORMAT, name, "the product of its shape overflows");
    return 0;
}

static int add_target(struct deepspeed *d, size_t param, uint32_t kind, enum fsdpck_dtype dtype, const char *name,
                      const struct fsdpck_key *path, uint32_t npath)
{
    struct ds_param *p = &ds_params(d)[param];
    uint32_t ordinal;
    int rc = fsdpck_catalogue_tensor(&d->r.catalogue, fsdpck_pt_path(&d->r), 0, name, path, npath, dtype, p->ndim,
                                     p->shape, &ordinal);
    struct ds_target *t = rc ? NULL : fsdpck_vec_push(&d->targets, d->r.err);
    if (!t)
        return rc ? rc : FSDPCK_ERR_NOMEM;
    *t = (struct ds_target){ .tensor = ordinal, .kind = kind, .next = p->targets };
    p->targets = d->targets.count - 1;
    return 0;
}

/* Joins keys to a name; fails if it is too long. */
static int join(struct deepspeed *d, const struct fsdpck_key *path, uint32_t npath, char out[MAX_NAME_NBYTES])
{
    size_t used = 0;
    for (uint32_t i = 0; i < npath; i++) {
        size_t n = strlen(path[i].str);
        if (used + n + 2 > MAX_NAME_NBYTES)
            return fsdpck_ds_fail(d, FSDPCK_ERR_LIMIT, NULL, "holds a name of more than %d bytes", MAX_NAME_NBYTES);
        if (i)
            out[used++] = '.';
        memcpy(out + used, path[i].str, n);
        used += n;
    }
    out[used] = '\0';
    return 0;
}

static int add_to_tree(struct deepspeed *d, size_t param, const char *tree, const char *name, enum fsdpck_dtype dtype)
{
    const struct fsdpck_key path[] = { { tree, 0 }, { name, 0 } };
    char text[MAX_NAME_NBYTES];
    int rc = join(d, path, 2, text);
    return rc ? rc : add_target(d, param, DS_WEIGHTS, dtype, text, path, 2);
}

static int add_name(struct deepspeed *d, size_t param, const char *name, enum fsdpck_dtype dtype)
{
    int rc = ds_master_is_model(d) ? add_to_tree(d, param, "model", name, dtype) : 0;
    return rc ? rc : add_to_tree(d, param, "master", name, dtype);
}

int fsdpck_ds_add_weights(struct deepspeed *d, size_t param, enum fsdpck_dtype dtype)
{
    const struct ds_shared *shared = d->shared.data;
    int rc = add_name(d, param, ds_params(d)[param].name, dtype);
    for (size_t i = ds_params(d)[param].shared; !rc && i != SIZE_MAX; i = shared[i].next)
        rc = add_name(d, param, shared[i].name, dtype);
    ds_params(d)[param].dtype = dtype;
    return rc;
}

int fsdpck_ds_add_kind(struct deepspeed *d, const char *key)
{
    if (d->nkinds == DS_MAX_KINDS)
        return fsdpck_ds_fail(d, FSDPCK_ERR_LIMIT, NULL, "has more than %d states for each parameter",
                              DS_MAX_KINDS - 1);
    d->kinds[d->nkinds] = fsdpck_arena_strndup(&d->scratch, key, strlen(key), d->r.err);
    return d->kinds[d->nkinds++] ? 0 : FSDPCK_ERR_NOMEM;
}

int fsdpck_ds_add_param_groups(struct deepspeed *d, fsdpck_node dict)
{
    fsdpck_node groups = fsdpck_pickle_get(d->r.archive.pickle, dict, "param_groups");
    if (groups == FSDPCK_NO_NODE || fsdpck_pickle_type(d->r.archive.pickle, groups) != FSDPCK_PICKLE_LIST)
        return 0;
    return fsdpck_pt_add_tree(&d->r, groups, "param_groups");
}

int fsdpck_ds_add_state(struct deepspeed *d, size_t param, uint32_t kind)
{
    const struct fsdpck_key path[] = {
        { "optim", 0 }, { "state", 0 }, { ds_params(d)[param].name, 0 }, { d->kinds[kind], 0 }
    };
    char text[MAX_NAME_NBYTES];
    int rc = join(d, path, 4, text);
    return rc ? rc : add_target(d, param, kind, FSDPCK_FLOAT32, text, path, 4);
}

int fsdpck_ds_add_scalar(struct deepspeed *d, const struct ds_param *p, const char *key, fsdpck_node n)
{
    const struct fsdpck_key path[] = { { "optim", 0 }, { "state", 0 }, { p->name, 0 }, { key, 0 } };
    char text[MAX_NAME_NBYTES];
    fsdpck_node args;
    int rc = join(d, path, 4, text);
    if (rc)
        return rc;
    if (fsdpck_tensor_node_maker(d->r.archive.pickle, n, &args))
        return fsdpck_pt_add_tensor(&d->r, text, path, 4, n);
    const enum fsdpck_pickle_type type = fsdpck_pickle_type(d->r.archive.pickle, n);
    const uint64_t left = d->r.value_nbytes;
    rc = fsdpck_pt_add_value(&d->r, text, path, 4, n);
    /* A group's number stands for each of its parameters, which the pickle's size does not limit. */
    if (type == FSDPCK_PICKLE_INT || type == FSDPCK_PICKLE_FLOAT || type == FSDPCK_PICKLE_BOOL)
        d->r.value_nbytes = left;
    return rc;
}

/* Finds the largest dense box that begins at element `at` and has at most n elements; returns its number of elements.
 * box: (2, ndim). */
static uint64_t dense_box(const struct ds_param *p, uint64_t at, uint64_t n, uint64_t *box)
{
    uint64_t *offset = box, *size = box + p->ndim, stride = 1, rest = at;
    uint32_t along = p->ndim; /* the dimension that the box goes along: whole below it, 1 above */
    for (uint32_t k = p->ndim; k-- > 0; stride *= p->shape[k]) {
        offset[k] = rest % p->shape[k];
        rest /= p->shape[k];
        if (at % stride == 0 && n >= stride)
            along = k;
    }
    stride = 1;
    for (uint32_t k = p->ndim; k-- > 0; stride *= p->shape[k]) {
        const uint64_t most = k == along ? n / stride : 1, left = p->shape[k] - offset[k];
        size[k] = k > along ? p->shape[k] : most < left ? most : left;
        if (k == along)
            n = size[k] * stride;
    }
    return p->ndim ? n : 1;
}

int fsdpck_ds_add_range(struct deepspeed *d, const struct ds_param *p, uint32_t kind, uint64_t begin, uint64_t n,
                        const struct ds_flat *flat, uint64_t from)
{
    const struct ds_target *targets = d->targets.data;
    const uint64_t item_nbytes = fsdpck_dtype_info(flat->dtype)->nbytes;
    uint64_t box[2 * FSDPCK_MAX_DIMS];
    for (uint64_t done = 0, step; done < n; done += step) {
        step = dense_box(p, begin + done, n - done, box);
        for (size_t i = p->targets; i != SIZE_MAX; i = targets[i].next) {
            if (targets[i].kind != kind)
                continue;
            struct fsdpck_stored_box piece = flat->at;
            piece.tensor = targets[i].tensor;
            piece.box = box;
            piece.payload = flat->at.payload + (from + done) * item_nbytes;
            int rc = fsdpck_catalogue_add_box(&d->r.catalogue, &piece);
            if (rc)
                return rc;
        }
    }
    return 0;
}
