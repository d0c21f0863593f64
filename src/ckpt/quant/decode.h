/* SPDX-License-Identifier: Apache-2.0 */
/* Dequantizes runs of codes: value of the code, minus the zero point of its group, times the scale of its group,
 * rounded as the library that wrote the codes rounds it. Knows neither files nor how a format stores its scales. */
#ifndef CKPT_QUANT_DECODE_H
#define CKPT_QUANT_DECODE_H

#include <fsdpck/dtype.h>

enum fsdpck_decode_code {
    FSDPCK_DECODE_E4M3, /* one byte: 4 exponent and 3 mantissa bits, no infinity, 0x7f and 0xff are NaN */
    FSDPCK_DECODE_INT8,
    FSDPCK_DECODE_NIBBLE, /* two codes a byte, whose values a table holds */
};

struct fsdpck_decode {
    enum fsdpck_decode_code code;
    enum fsdpck_dtype via; /* the product is rounded to it first; FSDPCK_FLOAT32: it is not */
    enum fsdpck_dtype to;  /* float32, float16 or bfloat16 */
    float pairs[256][2];   /* NIBBLE: the two values of each byte */
};

/* Fills pairs from the values of the 16 codes. high_first: a byte's first code is its high nibble. */
void fsdpck_decode_set_table(struct fsdpck_decode *d, const float values[16], bool high_first);
/* The values of the E2M1 codes. plus_zero: code 8 is +0, not -0. */
void fsdpck_decode_set_e2m1(struct fsdpck_decode *d, bool plus_zero);

/* Scales of the elements of a run: element e (counted as in `first` below) has scale[group], where group is
 * (phase + e) / nelem, or index[phase + e] if there is an index. */
struct fsdpck_groups {
    const float *scale;
    const float *zero;    /* NULL: none */
    const int32_t *index; /* NULL: groups of nelem elements */
    uint64_t nelem;       /* at least 1 */
    uint64_t phase;
};

/* Dequantizes elements [first, first + nelem) of the run whose element 0 is the first code at `codes`. out: dense, of
 * d->to, any alignment. The same bits on every processor. */
void fsdpck_decode_run(const struct fsdpck_decode *d, const uint8_t *codes, uint64_t first, uint64_t nelem,
                       const struct fsdpck_groups *groups, void *out);

/* Returns the value of one E4M3 code, of an E8M0 code (2^(code - 127); 255 is NaN), or of an E2M1 code below 16. */
float fsdpck_e4m3_value(uint8_t code);
float fsdpck_e8m0_value(uint8_t code);
float fsdpck_e2m1_value(uint8_t code);

#endif
