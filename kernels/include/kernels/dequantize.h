/* SPDX-License-Identifier: Apache-2.0 */
/* Quantized weights, dequantized just before a product uses them. Each row holds all that its values need: the codes of
 * its columns, at scales_at a scale for each group of columns, and at global_at the scale of all scales. */
#ifndef KERNELS_DEQUANTIZE_H
#define KERNELS_DEQUANTIZE_H

#include <kernels/types.h>

#ifdef __cplusplus
extern "C" {
#endif

enum kern_code {
    KERN_CODE_E4M3,    /* a byte: 4 exponent and 3 mantissa bits, no infinity; 0x7f and 0xff are NaN */
    KERN_CODE_NIBBLES, /* two a byte, low nibble first; a table has their values. ncol is even */
};

enum kern_code_scale {
    KERN_SCALE_F32,
    KERN_SCALE_E8M0,         /* a byte: 2^(byte - 127) */
    KERN_SCALE_E4M3_TIMES,   /* a byte: E4M3 value · global, rounded to fp32 */
    KERN_SCALE_E4M3_DIVIDED, /* a byte: E4M3 value / global, rounded to fp32 */
};

struct kern_packed {
    enum kern_code code;
    enum kern_code_scale scale;
    float values[16]; /* of nibbles */
    int64_t group;    /* columns with one scale */
    bool flat;        /* groups run on from row to row: row i begins with element i · ncol % group of one */
    int64_t pitch;    /* bytes from a row to the next, a multiple of 4, as the offsets are */
    int64_t scales_at, global_at;
};

struct kern_dequantize {
    int64_t nrow, ncol;
    struct kern_packed form;
    int64_t first;    /* number of the first row in its matrix */
    const void *rows; /* (nrow, form.pitch) bytes, aligned to 4 */
    bool turned;      /* to is (ncol, nrow): rows become its columns */
    struct kern_mat to;
};
/* to = value of the code · scale of its group: a product in fp32, rounded to bf16. If `to` is fp32, the rounded value
 * is widened. NaN stays NaN. All devices give the same bits, but for the payload of a NaN. */
typedef void kern_dequantize_fn(struct kern_stream *, const struct kern_dequantize *);

/* Number of the scales that a row has room for. */
static inline int64_t kern_packed_nscales(const struct kern_packed *form, int64_t ncol)
{
    return form->flat && ncol % form->group ? (ncol + 2 * form->group - 2) / form->group
                                            : (ncol + form->group - 1) / form->group;
}

#ifdef __cplusplus
}
#endif
#endif
