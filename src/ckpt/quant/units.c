/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of quantized weights in the dimensions of the tensors that hold their codes. */
#include "quant/units.h"

#include "quant/config_find.h"
#include "quant/quantized_config.h"
#include "quant/weights.h"

/* Codes in an element of the tensor: a byte of FP8 is one, a word of GPTQ eight. */
static uint64_t codes_each(const struct fsdpck_quant_weight *w, const struct fsdpck_tensor *t)
{
    const uint64_t bits = w->code == FSDPCK_DECODE_NIBBLE ? 4 : 8, n = fsdpck_dtype_info(t->dtype)->nbytes * 8 / bits;
    return n ? n : 1;
}

static uint64_t in_elements(uint64_t codes, uint64_t each)
{
    return codes > each ? codes / each : 1;
}

/* Flat codes are one run. The scales of several blocks may have one scale in turn. */
static void set_flat(const struct fsdpck_quant_weight *w, const struct fsdpck_tensor *t, uint64_t *unit)
{
    uint64_t blocks = w->rule == FSDPCK_SCALE_NESTED ? w->nested_block : 1;
    if (w->group_cols <= UINT64_MAX / blocks)
        unit[0] = in_elements(w->group_cols * blocks, codes_each(w, t));
}

static void set_units(const struct fsdpck_quant_weight *w, const struct fsdpck_tensor *t, uint64_t *unit)
{
    const uint64_t each = codes_each(w, t);
    uint64_t *rows = &unit[t->ndim - 2], *cols = &unit[t->ndim - 1];
    /* One scale along a dimension belongs to the row or the tensor, not to a block of its own. */
    const bool has_rows = w->grid_rows > 1 || w->has_blocks, has_cols = w->grid_cols > 1 || w->has_blocks;
    if (t->ndim == 4) {
        *cols = t->shape[3]; /* gpt-oss: a dimension of groups, and one of the bytes of a group */
    } else if (w->packing == FSDPCK_PACK_DOWN) {
        if (w->part[FSDPCK_QUANT_INDEX] == SIZE_MAX && has_cols) /* with an index, groups lie apart */
            *rows = in_elements(w->group_cols, each);
    } else {
        *rows = has_rows ? w->group_rows : 1;
        *cols = has_cols ? in_elements(w->group_cols, each) : 1;
    }
}

static int add_weight(struct fsdpck_source *src, const struct fsdpck_quant_weight *w, struct fsdpck_arena *arena,
                      const uint64_t **out, struct fsdpck_error *err)
{
    const size_t codes = w->part[FSDPCK_QUANT_CODES], scales = w->part[FSDPCK_QUANT_SCALE];
    const struct fsdpck_tensor *t = &source_tensors(src)[codes];
    uint64_t *unit = fsdpck_arena_array(arena, t->ndim + 1, sizeof *unit, err);
    uint64_t *nested = fsdpck_arena_array(arena, 1, sizeof *nested, err);
    if (!unit || !nested)
        return FSDPCK_ERR_NOMEM;
    for (uint32_t d = 0; d < t->ndim; d++)
        unit[d] = 1;
    if (w->flat)
        set_flat(w, t, unit);
    else
        set_units(w, t, unit);
    out[codes] = unit;
    if (w->rule == FSDPCK_SCALE_NESTED && source_tensors(src)[scales].ndim == 1) {
        *nested = w->nested_block;
        out[scales] = nested;
    }
    return 0;
}

int fsdpck_quant_units_find(struct fsdpck_source *src, struct fsdpck_arena *arena, const uint64_t ***out,
                            struct fsdpck_error *why, struct fsdpck_error *err)
{
    struct fsdpck_quant_config config = { 0 };
    struct fsdpck_quant_weights weights;
    const size_t n = src->tensors.count;
    const uint64_t **units = fsdpck_arena_array(arena, n + 1, sizeof *units, err);
    if (!units)
        return FSDPCK_ERR_NOMEM;
    for (size_t i = 0; i < n; i++)
        units[i] = NULL;
    *out = units;
    *why = (struct fsdpck_error){ 0 };
    if (src->dequantized)
        return 0;
    int rc = fsdpck_quantized_by_view(src) ? 0 : fsdpck_quant_config_find(src, NULL, &config, why);
    if (!rc)
        rc = fsdpck_quant_find(src, &config, arena, &weights, why);
    if (rc == FSDPCK_ERR_NOMEM || rc == FSDPCK_ERR_IO || rc == FSDPCK_ERR_STOPPED || rc == FSDPCK_ERR_DAMAGED)
        *err = *why;
    if (rc)
        return err->code;
    for (size_t i = 0; i < weights.count && !rc; i++)
        rc = add_weight(src, &weights.list[i], arena, units, err);
    return rc;
}
