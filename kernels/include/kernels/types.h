/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by all kernel headers: element types and views of matrices. A view is a pointer, a row pitch and a type. It
 * owns nothing, and the call that takes it defines its shape. All matrices are row-major; all counts are elements. */
#ifndef KERNELS_TYPES_H
#define KERNELS_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kern_stream; /* stream.h */

enum kern_dtype { KERN_F32, KERN_BF16 };

/* Every kernel computes in fp32 (sums in fp64 where stated) and rounds to nearest even once, when it stores. */
struct kern_mat {
    void *data; /* row i starts at element i * pitch; NULL: an optional operand is absent */
    int64_t pitch;
    enum kern_dtype dtype;
};

struct kern_cmat {
    const void *data;
    int64_t pitch;
    enum kern_dtype dtype;
};

/* Status of a kernel, or of a stream: the first failure wins. */
enum kern_status {
    KERN_OK = 0,
    KERN_ERR_ARG = -1,     /* a shape or type that the kernel does not support */
    KERN_ERR_MEMORY = -2,  /* out of memory */
    KERN_ERR_LIBRARY = -3, /* a library (oneDNN, CUDA …) returned an error, which the message names */
    KERN_ERR_SYSTEM = -4,  /* threads, mmap */
    KERN_ERR_DEVICE = -5,  /* there is no such device, or it is not built in */
};

enum { KERN_MESSAGE_BYTES = 256 };

/* Sums over tokens run over blocks of this many rows; the sums of blocks are added in order. */
enum { KERN_ROW_BLOCK = 128 };

static inline int64_t kern_dtype_bytes(enum kern_dtype dtype)
{
    return dtype == KERN_BF16 ? 2 : 4;
}

/* Number of blocks of KERN_ROW_BLOCK rows in nrow rows. */
static inline int64_t kern_row_blocks(int64_t nrow)
{
    return (nrow + KERN_ROW_BLOCK - 1) / KERN_ROW_BLOCK;
}

static inline struct kern_cmat kern_const(struct kern_mat m)
{
    struct kern_cmat c = { m.data, m.pitch, m.dtype };
    return c;
}

#ifdef __cplusplus
}
#endif
#endif
