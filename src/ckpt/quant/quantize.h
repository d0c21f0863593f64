/* SPDX-License-Identifier: Apache-2.0 */
/* Quantizes bands of weights with the arithmetic, and so the bits, of the libraries whose formats they are. Input is
 * float32 without NaN and infinity: cast weights of other dtypes first (all of these libraries compute in float32). The
 * same bits on every processor. Where codes are NULL, only the scales are computed. */
#ifndef CKPT_QUANT_QUANTIZE_H
#define CKPT_QUANT_QUANTIZE_H

#include <stdbool.h>
#include <stdint.h>

#include <fsdpck/dtype.h>

/* Returns the largest absolute value; 0 if there is none. */
float fsdpck_quantize_amax(const float *in, uint64_t nelem);

/* Block FP8 as transformers writes it: one scale for each rows x cols block, the last of each direction may be partial.
 */
struct fsdpck_fp8_blocks {
    uint64_t rows, cols;
    bool ue8m0; /* scales are powers of two */
};
/* in: (nrows, ncols) dense, from the start of a row of blocks on. codes: (nrows, ncols) E4M3; scale_inv: one for each
 * block, row-major: what a code is multiplied by. */
void fsdpck_quantize_fp8(const float *in, uint64_t nrows, uint64_t ncols, const struct fsdpck_fp8_blocks *blocks,
                         uint8_t *codes, float *scale_inv);
/* The scale of FP8 codes as compressed-tensors, fbgemm and modelopt compute it: amax / 448 in float32, rounded to the
 * dtype in which it is stored; 1 for zeros. */
float fsdpck_fp8_scale(float amax, enum fsdpck_dtype dtype);
/* Codes of values divided by a scale. */
void fsdpck_quantize_fp8_by(const float *in, uint64_t nelem, float scale, uint8_t *codes);
/* As fsdpck_quantize_fp8(), with such scales. */
void fsdpck_quantize_fp8_scaled(const float *in, uint64_t nrows, uint64_t ncols, const struct fsdpck_fp8_blocks *blocks,
                                enum fsdpck_dtype dtype, uint8_t *codes, float *scales);
/* Returns the E8M0 code of a power of two. */
uint8_t fsdpck_e8m0_code(float power);

/* The exponent of a group of 32, from its largest absolute value; they differ from library to library. */
enum fsdpck_mx_rule {
    FSDPCK_MX_FLOOR,   /* OCP: floor; large values saturate. -0 keeps its sign */
    FSDPCK_MX_ROUNDED, /* compressed-tensors: floor of amax rounded up from 1.75 times a power of two on */
    FSDPCK_MX_CEIL,    /* modelopt: no value saturates */
};
/* nelem: a multiple of 32. codes: nelem bytes, E4M3; scales: E8M0. */
void fsdpck_quantize_mxfp8(const float *in, uint64_t nelem, enum fsdpck_mx_rule rule, uint8_t *codes, uint8_t *scales);
/* nelem: a multiple of 32. codes: nelem / 2 bytes, low nibble first; scales: E8M0. */
void fsdpck_quantize_mxfp4(const float *in, uint64_t nelem, enum fsdpck_mx_rule rule, uint8_t *codes, uint8_t *scales);

enum fsdpck_nvfp4_rule { FSDPCK_NVFP4_COMPRESSED_TENSORS, FSDPCK_NVFP4_MODELOPT };
/* Returns the scale of all scales: weight_global_scale (which divides), or weight_scale_2 (which multiplies). amax: of
 * the whole tensor. */
float fsdpck_nvfp4_global(float amax, enum fsdpck_nvfp4_rule rule);
/* nelem: a multiple of 16. codes: nelem / 2 bytes, low nibble first; scales: E4M3. */
void fsdpck_quantize_nvfp4(const float *in, uint64_t nelem, float global, enum fsdpck_nvfp4_rule rule, uint8_t *codes,
                           uint8_t *scales);

extern const float fsdpck_nf4_values[16];
/* bitsandbytes NF4 of a band that begins with a block; a block at the end may be short. codes: (nelem + 1) / 2 bytes,
 * high nibble first; absmax: one for each block. block: even. */
void fsdpck_quantize_nf4(const float *in, uint64_t nelem, uint64_t block, uint8_t *codes, float *absmax);

#endif
