/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the quantized weights of a source: which stored tensors make one logical weight, its shape, and the blocks that
 * share a scale. The tensors' names, dtypes and shapes decide; quantization_config adds what they cannot say, and must
 * not contradict them.
 *
 * Every form is brought to one: nmat matrices of rows x cols codes, each row dense, and a grid of scales over blocks of
 * group_rows x group_cols codes. The logical weight has the shape [rows, cols], [nmat, rows, cols], or, if transposed,
 * the last two swapped. bitsandbytes counts its blocks over the flattened weight: one row of all codes. */
#ifndef CKPT_QUANT_WEIGHTS_H
#define CKPT_QUANT_WEIGHTS_H

#include "engine/source_impl.h"
#include "quant/config.h"
#include "quant/decode.h"

enum fsdpck_quant_part {
    FSDPCK_QUANT_CODES,
    FSDPCK_QUANT_SCALE,
    FSDPCK_QUANT_GLOBAL, /* one scale of all scales */
    FSDPCK_QUANT_ZERO,
    FSDPCK_QUANT_INDEX, /* group of each column */
    FSDPCK_QUANT_SHAPE,
    FSDPCK_QUANT_MAP, /* values of the 16 codes */
    FSDPCK_QUANT_NESTED,
    FSDPCK_QUANT_NESTED_MAP,
    FSDPCK_QUANT_STATE, /* JSON of bitsandbytes */
    FSDPCK_QUANT_NPARTS
};

/* How a scale is computed from what is stored. */
enum fsdpck_quant_rule {
    FSDPCK_SCALE_FLOAT,   /* the value */
    FSDPCK_SCALE_E8M0,    /* 2^(byte - 127) */
    FSDPCK_SCALE_DIVIDED, /* E4M3 value / global */
    FSDPCK_SCALE_TIMES,   /* E4M3 value * global */
    FSDPCK_SCALE_127TH,   /* value * (1/127) */
    FSDPCK_SCALE_NESTED,  /* nested_map[byte] * nested[block / nested_block] + nested_offset */
};

/* How codes are packed. */
enum fsdpck_quant_packing {
    FSDPCK_PACK_BYTES,   /* a byte each */
    FSDPCK_PACK_NIBBLES, /* two a byte, low nibble first */
    FSDPCK_PACK_HIGH,    /* two a byte, high nibble first */
    FSDPCK_PACK_AWQ,     /* eight a word, in AWQ's order */
    FSDPCK_PACK_DOWN,    /* words of codes that are neighbours in a column (GPTQ): rows of words are columns of codes */
};

struct fsdpck_quant_weight {
    const char *name;
    const char *form;                 /* for messages: "block FP8" */
    size_t part[FSDPCK_QUANT_NPARTS]; /* ordinals of the source; SIZE_MAX: none */
    uint32_t ndim;
    uint64_t shape[3];
    uint64_t nmat, rows, cols;
    bool transposed, flat;
    bool has_blocks;     /* the form's scales are those of blocks, however few; other forms may have one for all */
    uint64_t row_nbytes; /* of a row of codes; PACK_DOWN: of a row as it is once its words are turned */
    uint64_t group_rows, group_cols, grid_rows, grid_cols;
    enum fsdpck_decode_code code;
    enum fsdpck_quant_packing packing;
    enum fsdpck_quant_rule rule;
    enum fsdpck_dtype via; /* dtype that the library's own dequantizer computes in; FLOAT32: rounds only the result */
    unsigned bits;         /* of integer codes; their zero is 2^(bits - 1). 0: floating-point codes */
    bool plus_zero;        /* E2M1: code 8 is +0 */
    bool zero_less_one;    /* GPTQ stores zero points less one */
    uint64_t nested_block;
    float nested_offset;
};

enum fsdpck_quant_role {
    FSDPCK_QUANT_PLAIN,
    FSDPCK_QUANT_IS_CODES,
    FSDPCK_QUANT_IS_PART,       /* of a weight, besides its codes */
    FSDPCK_QUANT_IS_ACTIVATION, /* a scale of activations: no part of a weight's value */
};

struct fsdpck_quant_weights {
    struct fsdpck_quant_weight *list; /* (count) by the ordinals of their codes; parts are first names */
    size_t count;
    uint8_t *role;       /* (ntensors) enum fsdpck_quant_role */
    uint32_t *weight_of; /* (ntensors) position in list, where the role is CODES or PART */
};

/* Reads the small tensors that hold shapes (compressed-tensors, bitsandbytes). Everything lives in the arena. Parts
 * that are missing, or contradict each other or the config, are refused in one line. */
int fsdpck_quant_find(struct fsdpck_source *src, const struct fsdpck_quant_config *config, struct fsdpck_arena *arena,
                      struct fsdpck_quant_weights *out, struct fsdpck_error *err);

/* For quant/ only: the steps of the above. */
/* Sets name, form and parts of the weight whose codes tensor `ordinal` are; *found false if they are none. Parts may
 * be second names (aliases). A second name of codes may have no parts. */
int fsdpck_quant_match(const struct fsdpck_source *src, size_t ordinal, struct fsdpck_arena *arena,
                       struct fsdpck_quant_weight *out, bool *found, struct fsdpck_error *err);
/* Sets the geometry from shapes. small[part]: the bytes of SHAPE and STATE. */
int fsdpck_quant_measure(const struct fsdpck_source *src, const struct fsdpck_quant_config *config,
                         const void *const small[FSDPCK_QUANT_NPARTS], struct fsdpck_quant_weight *w,
                         struct fsdpck_error *err);
/* Sets the geometry of bitsandbytes' 4-bit codes from its JSON. */
int fsdpck_quant_read_state(const struct fsdpck_source *src, const char *text, size_t nbytes,
                            struct fsdpck_quant_weight *w, struct fsdpck_error *err);
/* Returns an error that names a part: "found …". */
int fsdpck_quant_refuse(const struct fsdpck_source *src, size_t ordinal, struct fsdpck_error *err, const char *fmt, ...)
    FSDPCK_PRINTF(4, 5);

static inline const struct fsdpck_tensor *quant_part(const struct fsdpck_source *src,
                                                     const struct fsdpck_quant_weight *w, enum fsdpck_quant_part part)
{
    return w->part[part] == SIZE_MAX ? NULL : &source_tensors(src)[w->part[part]];
}

#endif
