/* SPDX-License-Identifier: Apache-2.0 */
/* Finds all quantized weights of a source, reads the small tensors that their geometry needs, and checks that nothing
 * is left over: scales without codes, forms that quantization_config contradicts, methods that are not known. */
#include <stdio.h>
#include <string.h>

#include "base/suffix.h"
#include "quant/weights.h"

enum { SMALL_NBYTES = 1 << 16 }; /* no shape and no JSON of bitsandbytes is larger */

struct finder {
    struct fsdpck_source *src;
    const struct fsdpck_quant_config *config;
    struct fsdpck_arena *arena;
    struct fsdpck_quant_weights *out;
    struct fsdpck_vec list;  /* struct fsdpck_quant_weight */
    struct fsdpck_vec reads; /* struct fsdpck_read, of small tensors */
    struct fsdpck_vec small; /* struct small, parallel to list */
    struct fsdpck_error *err;
};

struct small {
    const void *part[FSDPCK_QUANT_NPARTS];
};

static const enum fsdpck_quant_part small_parts[] = { FSDPCK_QUANT_SHAPE, FSDPCK_QUANT_STATE };

/* ---- what is no part of a weight ---- */

static const char *leaf_of(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? dot + 1 : name;
}

static bool is_one_of(const char *leaf, const char *const *list)
{
    for (; *list; list++)
        if (strcmp(leaf, *list) == 0)
            return true;
    return false;
}

/* They have one element; what is larger may be a parameter that the model trains. */
static bool is_activation(const struct fsdpck_tensor *t)
{
    static const char *const leaves[] = { "input_scale",
                                          "input_global_scale",
                                          "activation_scale",
                                          "input_scale_ub",
                                          "output_scale",
                                          "k_scale",
                                          "v_scale",
                                          "q_scale",
                                          "prob_scale",
                                          "input_zero_point",
                                          NULL };
    return t->nelem == 1 && is_one_of(leaf_of(t->name), leaves);
}

static bool is_part_name(const char *name)
{
    static const char *const leaves[] = { "weight_scale",
                                          "weight_scale_inv",
                                          "weight_global_scale",
                                          "weight_scale_2",
                                          "weight_zero_point",
                                          "weight_g_idx",
                                          "weight_shape",
                                          "qzeros",
                                          "SCB",
                                          "weight_format",
                                          "absmax",
                                          "quant_map",
                                          "nested_absmax",
                                          "nested_quant_map",
                                          NULL };
    return is_one_of(leaf_of(name), leaves) || ends_with(name, "_scale_inv");
}

/* Gives every tensor that belongs to no weight its role. */
static int check_rest(struct finder *f)
{
    const struct fsdpck_tensor *t = source_tensors(f->src);
    for (size_t i = 0; i < f->src->tensors.count; i++) {
        if (f->out->role[i] != FSDPCK_QUANT_PLAIN)
            continue;
        if (strcmp(leaf_of(t[i].name), "pre_quant_scale") == 0)
            return fsdpck_quant_refuse(f->src, i, f->err,
                                       "scales the inputs of a quantized weight (AWQ of modelopt); such weights cannot "
                                       "be dequantized alone");
        if (is_part_name(t[i].name))
            return fsdpck_quant_refuse(f->src, i, f->err,
                                       "has the name of a part of a quantized weight, but no codes belong to it");
        if (is_activation(&t[i]))
            f->out->role[i] = FSDPCK_QUANT_IS_ACTIVATION;
    }
    return 0;
}

/* ---- the method ---- */

static const struct {
    const char *method, *forms[6];
} methods[] = {
    { "fp8", { "block FP8", "FP8", "MXFP4", "MXFP8" } },
    { "fbgemm_fp8", { "FP8" } },
    { "compressed-tensors",
      { "FP8", "MXFP8", "NVFP4 of compressed-tensors", "MXFP4 of compressed-tensors",
        "packed integers of compressed-tensors" } },
    { "modelopt", { "FP8", "MXFP8", "MXFP4", "NVFP4 of modelopt" } },
    { "mxfp4", { "MXFP4 of gpt-oss" } },
    { "bitsandbytes", { "bitsandbytes NF4", "bitsandbytes FP4", "bitsandbytes int8" } },
    { "gptq", { "GPTQ" } },
    { "awq", { "AWQ" } },
};

static int check_form(const struct finder *f, const struct fsdpck_quant_weight *w)
{
    const char *method = f->config->method;
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        if (strcmp(methods[i].method, method) != 0)
            continue;
        for (size_t k = 0; k < 6 && methods[i].forms[k]; k++)
            if (strcmp(methods[i].forms[k], w->form) == 0)
                return 0;
        return fsdpck_quant_refuse(f->src, w->part[FSDPCK_QUANT_CODES], f->err,
                                   "is stored as %s, but quantization_config names the method '%s'", w->form, method);
    }
    return 0;
}

static int check_method(const struct finder *f)
{
    const char *method = f->config->method;
    bool known = !*method;
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        known = known || strcmp(methods[i].method, method) == 0;
    if (!known)
        return fsdpck_error_set(f->err, FSDPCK_ERR_UNSUPPORTED, f->src->path,
                                "quantization_config names the method '%s'; known are fp8, fbgemm_fp8, "
                                "compressed-tensors, modelopt, mxfp4, bitsandbytes, gptq and awq",
                                method);
    if (f->config->present && !f->list.count)
        return fsdpck_error_set(f->err, FSDPCK_ERR_FORMAT, f->src->path,
                                "config.json says that the weights are quantized%s%s, but no tensor holds codes",
                                *method ? " with " : "", method);
    return 0;
}

/* ---- finding ---- */

static int want_small(struct finder *f, const struct fsdpck_quant_weight *w)
{
    struct small *s = fsdpck_vec_push(&f->small, f->err);
    if (!s)
        return FSDPCK_ERR_NOMEM;
    for (size_t k = 0; k < sizeof small_parts / sizeof *small_parts; k++) {
        const struct fsdpck_tensor *t = quant_part(f->src, w, small_parts[k]);
        if (!t)
            continue;
        if (t->nbytes == 0 || t->nbytes > SMALL_NBYTES)
            return fsdpck_quant_refuse(f->src, w->part[small_parts[k]], f->err, "has %llu bytes; wanted 1 to %d",
                                       (unsigned long long)t->nbytes, SMALL_NBYTES);
        struct fsdpck_read *r = fsdpck_vec_push(&f->reads, f->err);
        void *data = fsdpck_arena_alloc(f->arena, t->nbytes, f->err);
        if (!r || !data)
            return FSDPCK_ERR_NOMEM;
        *r = (struct fsdpck_read){ .tensor = t, .dst = data };
        s->part[small_parts[k]] = data;
    }
    return 0;
}

/* Weights may share a part under names of their own: then the tensor has an alias. */
static int claim(struct finder *f, struct fsdpck_quant_weight *w, uint32_t number)
{
    for (int p = 0; p < FSDPCK_QUANT_NPARTS; p++) {
        size_t i = w->part[p];
        if (i == SIZE_MAX)
            continue;
        if (f->out->role[i] != FSDPCK_QUANT_PLAIN)
            return fsdpck_quant_refuse(f->src, i, f->err, "belongs to two quantized weights, '%.100s' is one", w->name);
        f->out->role[i] = p == FSDPCK_QUANT_CODES ? FSDPCK_QUANT_IS_CODES : FSDPCK_QUANT_IS_PART;
        f->out->weight_of[i] = number;
        int64_t target = source_tensors(f->src)[i].alias_of;
        if (target < 0)
            continue;
        w->part[p] = (size_t)target;
    }
    return 0;
}

static int match_all(struct finder *f)
{
    int rc = 0;
    for (size_t i = 0; i < f->src->tensors.count && !rc; i++) {
        struct fsdpck_quant_weight w;
        bool found = false;
        rc = fsdpck_quant_match(f->src, i, f->arena, &w, &found, f->err);
        struct fsdpck_quant_weight *slot = !rc && found ? fsdpck_vec_push(&f->list, f->err) : NULL;
        if (rc || !found)
            continue;
        if (!slot)
            return FSDPCK_ERR_NOMEM;
        *slot = w;
        rc = claim(f, slot, (uint32_t)(f->list.count - 1));
        if (!rc)
            rc = want_small(f, slot);
    }
    return rc;
}

static int measure_all(struct finder *f)
{
    struct fsdpck_quant_weight *w = f->list.data;
    const struct small *small = f->small.data;
    int rc = f->reads.count ? fsdpck_source_read(f->src, f->reads.data, f->reads.count, f->err) : 0;
    for (size_t i = 0; i < f->list.count && !rc; i++) {
        rc = fsdpck_quant_measure(f->src, f->config, small[i].part, &w[i], f->err);
        if (!rc)
            rc = check_form(f, &w[i]);
    }
    return rc;
}

/* Moves the list to the arena. */
static int keep(struct finder *f)
{
    size_t n = f->list.count;
    f->out->list = fsdpck_arena_array(f->arena, n, sizeof *f->out->list, f->err);
    if (!f->out->list)
        return FSDPCK_ERR_NOMEM;
    if (n)
        memcpy(f->out->list, f->list.data, n * sizeof *f->out->list);
    f->out->count = n;
    return 0;
}

int fsdpck_quant_find(struct fsdpck_source *src, const struct fsdpck_quant_config *config, struct fsdpck_arena *arena,
                      struct fsdpck_quant_weights *out, struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    size_t n = src->tensors.count;
    struct finder f = { .src = src,
                        .config = config,
                        .arena = arena,
                        .out = out,
                        .list = FSDPCK_VEC(struct fsdpck_quant_weight),
                        .reads = FSDPCK_VEC(struct fsdpck_read),
                        .small = FSDPCK_VEC(struct small),
                        .err = err ? err : &own };
    *out = (struct fsdpck_quant_weights){ 0 };
    out->role = fsdpck_arena_array(arena, n, sizeof *out->role, f.err);
    out->weight_of = fsdpck_arena_array(arena, n, sizeof *out->weight_of, f.err);
    int rc = out->role && out->weight_of ? match_all(&f) : FSDPCK_ERR_NOMEM;
    if (!rc)
        rc = check_method(&f);
    if (!rc)
        rc = check_rest(&f);
    if (!rc)
        rc = measure_all(&f);
    if (!rc)
        rc = keep(&f);
    fsdpck_vec_free(&f.list);
    fsdpck_vec_free(&f.reads);
    fsdpck_vec_free(&f.small);
    return rc;
}
