/* SPDX-License-Identifier: Apache-2.0 */
/* FP8 codes: of blocks, with scales as transformers or as compressed-tensors, fbgemm and modelopt make them, and MXFP8.
 */
#include <math.h>

#include "quant/decode.h"
#include "quant/quantize_impl.h"

static const float e4m3_max = 448.0f;

uint8_t fsdpck_e8m0_code(float power)
{
    int exponent;
    frexpf(power, &exponent); /* 0.5 * 2^exponent */
    return (uint8_t)(exponent - 1 + 127);
}

/* The factor of a block's values (torch divides a number by a tensor as 1 / tensor * number); *inv becomes that of its
 * codes. */
static float fp8_factor(float amax, bool ue8m0, float *inv)
{
    float factor = amax > 0 ? 1.0f / amax * e4m3_max : 1.0f;
    if (!isfinite(factor))
        factor = 1.0f; /* so small a block becomes zeros; the library writes NaN, which is 0 * infinity */
    *inv = 1.0f / factor;
    if (!ue8m0)
        return factor;
    *inv = exp2f(ceilf(log2f(*inv > 0x1p-126f ? *inv : 0x1p-126f)));
    return 1.0f / *inv;
}

void fsdpck_quantize_fp8(const float *in, uint64_t nrows, uint64_t ncols, const struct fsdpck_fp8_blocks *blocks,
                         uint8_t *codes, float *scale_inv)
{
    for (uint64_t i = 0; i < nrows; i += blocks->rows)
        for (uint64_t k = 0; k < ncols; k += blocks->cols) {
            uint64_t nr = nrows - i < blocks->rows ? nrows - i : blocks->rows;
            uint64_t nc = ncols - k < blocks->cols ? ncols - k : blocks->cols;
            float amax = 0;
            for (uint64_t r = 0; r < nr; r++) {
                float row = fsdpck_quantize_amax(in + (i + r) * ncols + k, nc);
                amax = row > amax ? row : amax;
            }
            float factor = fp8_factor(amax, blocks->ue8m0, scale_inv++);
            const struct fsdpck_encoding e = { .kind = FSDPCK_CODES_E4M3, .by = &factor, .group = UINT64_MAX };
            for (uint64_t r = 0; r < nr && codes; r++)
                fsdpck_quantize_codes(&e, in + (i + r) * ncols + k, nc, codes + (i + r) * ncols + k);
        }
}

/* ---- scales of another dtype ---- */

float fsdpck_fp8_scale(float amax, enum fsdpck_dtype dtype)
{
    uint8_t stored[4];
    float scale = amax / e4m3_max;
    fsdpck_dtype_cast(FSDPCK_FLOAT32, &scale, dtype, stored, 1);
    fsdpck_dtype_cast(dtype, stored, FSDPCK_FLOAT32, &scale, 1);
    return scale > 0 ? scale : 1.0f;
}

void fsdpck_quantize_fp8_by(const float *in, uint64_t nelem, float scale, uint8_t *codes)
{
    const struct fsdpck_encoding e = { .kind = FSDPCK_CODES_E4M3, .divide = true, .by = &scale, .group = UINT64_MAX };
    fsdpck_quantize_codes(&e, in, nelem, codes);
}

void fsdpck_quantize_fp8_scaled(const float *in, uint64_t nrows, uint64_t ncols, const struct fsdpck_fp8_blocks *blocks,
                                enum fsdpck_dtype dtype, uint8_t *codes, float *scales)
{
    for (uint64_t i = 0; i < nrows; i += blocks->rows)
        for (uint64_t k = 0; k < ncols; k += blocks->cols) {
            const uint64_t nr = nrows - i < blocks->rows ? nrows - i : blocks->rows;
            const uint64_t nc = ncols - k < blocks->cols ? ncols - k : blocks->cols;
            float amax = 0;
            for (uint64_t r = 0; r < nr; r++) {
                const float row = fsdpck_quantize_amax(in + (i + r) * ncols + k, nc);
                amax = row > amax ? row : amax;
            }
            *scales = fsdpck_fp8_scale(amax, dtype);
            for (uint64_t r = 0; r < nr && codes; r++)
                fsdpck_quantize_fp8_by(in + (i + r) * ncols + k, nc, *scales, codes + (i + r) * ncols + k);
            scales++;
        }
}

/* ---- MXFP8 ---- */

enum { MX = 32 };

void fsdpck_quantize_mxfp8(const float *in, uint64_t nelem, enum fsdpck_mx_rule rule, uint8_t *codes, uint8_t *scales)
{
    for (uint64_t at = 0; at < nelem / MX; at++) {
        const int exponent = fsdpck_mx_exponent(fsdpck_quantize_amax(in + at * MX, MX), e4m3_max, rule);
        const float by = fsdpck_e8m0_value((uint8_t)(127 - exponent));
        const struct fsdpck_encoding e = { .kind = FSDPCK_CODES_E4M3, .by = &by, .group = UINT64_MAX };
        scales[at] = (uint8_t)(exponent + 127);
        if (codes)
            fsdpck_quantize_codes(&e, in + at * MX, MX, codes + at * MX);
    }
}
