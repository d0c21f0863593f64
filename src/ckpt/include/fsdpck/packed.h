/* SPDX-License-Identifier: Apache-2.0 */
/* Frozen weights as a trainer holds them: quantized weights row by row, each row with everything that its values need.
 * Rows can be sharded, gathered and dequantized one by one, whatever blocks they have on disk. */
#ifndef FSDPCK_PACKED_H
#define FSDPCK_PACKED_H

#include <fsdpck/source.h>

#ifdef __cplusplus
extern "C" {
#endif

enum fsdpck_packed_code {
    FSDPCK_PACKED_E4M3,    /* a byte each: 4 exponent and 3 mantissa bits; 0x7f and 0xff are NaN */
    FSDPCK_PACKED_NIBBLES, /* two a byte, low nibble first: numbers in values[] */
};

/* How the scale of a group is stored. */
enum fsdpck_packed_scale {
    FSDPCK_PACKED_F32,
    FSDPCK_PACKED_E8M0,         /* a byte: 2^(byte - 127) */
    FSDPCK_PACKED_E4M3_TIMES,   /* a byte: E4M3 value * global, rounded to float32 */
    FSDPCK_PACKED_E4M3_DIVIDED, /* a byte: E4M3 value / global, rounded to float32 */
};

/* A row of a packed weight: the codes of its `cols` elements, padding to a multiple of 4 bytes, one scale for each
 * group of elements, padding again, and the float32 `global` where there is one. All little-endian. An element is its
 * code's value times its group's scale, a product in float32 that is rounded to bfloat16. */
struct fsdpck_packed {
    enum fsdpck_packed_code code;
    enum fsdpck_packed_scale scale;
    float values[16];    /* NIBBLES */
    uint64_t rows, cols; /* of a stack of matrices, the rows of all: see fsdpck_source_hold() */
    uint64_t group;      /* elements with one scale */
    bool flat; /* groups are counted over the whole weight: row r begins with element r * cols % group of one */
    uint64_t row_nbytes;           /* a multiple of 4 */
    uint64_t scales_at, global_at; /* bytes into a row */
};

/* Presents the weights of a model as a trainer holds a frozen base.
 * how: "as stored": quantized weights (FP8, MXFP8, MXFP4, NVFP4, 4-bit of bitsandbytes and of compressed-tensors) are
 * listed under the names of their weights, as UINT8 tensors [rows, row_nbytes]. gpt-oss's experts, [experts, in, out],
 * are listed as rows of `in` elements: `out` rows of the first expert, then those of the next.
 * Other forms, embeddings and heads are dequantized to bfloat16. "bf16": all are dequantized to bfloat16.
 * "fp8-block", "mxfp4", "nvfp4", "nf4": weights are quantized as by fsdpck_source_quantize(), gpt-oss's experts too, as
 * one matrix of those rows; then they are listed so. A source that is quantized is refused.
 * A source without quantized weights does not change, but for the last four.
 * Call it right after opening: pointers into the catalogue become invalid. After a failure the source can only be
 * closed. */
FSDPCK_API int fsdpck_source_hold(struct fsdpck_source *src, const char *how, struct fsdpck_error *err);
/* Returns `how`, one of the above, if that changed the source; otherwise NULL. */
FSDPCK_API const char *fsdpck_source_held(const struct fsdpck_source *src);
/* Sets *is; if the tensor is a packed weight, describes its rows. */
FSDPCK_API int fsdpck_source_packed(struct fsdpck_source *src, const struct fsdpck_tensor *tensor, bool *is,
                                    struct fsdpck_packed *out, struct fsdpck_error *err);

#ifdef __cplusplus
}
#endif
#endif
