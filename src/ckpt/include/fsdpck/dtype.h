/* SPDX-License-Identifier: Apache-2.0 */
/* Element types: every fixed-size dtype that torch saves, by torch's names. */
#ifndef FSDPCK_DTYPE_H
#define FSDPCK_DTYPE_H

#include <fsdpck/error.h>

#ifdef __cplusplus
extern "C" {
#endif

enum fsdpck_dtype {
    FSDPCK_FLOAT64,
    FSDPCK_FLOAT32,
    FSDPCK_FLOAT16,
    FSDPCK_BFLOAT16,
    FSDPCK_INT64,
    FSDPCK_INT32,
    FSDPCK_INT16,
    FSDPCK_INT8,
    FSDPCK_UINT64,
    FSDPCK_UINT32,
    FSDPCK_UINT16,
    FSDPCK_UINT8,
    FSDPCK_BOOL,
    FSDPCK_COMPLEX128,
    FSDPCK_COMPLEX64,
    FSDPCK_COMPLEX32,
    FSDPCK_FLOAT8_E4M3FN,
    FSDPCK_FLOAT8_E5M2,
    FSDPCK_FLOAT8_E4M3FNUZ,
    FSDPCK_FLOAT8_E5M2FNUZ,
    FSDPCK_FLOAT8_E8M0FNU,
    FSDPCK_FLOAT4_E2M1FN_X2, /* two values a byte: an element is that byte */
    FSDPCK_NDTYPES
};

enum fsdpck_dtype_kind { FSDPCK_KIND_FLOAT, FSDPCK_KIND_INT, FSDPCK_KIND_UINT, FSDPCK_KIND_BOOL, FSDPCK_KIND_COMPLEX };

struct fsdpck_dtype_info {
    const char *name;          /* torch's: "bfloat16" (also the GLOBAL `torch bfloat16` in pickles) */
    const char *safetensors;   /* "BF16", or NULL: safetensors has no such dtype */
    const char *torch_storage; /* "BFloat16Storage", or NULL: saved as UntypedStorage with _rebuild_tensor_v3 */
    enum fsdpck_dtype_kind kind;
    uint32_t nbytes; /* of one element: 1, 2, 4, 8, 16 */
    uint32_t swap;   /* unit of byte order, in bytes: 4 for complex64; 1 = none */
};

/* Returns a static description; never NULL for a valid dtype. */
FSDPCK_API const struct fsdpck_dtype_info *fsdpck_dtype_info(enum fsdpck_dtype dtype);
/* Finds a dtype by torch's name, without "torch."; returns false if the name is unknown. */
FSDPCK_API bool fsdpck_dtype_from_name(const char *name, enum fsdpck_dtype *out);
FSDPCK_API bool fsdpck_dtype_from_safetensors(const char *code, enum fsdpck_dtype *out);

/* Casts between float64, float32, float16 and bfloat16, as torch's .to() does: rounds to nearest, ties to even; a NaN
 * stays a quiet NaN with its sign; overflow gives infinity. src and dst (nelem elements) must not overlap and may be
 * unaligned. Returns false for any other dtype. */
FSDPCK_API bool fsdpck_dtype_cast(enum fsdpck_dtype from, const void *src, enum fsdpck_dtype to, void *dst,
                                  uint64_t nelem);

/* Converts one element to double, for printing and comparing. A complex element gives its real and imaginary part, a
 * bool 0 or 1, a FLOAT4 byte two values: v[0] is the low nibble, v[1] the high one. 64-bit integers beyond 2^53 are
 * rounded: print them as integers. */
FSDPCK_API void fsdpck_dtype_to_double(enum fsdpck_dtype dtype, const void *element, double v[2]);

#ifdef __cplusplus
}
#endif
#endif
