/* SPDX-License-Identifier: Apache-2.0 */
/* Element types: every fixed-size dtype that torch saves, by torch's names. */
#ifndef FSDPCK_DTYPE_H
#define FSDPCK_DTYPE_H

#include <fsdpck/error.h>

#ifdef __cplusplus
extern "C" {
#endif

enum fsdpck_dtype {
    FSDPCK_FLOAT64, FSDPCK_FLOAT32, FSDPCK_FLOAT16, FSDPCK_BFLOAT16,
    FSDPCK_INT64, FSDPCK_INT32, FSDPCK_INT16, FSDPCK_INT8,
    FSDPCK_UINT64, FSDPCK_UINT32, FSDPCK_UINT16, FSDPCK_UINT8, FSDPCK_BOOL,
    FSDPCK_COMPLEX128, FSDPCK_COMPLEX64, FSDPCK_COMPLEX32,
    FSDPCK_FLOAT8_E4M3FN, FSDPCK_FLOAT8_E5M2, FSDPCK_FLOAT8_E4M3FNUZ, FSDPCK_FLOAT8_E5M2FNUZ, FSDPCK_FLOAT8_E8M0FNU,
    FSDPCK_FLOAT4_E2M1FN_X2, /* two values a byte: an element is that byte */
    FSDPCK_NDTYPES
};

enum fsdpck_dtype_kind { FSDPCK_KIND_FLOAT, FSDPCK_KIND_INT, FSDPCK_KIND_UINT, FSDPCK_KIND_BOOL, FSDPCK_KIND_COMPLEX };

struct fsdpck_dtype_info {
    const char *name;          /* torch's: "bfloat16" (also the GLOBAL `torch bfloat16` in pickles) */
    const char *safetensors;   /* "BF16", or NULL where safetensors has none */
    const char *torch_storage; /* "BFloat16Storage", or NULL: saved as UntypedStorage with _rebuild_tensor_v3 */
    enum fsdpck_dtype_kind kind;
    uint32_t nbytes; /* of one element: 1, 2, 4, 8, 16 */
    uint32_t swap;   /* unit of byte order, in bytes: 4 for complex64; 1 = none */
};

/* Never NULL for a valid dtype; static storage. */
FSDPCK_API const struct fsdpck_dtype_info *fsdpck_dtype_info(enum fsdpck_dtype dtype);
/* By torch's name, without "torch."; false where unknown. */
FSDPCK_API bool fsdpck_dtype_from_name(const char *name, enum fsdpck_dtype *out);
FSDPCK_API bool fsdpck_dtype_from_safetensors(const char *code, enum fsdpck_dtype *out);

/* Casts between float64, float32, float16 and bfloat16, rounding to nearest, ties to even; NaN stays NaN (quiet, sign kept),
 * overflow gives infinity: what torch's .to() gives. src and dst (nelem elements) may not overlap, may be unaligned.
 * false where one of the dtypes is none of those four. */
FSDPCK_API bool fsdpck_dtype_cast(enum fsdpck_dtype from, const void *src, enum fsdpck_dtype to, void *dst, uint64_t nelem);

/* One element as a double (complex: real part first, then imag; bool: 0 or 1), for printing and comparing. 64-bit integers
 * beyond 2^53 round: print those as integers. FLOAT4 gives two values: v[0] low nibble, v[1] high. */
FSDPCK_API void fsdpck_dtype_to_double(enum fsdpck_dtype dtype, const void *element, double v[2]);

#ifdef __cplusplus
}
#endif
#endif
