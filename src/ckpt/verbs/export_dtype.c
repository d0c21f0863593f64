/* SPDX-License-Identifier: Apache-2.0 */
/* Decides the dtype in which the model of a training checkpoint is exported. Knows names of dtypes, no bytes. */
#include "verbs/export_impl.h"

#include <stdio.h>
#include <string.h>

#include "hf/config.h"
#include "hf/quantized.h"

static bool is_float(enum fsdpck_dtype d)
{
    return d == FSDPCK_FLOAT64 || d == FSDPCK_FLOAT32 || d == FSDPCK_FLOAT16 || d == FSDPCK_BFLOAT16;
}

/* Returns whether the dtype is already decided, by the user or by a verb built on this one. A tree selected by another
 * name than "model" may hold anything. */
static bool is_decided(const struct export *x)
{
    const struct fsdpck_select *s = &x->req->select;
    return x->cast || x->with->selection || x->src->base || (s->tree && strcmp(s->tree, "model") != 0);
}

/* Returns whether transformers holds the tensor in fp32 in a model of any dtype: the bias by which the routers of
 * DeepSeek-V3 and its relatives choose experts. */
static bool stays_fp32(const struct fsdpck_chosen *c)
{
    static const char end[] = ".e_score_correction_bias";
    const size_t n = strlen(c->name);
    return n >= sizeof end - 1 && strcmp(c->name + n - (sizeof end - 1), end) == 0;
}

/* Casts the selection; *was: dtype of the first tensor that changes. False: none changes. */
static bool cast_selection(struct export *x, enum fsdpck_dtype to, enum fsdpck_dtype *was)
{
    bool any = false;
    for (size_t i = 0; i < x->selection.ntensors; i++) {
        struct fsdpck_chosen *c = &x->selection.tensors[i];
        if (!is_float(c->dtype) || c->dtype == to || stays_fp32(c))
            continue;
        *was = any ? *was : c->dtype;
        any = true;
        c->dtype = to;
    }
    return any;
}

/* Does not cast quantized weights, because the user did not ask for a cast. The assets must be gathered: config.json
 * may be the only file that says so. */
static int cast_to(struct export *x, enum fsdpck_dtype to)
{
    enum fsdpck_dtype was;
    char line[256];
    struct fsdpck_error why = { 0 };
    int rc = fsdpck_quantized_refuse(x->src, &x->selection, &x->assets, fsdpck_quantized_cast, &why);
    if (rc && rc != FSDPCK_ERR_UNSUPPORTED)
        return fsdpck_error_set(x->err, rc, why.file, "%s", why.message);
    if (rc || !is_float(to) || !cast_selection(x, to, &was))
        return 0;
    x->cast = true;
    x->dtype = to;
    snprintf(line, sizeof line,
             "the checkpoint holds the weights as %s, as they are trained; they are written as %s, the model's own "
             "dtype (--dtype keeps or changes it)",
             fsdpck_dtype_info(was)->name, fsdpck_dtype_info(to)->name);
    if (x->opt.note)
        x->opt.note(x->opt.ctx, line);
    return 0;
}

int fsdpck_export_dtype_by_state(struct export *x)
{
    static const char *const key = "model_dtype";
    const char *state = fsdpck_source_state(x->src);
    enum fsdpck_dtype to;
    bool found;
    if (is_decided(x) || !state)
        return 0;
    int rc = fsdpck_config_dtype(fsdpck_source_path(x->src), state, strlen(state), &key, 1, &found, &to, x->err);
    if (!rc && found)
        rc = cast_to(x, to);
    return !rc && x->cast ? fsdpck_assets_set_dtype(x->io, &x->assets, x->dtype, x->err) : rc;
}

static bool has_optimizer(const struct fsdpck_source *src)
{
    for (size_t i = 0; i < fsdpck_source_ntensors(src); i++) {
        const struct fsdpck_tensor *t = fsdpck_source_tensor(src, i);
        if (t->npath > 1 && t->path[0].str && strncmp(t->path[0].str, "optim", 5) == 0)
            return true;
    }
    return false;
}

/* Returns whether the fp32 weights are a tree of their own, and what is exported is what the run computes with: it
 * holds weights of two bytes, and those that are wider are so on purpose. */
static bool has_masters_apart(const struct export *x)
{
    bool apart = false, narrow = false;
    for (size_t i = 0; i < fsdpck_source_ntensors(x->src) && !apart; i++) {
        const struct fsdpck_tensor *t = fsdpck_source_tensor(x->src, i);
        apart = t->npath > 1 && t->path[0].str && strcmp(t->path[0].str, "master") == 0;
    }
    for (size_t i = 0; i < x->selection.ntensors && !narrow; i++)
        narrow =
            is_float(x->selection.tensors[i].dtype) && fsdpck_dtype_info(x->selection.tensors[i].dtype)->nbytes == 2;
    return apart && narrow;
}

int fsdpck_export_dtype_by_config(struct export *x)
{
    enum fsdpck_dtype to;
    bool found;
    if (is_decided(x) || !has_optimizer(x->src) || has_masters_apart(x))
        return 0;
    int rc = fsdpck_assets_dtype(x->io, &x->assets, &found, &to, x->err);
    if (!rc && found &&
        fsdpck_dtype_info(to)->nbytes == 2) /* masters are wider; a wide dtype was never the model's own */
        rc = cast_to(x, to);
    return rc;
}
