/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the weights to quantize, by name, dtype and shape. */
#include "quant/targets.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fsdpck/select.h>

#include "base/suffix.h"
#include "hf/quantized.h"
#include "hf/weight_names.h"

static const struct fsdpck_quant_target_form forms[] = {
    { .name = "fp8-block",
      .what = "block FP8",
      .to = FSDPCK_TO_FP8_BLOCK,
      .group_rows = 128,
      .group_cols = 128,
      .per_byte = 1,
      .outputs = { { FSDPCK_OUT_CODES, "", FSDPCK_FLOAT8_E4M3FN },
                   { FSDPCK_OUT_SCALES, "_scale_inv", FSDPCK_FLOAT32 } } },
    { .name = "mxfp4",
      .what = "MXFP4 of compressed-tensors",
      .to = FSDPCK_TO_MXFP4,
      .group_rows = 1,
      .group_cols = 32,
      .per_byte = 2,
      .whole_groups = true,
      .mx = FSDPCK_MX_ROUNDED,
      .outputs = { { FSDPCK_OUT_CODES, "_packed", FSDPCK_UINT8 }, { FSDPCK_OUT_SCALES, "_scale", FSDPCK_UINT8 } } },
    { .name = "nvfp4",
      .what = "NVFP4 of compressed-tensors",
      .to = FSDPCK_TO_NVFP4,
      .group_rows = 1,
      .group_cols = 16,
      .per_byte = 2,
      .whole_groups = true,
      .nv = FSDPCK_NVFP4_COMPRESSED_TENSORS,
      .outputs = { { FSDPCK_OUT_CODES, "_packed", FSDPCK_UINT8 },
                   { FSDPCK_OUT_SCALES, "_scale", FSDPCK_FLOAT8_E4M3FN },
                   { FSDPCK_OUT_GLOBAL, "_global_scale", FSDPCK_FLOAT32 } } },
    { .name = "nf4",
      .what = "bitsandbytes NF4",
      .to = FSDPCK_TO_NF4,
      .group_rows = 1,
      .group_cols = 64,
      .per_byte = 2,
      .flat = true,
      .outputs = { { FSDPCK_OUT_CODES, "", FSDPCK_UINT8 },
                   { FSDPCK_OUT_SCALES, ".absmax", FSDPCK_FLOAT32 },
                   { FSDPCK_OUT_MAP, ".quant_map", FSDPCK_FLOAT32 },
                   { FSDPCK_OUT_STATE, ".quant_state.bitsandbytes__nf4", FSDPCK_UINT8 } } },
};

/* What the reference libraries, and nearly all published models, leave as it is. */
static const char *const usually_kept[] = {
    "*embed*",  "*.wte.weight",  "*.wpe.weight",         "lm_head.*",        "*.lm_head.*", "output.weight", "*norm*",
    "*router*", "*.gate.weight", "*shared_expert_gate*", "*.eh_proj.weight", "*.lora_*",    "mtp.fc.*",
};

const struct fsdpck_quant_target_form *fsdpck_quant_target_form(const char *name)
{
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (strcmp(forms[i].name, name) == 0)
            return &forms[i];
    return NULL;
}

enum fsdpck_dtype fsdpck_quant_scale_dtype(const struct fsdpck_quant_target_form *form)
{
    int k = 0;
    while (form->outputs[k].output != FSDPCK_OUT_SCALES)
        k++;
    return form->outputs[k].dtype;
}

bool fsdpck_quant_needs_global(const struct fsdpck_quant_target_form *form)
{
    return form->to == FSDPCK_TO_NVFP4 || form->to == FSDPCK_TO_FP8_WHOLE;
}

static uint64_t ceil_div(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

uint32_t fsdpck_quant_target_shape(const struct fsdpck_quant_target_form *form,
                                   const struct fsdpck_quant_target *target, enum fsdpck_quant_output output,
                                   uint64_t shape[2])
{
    shape[0] = output == FSDPCK_OUT_GLOBAL ? 1 : output == FSDPCK_OUT_MAP ? 16 : 0;
    if (output == FSDPCK_OUT_STATE)
        shape[0] = strlen(target->state);
    if (shape[0])
        return 1;
    if (output == FSDPCK_OUT_CODES) {
        uint64_t nbytes = ceil_div(target->cols, form->per_byte);
        shape[0] = form->flat ? nbytes : target->rows;
        shape[1] = form->flat ? 1 : nbytes;
        return 2;
    }
    uint64_t along = ceil_div(target->cols, form->group_cols);
    shape[0] = form->flat ? along : ceil_div(target->rows, form->group_rows);
    shape[1] = along;
    return form->flat ? 1 : 2;
}

/* ---- choosing ---- */

struct choice {
    const struct fsdpck_source *src;
    const struct fsdpck_quant_target_form *form;
    const char *const *keep;
    size_t nkeep;
    struct fsdpck_arena *arena;
    struct fsdpck_error *err;
};

static bool is_real(const struct fsdpck_tensor *t)
{
    return t->dtype == FSDPCK_FLOAT32 || t->dtype == FSDPCK_FLOAT16 || t->dtype == FSDPCK_BFLOAT16;
}

static bool matches(const char *const *globs, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (fsdpck_glob_match(globs[i], name))
            return true;
    return false;
}

static bool stays(const struct choice *c, const char *name)
{
    return matches(usually_kept, sizeof usually_kept / sizeof *usually_kept, name) || matches(c->keep, c->nkeep, name);
}

/* All experts of a layer as one matrix (view/experts_rows.h). */
static bool is_experts(const char *name)
{
    return ends_with(name, ".experts.gate_up_proj") || ends_with(name, ".experts.down_proj");
}

static bool is_weight(const struct fsdpck_tensor *t)
{
    return t->alias_of < 0 && !fsdpck_weight_is_state(t) && t->ndim == 2 && t->nelem && is_real(t) &&
           (ends_with(t->name, ".weight") || strcmp(t->name, "weight") == 0 || is_experts(t->name));
}

static int refuse(const struct choice *c, const struct fsdpck_tensor *t, const char *what)
{
    fsdpck_error_set(c->err, FSDPCK_ERR_UNSUPPORTED, c->src->path, "%s", what);
    fsdpck_error_tensor(c->err, t->name);
    return FSDPCK_ERR_UNSUPPORTED;
}

/* Weights of experts in one tensor would silently stay as they are. */
static int check_experts(const struct choice *c, const struct fsdpck_tensor *t)
{
    if (t->alias_of >= 0 || t->ndim != 3 || !is_real(t) || !strstr(t->name, "experts") || stays(c, t->name))
        return 0;
    char what[200];
    snprintf(what, sizeof what, "holds the matrices of %llu experts; --quantize takes weights of two dimensions",
             (unsigned long long)t->shape[0]);
    int rc = refuse(c, t, what);
    fsdpck_error_hint(c->err, "--keep '%.300s' leaves it as it is", t->name);
    return rc;
}

static int check_groups(const struct choice *c, const struct fsdpck_tensor *t)
{
    if (!c->form->whole_groups || t->shape[1] % c->form->group_cols == 0)
        return 0;
    char what[200];
    snprintf(what, sizeof what, "has rows of %llu elements; %s needs a multiple of %llu",
             (unsigned long long)t->shape[1], c->form->what, (unsigned long long)c->form->group_cols);
    int rc = refuse(c, t, what);
    fsdpck_error_hint(c->err, "--keep '%.300s' leaves it as it is", t->name);
    return rc;
}

static int check_not_quantized(const struct choice *c, const struct fsdpck_tensor *t)
{
    const char *beside = fsdpck_quantized_beside(c->src, t);
    if (!beside)
        return 0;
    int rc = refuse(c, t, "is part of a quantized weight already");
    fsdpck_error_hint(c->err, "--dequantize bf16 with --quantize quantizes it again, in another form");
    return rc;
}

/* The JSON that bitsandbytes stores with a weight, byte for byte. */
static const char *state_text(const struct choice *c, const struct fsdpck_tensor *t)
{
    char text[200];
    int n = snprintf(text, sizeof text,
                     "{\"quant_type\": \"nf4\", \"blocksize\": %llu, \"dtype\": \"%s\", \"shape\": [%llu, %llu]}",
                     (unsigned long long)c->form->group_cols, fsdpck_dtype_info(t->dtype)->name,
                     (unsigned long long)t->shape[0], (unsigned long long)t->shape[1]);
    return fsdpck_arena_strndup(c->arena, text, (size_t)n, c->err);
}

static int add(const struct choice *c, size_t ordinal, struct fsdpck_quant_targets *out)
{
    const struct fsdpck_tensor *t = &source_tensors(c->src)[ordinal];
    struct fsdpck_quant_target *target = &out->list[out->count];
    int rc = check_groups(c, t);
    if (rc)
        return rc;
    *target =
        (struct fsdpck_quant_target){ .form = c->form, .inner = ordinal, .rows = t->shape[0], .cols = t->shape[1] };
    if (c->form->flat) {
        target->rows = 1;
        target->cols = t->nelem;
        if (!(target->state = state_text(c, t)))
            return FSDPCK_ERR_NOMEM;
    }
    if (pthread_mutex_init(&target->lock, NULL) != 0)
        return fsdpck_error_nomem(c->err, sizeof target->lock);
    out->of[ordinal] = (uint32_t)out->count++;
    return 0;
}

/* A tensor that is kept under one of its names is kept under all. */
static int mark_kept_aliases(const struct choice *c, bool *kept)
{
    const struct fsdpck_tensor *t = source_tensors(c->src);
    for (size_t i = 0; i < c->src->tensors.count; i++)
        if (stays(c, t[i].name))
            kept[t[i].alias_of < 0 ? i : (size_t)t[i].alias_of] = true;
    return 0;
}

static int choose(const struct choice *c, const bool *kept, struct fsdpck_quant_targets *out)
{
    const struct fsdpck_tensor *t = source_tensors(c->src);
    int rc = 0;
    for (size_t i = 0; i < c->src->tensors.count && !rc; i++) {
        out->of[i] = UINT32_MAX;
        rc = check_not_quantized(c, &t[i]);
        if (!rc)
            rc = check_experts(c, &t[i]);
        if (!rc && !kept[i] && is_weight(&t[i]))
            rc = add(c, i, out);
    }
    if (!rc && !out->count)
        rc =
            fsdpck_error_set(c->err, FSDPCK_ERR_UNSUPPORTED, c->src->path,
                             "has no weight for --quantize: no matrix named '….weight' is left besides those that stay "
                             "as they are");
    return rc;
}

int fsdpck_quant_targets_choose(const struct fsdpck_source *src, const struct fsdpck_quant_target_form *form,
                                const char *const *keep, size_t nkeep, struct fsdpck_arena *arena,
                                struct fsdpck_quant_targets *out, struct fsdpck_error *err)
{
    const struct choice c = { src, form, keep, nkeep, arena, err };
    const size_t n = src->tensors.count;
    *out = (struct fsdpck_quant_targets){ .form = form };
    out->of = fsdpck_arena_array(arena, n + 1, sizeof *out->of, err);
    out->list = fsdpck_arena_array(arena, n + 1, sizeof *out->list, err);
    bool *kept = calloc(n + 1, sizeof *kept);
    int rc = !out->of || !out->list ? FSDPCK_ERR_NOMEM : kept ? 0 : fsdpck_error_nomem(err, n);
    if (!rc)
        rc = fsdpck_globs_check(src, "--keep", keep, nkeep, err);
    if (!rc)
        rc = mark_kept_aliases(&c, kept);
    if (!rc)
        rc = choose(&c, kept, out);
    free(kept);
    if (rc)
        fsdpck_quant_targets_free(out);
    return rc;
}

void fsdpck_quant_targets_free(struct fsdpck_quant_targets *t)
{
    for (size_t i = 0; i < t->count; i++) {
        pthread_mutex_destroy(&t->list[i].lock);
        fsdpck_kept_scales_free(&t->list[i].kept);
    }
    t->count = 0;
}
