/* SPDX-License-Identifier: Apache-2.0 */
#include "quant/again.h"

#include <string.h>

#include "quant/encode.h"

/* Forms as they are read, and what writes them. FP8 is told apart by its scales. */
static const struct {
    const char *form;
    enum fsdpck_quant_arithmetic to;
    enum fsdpck_nvfp4_rule nv;
    bool flat;
    unsigned per_byte;
} known[] = {
    { "block FP8", FSDPCK_TO_FP8_BLOCK, 0, false, 1 },
    { "FP8", FSDPCK_TO_FP8_SCALED, 0, false, 1 },
    { "MXFP8", FSDPCK_TO_MXFP8, 0, false, 1 },
    { "MXFP4 of compressed-tensors", FSDPCK_TO_MXFP4, 0, false, 2 },
    { "MXFP4", FSDPCK_TO_MXFP4, 0, false, 2 },
    { "MXFP4 of gpt-oss", FSDPCK_TO_MXFP4, 0, false, 2 },
    { "NVFP4 of compressed-tensors", FSDPCK_TO_NVFP4, FSDPCK_NVFP4_COMPRESSED_TENSORS, false, 2 },
    { "NVFP4 of modelopt", FSDPCK_TO_NVFP4, FSDPCK_NVFP4_MODELOPT, false, 2 },
    { "bitsandbytes NF4", FSDPCK_TO_NF4, 0, true, 2 },
};

enum { MAX_NESTED = 1 << 16 }; /* scales that are quantized together; bitsandbytes has 256 */

static bool is_method(const struct fsdpck_quant_config *config, const char *method)
{
    return strcmp(config->method, method) == 0;
}

/* The rule for exponents that differs from library to library. */
static enum fsdpck_mx_rule mx_rule(const struct fsdpck_quant_weight *w, const struct fsdpck_quant_config *config)
{
    if (w->code == FSDPCK_DECODE_E4M3 && is_method(config, "modelopt"))
        return FSDPCK_MX_CEIL;
    return is_method(config, "compressed-tensors") || strcmp(w->form, "MXFP4 of compressed-tensors") == 0
               ? FSDPCK_MX_ROUNDED
               : FSDPCK_MX_FLOOR;
}

/* Blocks of FP8 whose scales are BF16 or F16, rows, and whole weights. */
static void set_fp8(const struct fsdpck_quant_weight *w, const struct fsdpck_tensor *scale,
                    struct fsdpck_quant_target_form *out)
{
    const bool whole = scale->nelem == 1 && w->nmat == 1;
    if (out->to == FSDPCK_TO_FP8_BLOCK && (scale->dtype == FSDPCK_BFLOAT16 || scale->dtype == FSDPCK_FLOAT16))
        out->to = FSDPCK_TO_FP8_SCALED;
    if (out->to == FSDPCK_TO_FP8_BLOCK && fsdpck_dtype_info(scale->dtype)->nbytes == 1)
        out->ue8m0 = true;
    if (out->to != FSDPCK_TO_FP8_SCALED || !whole || (w->rows == 1 && w->has_blocks))
        return;
    out->to = FSDPCK_TO_FP8_WHOLE;
    out->group_rows = 1;
    out->group_cols = UINT64_C(1) << 62; /* one group, however long the row */
}

static bool set_form(const struct fsdpck_source *src, const struct fsdpck_quant_weight *w,
                     const struct fsdpck_quant_config *config, struct fsdpck_quant_target_form *out)
{
    const struct fsdpck_tensor *scale = quant_part(src, w, FSDPCK_QUANT_SCALE);
    const bool nested = w->rule == FSDPCK_SCALE_NESTED; /* they are quantized in a second step */
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(w->form, known[i].form) != 0)
            continue;
        *out = (struct fsdpck_quant_target_form){
            .what = w->form,
            .to = known[i].to,
            .group_rows = w->group_rows,
            .group_cols = w->group_cols,
            .per_byte = known[i].per_byte,
            .flat = known[i].flat,
            .ue8m0 = config->ue8m0,
            .outputs = { { FSDPCK_OUT_CODES, "", quant_part(src, w, FSDPCK_QUANT_CODES)->dtype },
                         { FSDPCK_OUT_SCALES, "", nested ? FSDPCK_FLOAT32 : scale->dtype } },
            .via = w->via,
            .mx = mx_rule(w, config),
            .nv = known[i].nv,
        };
        set_fp8(w, scale, out);
        return true;
    }
    return false;
}

enum fsdpck_quant_output fsdpck_quant_output_of(enum fsdpck_quant_part part)
{
    switch (part) {
    case FSDPCK_QUANT_CODES: return FSDPCK_OUT_CODES;
    case FSDPCK_QUANT_SCALE: return FSDPCK_OUT_SCALES;
    case FSDPCK_QUANT_GLOBAL: return FSDPCK_OUT_GLOBAL;
    case FSDPCK_QUANT_NESTED: return FSDPCK_OUT_NESTED;
    default: return FSDPCK_OUT_PLAIN;
    }
}

/* Whether blocks lie within the piece that is quantized at once, and none in two matrices of a stack. */
static bool blocks_fit(const struct fsdpck_quant_weight *w, const struct fsdpck_quant_target_form *form)
{
    const bool whole = form->to == FSDPCK_TO_FP8_WHOLE;
    const uint64_t rows = form->group_rows, cols = whole ? w->cols : w->group_cols;
    if (w->transposed) /* all rows of some columns are a piece */
        return form->to == FSDPCK_TO_MXFP4 && w->rows <= FSDPCK_QUANT_MAX_GROUP / form->group_cols;
    if (form->flat) /* blocks begin with a byte */
        return cols % 2 == 0 && cols <= FSDPCK_QUANT_MAX_GROUP;
    return cols <= FSDPCK_QUANT_MAX_GROUP / rows && (w->nmat == 1 || (!whole && w->rows % rows == 0));
}

/* NF4 codes and scales in the shapes in which bitsandbytes writes them: a column of bytes, and lists. */
static bool has_flat_shapes(const struct fsdpck_source *src, const struct fsdpck_quant_weight *w)
{
    const struct fsdpck_tensor *codes = quant_part(src, w, FSDPCK_QUANT_CODES),
                               *nested = quant_part(src, w, FSDPCK_QUANT_NESTED);
    return codes->ndim == 2 && codes->shape[1] == 1 && quant_part(src, w, FSDPCK_QUANT_SCALE)->ndim == 1 &&
           (!nested || nested->ndim == 1);
}

/* Whether the parts of the weight are those that the form makes. */
static bool fits(const struct fsdpck_source *src, const struct fsdpck_quant_weight *w,
                 const struct fsdpck_quant_target_form *form)
{
    const struct fsdpck_tensor *codes = quant_part(src, w, FSDPCK_QUANT_CODES),
                               *scale = quant_part(src, w, FSDPCK_QUANT_SCALE);
    const bool nf4 = form->to == FSDPCK_TO_NF4;
    return !quant_part(src, w, FSDPCK_QUANT_ZERO) &&
           (w->rule != FSDPCK_SCALE_NESTED || w->nested_block <= MAX_NESTED) &&
           (!nf4 || (codes->dtype == FSDPCK_UINT8 && has_flat_shapes(src, w) &&
                     (scale->dtype == FSDPCK_FLOAT32 || w->rule == FSDPCK_SCALE_NESTED))) &&
           blocks_fit(w, form);
}

int fsdpck_quant_form_again(const struct fsdpck_source *src, const struct fsdpck_quant_weight *w,
                            const struct fsdpck_quant_config *config, struct fsdpck_quant_target_form *out,
                            struct fsdpck_error *err)
{
    if (set_form(src, w, config, out) && fits(src, w, out))
        return 0;
    fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, src->path,
                     "is stored as %s of a kind that is read and not written: merged, it could not be quantized again",
                     w->form);
    fsdpck_error_tensor(err, w->name);
    fsdpck_error_hint(err, "--dequantize bf16 merges into the dequantized weights, and writes these");
    return err->code;
}
