/* SPDX-License-Identifier: Apache-2.0 */
/* The names that quantizers use for codes and scales: fp8 and compressed-tensors, modelopt, GPTQ and AWQ, bitsandbytes,
 * MXFP4 of gpt-oss, quanto, and others that put a scale beside 8-bit codes. Knows names and dtypes, no formulas. */
#include "hf/quantized.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"
#include "base/suffix.h"
#include "hf/assets_edit.h"
#include "hf/config.h"

enum { NAME_NBYTES = 1024 };

const char fsdpck_quantized_cast[] = "--dtype would cast its scales and leave its codes as they are";
const char fsdpck_quantized_merge[] = "an adapter cannot be merged into codes";
const char fsdpck_quantized_average[] = "codes have no average";

static bool starts_with(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

/* Codes: one or more values per byte. Masks are bool. */
static bool is_narrow(const struct fsdpck_tensor *t)
{
    return t && t->dtype != FSDPCK_BOOL && fsdpck_dtype_info(t->dtype)->nbytes == 1;
}

static bool is_integer(const struct fsdpck_tensor *t)
{
    enum fsdpck_dtype_kind kind = fsdpck_dtype_info(t->dtype)->kind;
    return kind == FSDPCK_KIND_INT || kind == FSDPCK_KIND_UINT;
}

/* Names that only quantizers use. leaf: after the last dot. Words packed into integers; tables of bitsandbytes,
 * including those of its optimizers. */
static bool is_quantized_name(const struct fsdpck_tensor *t, const char *leaf)
{
    static const char *const tables[] = { "absmax",         "quant_map", "nested_absmax", "nested_quant_map", "qmap",
                                          "bitsandbytes__", NULL };
    static const char *const packed[] = { "qweight", "qzeros", "weight_packed", "weight_zero_point", NULL };
    if (strcmp(leaf, "SCB") == 0 || strcmp(leaf, "scaled_fp8") == 0 || strcmp(leaf, "weight_scale_inv") == 0)
        return true;
    for (size_t i = 0; tables[i]; i++)
        if (starts_with(leaf, tables[i]))
            return true;
    for (size_t i = 0; packed[i] && is_integer(t); i++)
        if (strcmp(leaf, packed[i]) == 0)
            return true;
    return false;
}

static const char *leaf_of(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? dot + 1 : name;
}

static bool is_codes(const struct fsdpck_tensor *t)
{
    return t && (is_narrow(t) || is_quantized_name(t, leaf_of(t->name)));
}

/* Returns the tensor named PREFIX (nprefix bytes) MIDDLE (nmiddle bytes) SUFFIX, or NULL. */
static const struct fsdpck_tensor *find(const struct fsdpck_source *src, const char *prefix, size_t nprefix,
                                        const char *middle, size_t nmiddle, const char *suffix)
{
    char name[NAME_NBYTES];
    int n = snprintf(name, sizeof name, "%.*s%.*s%s", (int)nprefix, prefix, (int)nmiddle, middle, suffix);
    return n > 0 && (size_t)n < sizeof name ? fsdpck_source_find(src, name) : NULL;
}

/* The names that most quantizers use for a weight's codes. */
static const char *const usual[] = { "weight", "qweight", "_data", "W_q", NULL };

static bool is_usual(const char *leaf)
{
    for (size_t i = 0; usual[i]; i++)
        if (strcmp(leaf, usual[i]) == 0)
            return true;
    return false;
}

/* Returns the codes for a tensor named like a scale ("weight_scale_inv", "gate_up_proj_scales", "scales",
 * "scale_weight", "_scale"), or NULL. */
static const struct fsdpck_tensor *codes_of(const struct fsdpck_source *src, const char *name, const char *leaf)
{
    static const char *const suffixes[] = { "", "_blocks", "_packed" };
    const size_t nprefix = (size_t)(leaf - name);
    const char *scale = strstr(leaf, "scale"), *last = strstr(leaf, "_scale");
    const struct fsdpck_tensor *t;
    if (!scale)
        return NULL;
    for (; last; last = strstr(last + 1, "_scale"))
        for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++)
            if (is_codes(t = find(src, name, nprefix, leaf, (size_t)(last - leaf), suffixes[i])) &&
                strcmp(t->name, name) != 0)
                return t;
    for (size_t i = 0; usual[i]; i++) {
        t = find(src, name, nprefix, usual[i], strlen(usual[i]), "");
        if (is_codes(t) && strcmp(t->name, name) != 0)
            return t;
    }
    t = nprefix ? find(src, name, nprefix - 1, "", 0, "") : NULL; /* "w.scale" beside "w" */
    return is_narrow(t) ? t : NULL;
}

/* Returns the scale beside a tensor of codes, or NULL if there is none with a known name. */
static const struct fsdpck_tensor *scale_of(const struct fsdpck_source *src, const char *name, const char *leaf)
{
    static const char *const endings[] = { "_scale_inv",    "_scale", "_scales", "_scale_2",
                                           "_global_scale", ".scale", NULL };
    static const char *const beside_weight[] = { "scale",  "scales", "scale_weight", "qscale_weight", "input_scale",
                                                 "_scale", NULL };
    const size_t nprefix = (size_t)(leaf - name), n = strlen(leaf);
    const size_t stem = ends_with(leaf, "_blocks") || ends_with(leaf, "_packed") ? n - strlen("_blocks") : n;
    const struct fsdpck_tensor *t = NULL;
    for (size_t i = 0; endings[i] && !t; i++)
        t = find(src, name, nprefix, leaf, stem, endings[i]);
    for (size_t i = 0; beside_weight[i] && !t && (is_usual(leaf) || ends_with(leaf, "weight")); i++)
        t = find(src, name, nprefix, beside_weight[i], strlen(beside_weight[i]), "");
    return t;
}

const char *fsdpck_quantized_beside(const struct fsdpck_source *src, const struct fsdpck_tensor *t)
{
    static const char *const tables[] = { ".absmax", ".quant_map" };
    const char *leaf = leaf_of(t->name);
    const struct fsdpck_tensor *other = NULL;
    if (is_quantized_name(t, leaf))
        return t->name;
    other = codes_of(src, t->name, leaf);
    if (!other && is_narrow(t))
        other = scale_of(src, t->name, leaf);
    for (size_t i = 0; i < sizeof tables / sizeof *tables && !other;
         i++) /* bitsandbytes stores codes in tensors of any dtype */
        other = find(src, t->name, strlen(t->name), "", 0, tables[i]);
    return other ? other->name : NULL;
}

/* ---- refusing ---- */

static int refuse(struct fsdpck_error *err, const char *file, const char *tensor, const char *what, const char *why)
{
    fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, file, "%s: %s", what, why);
    if (tensor)
        fsdpck_error_tensor(err, tensor);
    fsdpck_error_hint(err, "%s",
                      why == fsdpck_quantized_cast ? "leave out --dtype, or dequantize the weights: --dequantize bf16"
                      : why == fsdpck_quantized_average
                          ? "dequantize the weights of every source: --dequantize bf16"
                          : "dequantize the model first: fsdpck export MODEL OUT --dequantize bf16");
    return FSDPCK_ERR_UNSUPPORTED;
}

static int check_tensor(const struct fsdpck_source *src, const struct fsdpck_tensor *t, const char *why,
                        struct fsdpck_error *err)
{
    char what[600];
    const char *other = fsdpck_quantized_beside(src, t);
    if (!other)
        return 0;
    snprintf(what, sizeof what, "is part of a quantized weight (%s%s%s%.400s%s)", fsdpck_dtype_info(t->dtype)->name,
             strcmp(other, t->name) ? ", with " : "", strcmp(other, t->name) ? "'" : "",
             strcmp(other, t->name) ? other : "", strcmp(other, t->name) ? "'" : "");
    return refuse(err, fsdpck_source_path(src), t->name, what, why);
}

/* A file that is not JSON says nothing about quantization. */
static int check_config(const struct fsdpck_io *io, const struct fsdpck_asset_out *a, const char *why,
                        struct fsdpck_error *err)
{
    struct fsdpck_error ignored = { 0 };
    char *text = NULL, key[64] = "", what[128];
    uint64_t nbytes = a->nbytes;
    if (fsdpck_asset_is_quantization(a->path))
        return refuse(err, a->from ? a->from : a->path, NULL, "says that the model is quantized", why);
    if (strcmp(a->path, "config.json") != 0)
        return 0;
    int rc = a->data ? 0 : fsdpck_read_file(io, a->from, FSDPCK_CONFIG_MAX_NBYTES, &text, &nbytes, err);
    if (rc)
        return rc;
    fsdpck_config_quantized(a->path, a->data ? a->data : text, nbytes, key, &ignored);
    if (*key) {
        snprintf(what, sizeof what, "has '%s': the model is quantized", key);
        rc = refuse(err, a->from ? a->from : a->path, NULL, what, why);
    }
    free(text);
    return rc;
}

void fsdpck_quantized_note_uncast(const struct fsdpck_selection *selection, const struct fsdpck_options *opt)
{
    char line[512];
    size_t count = 0, first = 0;
    for (size_t i = 0; i < selection->ntensors; i++) {
        enum fsdpck_dtype dtype = selection->tensors[i].dtype;
        if (fsdpck_dtype_info(dtype)->kind == FSDPCK_KIND_FLOAT && fsdpck_dtype_info(dtype)->nbytes == 1 &&
            count++ == 0)
            first = i;
    }
    if (count == 0 || !opt->note)
        return;
    snprintf(line, sizeof line,
             "--dtype leaves %zu tensor%s as stored ('%.200s' is %s): float64, float32, float16 and bfloat16 are cast",
             count, fsdpck_plural(count), selection->tensors[first].name,
             fsdpck_dtype_info(selection->tensors[first].dtype)->name);
    opt->note(opt->ctx, line);
}

int fsdpck_quantized_refuse(const struct fsdpck_source *src, const struct fsdpck_selection *selection,
                            const struct fsdpck_assets_out *assets, const char *why, struct fsdpck_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < selection->ntensors && !rc; i++)
        rc = check_tensor(src, fsdpck_source_tensor(src, selection->tensors[i].source), why, err);
    for (size_t i = 0; assets && i < assets->count && !rc; i++)
        rc = check_config(src->io, &assets->list[i], why, err);
    return rc;
}
