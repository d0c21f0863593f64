/* SPDX-License-Identifier: Apache-2.0 */
/* The names of torch's element types in pickles, for lists of allowed names. */
#ifndef CKPT_TORCH_NAMES_H
#define CKPT_TORCH_NAMES_H

#define FSDPCK_TORCH_STORAGES \
    "torch DoubleStorage", "torch FloatStorage", "torch HalfStorage", "torch BFloat16Storage", "torch LongStorage", \
        "torch IntStorage", "torch ShortStorage", "torch CharStorage", "torch ByteStorage", "torch BoolStorage", \
        "torch ComplexDoubleStorage", "torch ComplexFloatStorage"
#define FSDPCK_TORCH_DTYPES \
    "torch float64", "torch float32", "torch float16", "torch bfloat16", "torch int64", "torch int32", "torch int16", \
        "torch int8", "torch uint64", "torch uint32", "torch uint16", "torch uint8", "torch bool", "torch complex128", \
        "torch complex64", "torch complex32", "torch float8_e4m3fn", "torch float8_e5m2", "torch float8_e4m3fnuz", \
        "torch float8_e5m2fnuz", "torch float8_e8m0fnu", "torch float4_e2m1fn_x2"

#endif
