/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the contents of an export: the tensors that safetensors can store, under the names that transformers expects,
 * with tied tensors stored once; and the assets. */
#include "verbs/export_ranks.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "hf/config.h"
#include "hf/quantized.h"
#include "quant/quantized_config.h"

#define DEFAULT_SHARD_NBYTES 5000000000u /* decimal, as in transformers */

static void note(const struct export *x, const char *fmt, ...) FSDPCK_PRINTF(2, 3);
static void note(const struct export *x, const char *fmt, ...)
{
    char line[1024];
    va_list ap;
    if (!x->opt.note)
        return;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    x->opt.note(x->opt.ctx, line);
}

static int unsupported(const struct export *x, const char *name, enum fsdpck_dtype dtype, const char *why)
{
    fsdpck_error_set(x->err, FSDPCK_ERR_UNSUPPORTED, fsdpck_source_path(x->src), "dtype %s: %s",
                     fsdpck_dtype_info(dtype)->name, why);
    fsdpck_error_tensor(x->err, name);
    return FSDPCK_ERR_UNSUPPORTED;
}

static int add_tensor(struct export *x, const char *name, size_t stored)
{
    const struct fsdpck_chosen *c = &x->selection.tensors[stored];
    const struct fsdpck_tensor *t = fsdpck_source_tensor(x->src, c->source);
    uint64_t nelem, nbytes;
    if (!fsdpck_dtype_info(c->dtype)->safetensors)
        return unsupported(x, name, c->dtype, "safetensors has no such type");
    if (c->dtype == FSDPCK_FLOAT4_E2M1FN_X2 && (t->ndim == 0 || t->shape[t->ndim - 1] > INT64_MAX / 2))
        return unsupported(
            x, name, c->dtype,
            "safetensors counts single values along the last dimension, and this shape cannot be doubled there");
    if (strcmp(name, "__metadata__") == 0)
        return unsupported(x, name, c->dtype, "safetensors keeps this name for itself");
    if (!checked_shape(t->shape, t->ndim, fsdpck_dtype_info(c->dtype)->nbytes, &nelem, &nbytes))
        return unsupported(x, name, c->dtype, "the tensor is too large for it");
    struct export_tensor *e = fsdpck_vec_push(&x->layout.tensors, x->err);
    if (!e)
        return FSDPCK_ERR_NOMEM;
    *e = (struct export_tensor){ .name = name,
                                 .chosen = (uint32_t)stored,
                                 .dtype = c->dtype,
                                 .ndim = t->ndim,
                                 .shape = t->shape,
                                 .nbytes = nbytes,
                                 .order = x->layout.tensors.count - 1 };
    if (x->with->shapes && x->with->shapes[stored]) {
        e->ndim = x->with->ndims[stored];
        e->shape = x->with->shapes[stored];
    }
    return 0;
}

static int add_extra(struct export *x, const struct fsdpck_export_extra *m)
{
    struct export_tensor *e = fsdpck_vec_push(&x->layout.tensors, x->err);
    uint64_t nelem, nbytes;
    if (!e || !checked_shape(m->shape, m->ndim, fsdpck_dtype_info(m->dtype)->nbytes, &nelem, &nbytes))
        return fsdpck_error_nomem(x->err, sizeof *e);
    *e = (struct export_tensor){ .name = m->name,
                                 .data = m->data,
                                 .dtype = m->dtype,
                                 .ndim = m->ndim,
                                 .shape = m->shape,
                                 .nbytes = nbytes,
                                 .order = x->layout.tensors.count - 1 };
    return 0;
}

static bool is_head_of(const char *head, const char *embedding)
{
    const char *h = fsdpck_config_tied_head(embedding);
    return h && strcmp(h, head) == 0;
}

static void rename_added(struct export *x, const char *old, const char *name)
{
    struct export_tensor *e = x->layout.tensors.data;
    for (size_t i = 0; i < x->layout.tensors.count; i++)
        if (strcmp(e[i].name, old) == 0)
            e[i].name = name;
}

/* If config.json calls the model tied, writes it as transformers does: only the embedding, under its own name. */
static int add_alias(struct export *x, size_t i, bool tied)
{
    const struct fsdpck_chosen *alias = &x->selection.tensors[i], *to = &x->selection.tensors[alias->alias_of];
    if (tied && is_head_of(alias->name, to->name))
        return 0;
    if (tied && is_head_of(to->name, alias->name)) {
        rename_added(x, to->name, alias->name);
        return 0;
    }
    note(x, "'%s' is a second name of '%s': safetensors has no such thing, so its bytes are written twice", alias->name,
         to->name);
    return add_tensor(x, alias->name, (size_t)alias->alias_of);
}

static int list_tensors(struct export *x)
{
    bool tied;
    int rc = fsdpck_assets_tied(x->io, &x->assets, &tied, x->err);
    for (size_t i = 0; i < x->selection.ntensors && !rc; i++)
        rc = x->selection.tensors[i].alias_of < 0 ? add_tensor(x, x->selection.tensors[i].name, i)
                                                  : add_alias(x, i, tied);
    for (size_t i = 0; i < x->with->nextra && !rc; i++)
        rc = add_extra(x, &x->with->extra[i]);
    if (!rc && x->selection.nitems)
        note(x, "%zu non-tensor value%s left behind: safetensors holds tensors only", x->selection.nitems,
             x->selection.nitems == 1 ? " is" : "s are");
    return rc;
}

static int choose_tensors(struct export *x)
{
    if (!x->with->selection) {
        int rc = fsdpck_selection_make(x->src, &x->req->select, FSDPCK_TREE_MODEL, &x->selection, x->err);
        if (!rc)
            fsdpck_selection_note_left(&x->selection, &x->req->select, &x->opt);
        return rc;
    }
    x->selection = *x->with->selection;
    x->selection.arena = (struct fsdpck_arena){ 0 }; /* its owner frees it */
    return 0;
}

static int gather_assets(struct export *x)
{
    const struct fsdpck_export_request *req = x->req;
    if (!x->with->assets)
        return fsdpck_assets_gather(x->src, req->assets, req->out, x->cast, x->dtype, &x->assets, x->err);
    x->assets = *x->with->assets;
    *x->with->assets = (struct fsdpck_assets_out){ 0 };
    return 0;
}

/* Casting scales, or adding an adapter to codes, gives wrong weights. export-lora supplies the adapter's own assets:
 * the base's assets do not describe the adapter. */
static int check_quantized(const struct export *x)
{
    const bool merges = x->with->edit && !x->with->selection, cast = x->cast;
    if (!merges && !cast)
        return 0;
    int rc = fsdpck_quantized_refuse(x->src, &x->selection, x->with->assets ? NULL : &x->assets,
                                     merges ? fsdpck_quantized_merge : fsdpck_quantized_cast, x->err);
    if (!rc && cast)
        fsdpck_quantized_note_uncast(&x->selection, &x->opt);
    return rc;
}

int fsdpck_export_choose(struct export *x)
{
    uint64_t max = x->one_file || x->with->file ? UINT64_MAX
                   : x->req->max_shard_nbytes   ? x->req->max_shard_nbytes
                                                : DEFAULT_SHARD_NBYTES;
    x->cast = x->req->select.cast;
    x->dtype = x->req->select.dtype;
    int rc = choose_tensors(x);
    if (!rc)
        rc = gather_assets(x);
    if (!rc)
        rc = fsdpck_quantized_config_put(x->src, &x->selection, &x->assets, x->err);
    if (!rc)
        rc = fsdpck_export_dtype_by_state(x);
    if (!rc)
        rc = fsdpck_export_dtype_by_config(x);
    if (!rc)
        rc = check_quantized(x);
    if (!rc)
        rc = list_tensors(x);
    if (!rc && x->req->vllm_ranks)
        rc = fsdpck_export_ranks_cut(x);
    return rc ? rc : fsdpck_export_lay_out(&x->layout, max, x->with->metadata, x->err);
}
