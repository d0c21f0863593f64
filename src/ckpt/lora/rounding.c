/* SPDX-License-Identifier: Apache-2.0 */
#include "lora/rounding.h"

#include <string.h>

#include "quant/quantize.h"

static bool is_fp8(const struct fsdpck_quant_target_form *form)
{
    return form->to <= FSDPCK_TO_MXFP8;
}

/* The factor of the codes of group i. */
static float scale_at(const struct fsdpck_quant_target_form *form, float global, const void *scales, uint64_t i)
{
    const enum fsdpck_dtype dtype = fsdpck_quant_scale_dtype(form);
    const uint64_t item = fsdpck_dtype_info(dtype)->nbytes;
    const uint8_t *at = (const uint8_t *)scales + i * item;
    float f;
    if (form->to == FSDPCK_TO_NVFP4)
        return form->nv == FSDPCK_NVFP4_MODELOPT ? fsdpck_e4m3_value(*at) * global : fsdpck_e4m3_value(*at) / global;
    if (item == 1)
        return fsdpck_e8m0_value(*at);
    fsdpck_dtype_cast(dtype, at, FSDPCK_FLOAT32, &f, 1);
    return f;
}

static void set_codes(struct fsdpck_decode *d, const struct fsdpck_quant_target_form *form)
{
    *d = (struct fsdpck_decode){ .code = is_fp8(form) ? FSDPCK_DECODE_E4M3 : FSDPCK_DECODE_NIBBLE,
                                 .via = form->via,
                                 .to = FSDPCK_FLOAT32 };
    if (form->to == FSDPCK_TO_NF4)
        fsdpck_decode_set_table(d, fsdpck_nf4_values, true);
    else if (!is_fp8(form))
        fsdpck_decode_set_e2m1(d, false);
}

void fsdpck_rounding_add(const struct fsdpck_quant_target_form *form, float global,
                         const struct fsdpck_rounding_row *row, float *room, double *error, double *change)
{
    const uint64_t n = row->nelem, nblocks = (row->phase + n - 1) / form->group_cols + 1;
    float *values = room, *scales = room + n;
    struct fsdpck_decode d;
    set_codes(&d, form);
    for (uint64_t i = 0; i < nblocks; i++)
        scales[i] = scale_at(form, global, row->scales, i);
    const struct fsdpck_groups groups = { .scale = scales, .nelem = form->group_cols, .phase = row->phase };
    fsdpck_decode_run(&d, row->codes, 0, n, &groups, values);
    for (uint64_t i = 0; i < n; i++) {
        const double e = (double)values[i] - row->exact[i], c = (double)row->exact[i] - row->before[i];
        *error += e * e;
        *change += c * c;
    }
}
