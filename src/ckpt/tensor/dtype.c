/* SPDX-License-Identifier: Apache-2.0 */
/* The element types as one table, and the numeric value of a single element. It knows no files or formats: those look
 * up their names here. dtype_cast.c converts in bulk. */
#include <fsdpck/dtype.h>

#include <assert.h>
#include <math.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "elements are handled as they are stored, little-endian: this processor would need swaps in many places"
#endif

static const struct fsdpck_dtype_info table[FSDPCK_NDTYPES] = {
    [FSDPCK_FLOAT64] = { "float64", "F64", "DoubleStorage", FSDPCK_KIND_FLOAT, 8, 8 },
    [FSDPCK_FLOAT32] = { "float32", "F32", "FloatStorage", FSDPCK_KIND_FLOAT, 4, 4 },
    [FSDPCK_FLOAT16] = { "float16", "F16", "HalfStorage", FSDPCK_KIND_FLOAT, 2, 2 },
    [FSDPCK_BFLOAT16] = { "bfloat16", "BF16", "BFloat16Storage", FSDPCK_KIND_FLOAT, 2, 2 },
    [FSDPCK_INT64] = { "int64", "I64", "LongStorage", FSDPCK_KIND_INT, 8, 8 },
    [FSDPCK_INT32] = { "int32", "I32", "IntStorage", FSDPCK_KIND_INT, 4, 4 },
    [FSDPCK_INT16] = { "int16", "I16", "ShortStorage", FSDPCK_KIND_INT, 2, 2 },
    [FSDPCK_INT8] = { "int8", "I8", "CharStorage", FSDPCK_KIND_INT, 1, 1 },
    [FSDPCK_UINT64] = { "uint64", "U64", NULL, FSDPCK_KIND_UINT, 8, 8 },
    [FSDPCK_UINT32] = { "uint32", "U32", NULL, FSDPCK_KIND_UINT, 4, 4 },
    [FSDPCK_UINT16] = { "uint16", "U16", NULL, FSDPCK_KIND_UINT, 2, 2 },
    [FSDPCK_UINT8] = { "uint8", "U8", "ByteStorage", FSDPCK_KIND_UINT, 1, 1 },
    [FSDPCK_BOOL] = { "bool", "BOOL", "BoolStorage", FSDPCK_KIND_BOOL, 1, 1 },
    [FSDPCK_COMPLEX128] = { "complex128", NULL, "ComplexDoubleStorage", FSDPCK_KIND_COMPLEX, 16, 8 },
    [FSDPCK_COMPLEX64] = { "complex64", "C64", "ComplexFloatStorage", FSDPCK_KIND_COMPLEX, 8, 4 },
    [FSDPCK_COMPLEX32] = { "complex32", NULL, NULL, FSDPCK_KIND_COMPLEX, 4, 2 },
    [FSDPCK_FLOAT8_E4M3FN] = { "float8_e4m3fn", "F8_E4M3", NULL, FSDPCK_KIND_FLOAT, 1, 1 },
    [FSDPCK_FLOAT8_E5M2] = { "float8_e5m2", "F8_E5M2", NULL, FSDPCK_KIND_FLOAT, 1, 1 },
    [FSDPCK_FLOAT8_E4M3FNUZ] = { "float8_e4m3fnuz", "F8_E4M3FNUZ", NULL, FSDPCK_KIND_FLOAT, 1, 1 },
    [FSDPCK_FLOAT8_E5M2FNUZ] = { "float8_e5m2fnuz", "F8_E5M2FNUZ", NULL, FSDPCK_KIND_FLOAT, 1, 1 },
    [FSDPCK_FLOAT8_E8M0FNU] = { "float8_e8m0fnu", "F8_E8M0", NULL, FSDPCK_KIND_FLOAT, 1, 1 },
    [FSDPCK_FLOAT4_E2M1FN_X2] = { "float4_e2m1fn_x2", "F4", NULL, FSDPCK_KIND_FLOAT, 1, 1 },
};

const struct fsdpck_dtype_info *fsdpck_dtype_info(enum fsdpck_dtype dtype)
{
    assert((unsigned)dtype < FSDPCK_NDTYPES);
    return &table[dtype];
}

bool fsdpck_dtype_from_name(const char *name, enum fsdpck_dtype *out)
{
    for (int d = 0; d < FSDPCK_NDTYPES; d++)
        if (strcmp(table[d].name, name) == 0) {
            *out = (enum fsdpck_dtype)d;
            return true;
        }
    return false;
}

bool fsdpck_dtype_from_safetensors(const char *code, enum fsdpck_dtype *out)
{
    for (int d = 0; d < FSDPCK_NDTYPES; d++)
        if (table[d].safetensors && strcmp(table[d].safetensors, code) == 0) {
            *out = (enum fsdpck_dtype)d;
            return true;
        }
    return false;
}

/* Decodes sign, exponent, mantissa; the caller handles the codes for NaN and infinity. */
static double decode_small(unsigned code, int exponent_bits, int mantissa_bits, int bias)
{
    int exponent = (int)(code >> mantissa_bits) & ((1 << exponent_bits) - 1);
    int mantissa = (int)code & ((1 << mantissa_bits) - 1);
    if (exponent == 0)
        exponent = 1; /* subnormal: no hidden bit */
    else
        mantissa |= 1 << mantissa_bits;
    double magnitude = ldexp(mantissa, exponent - bias - mantissa_bits);
    return code >> (exponent_bits + mantissa_bits) & 1 ? -magnitude : magnitude;
}

static double decode_e4m3fn(unsigned code)
{
    return (code & 0x7f) == 0x7f ? (double)NAN : decode_small(code, 4, 3, 7);
}

static double decode_e5m2(unsigned code)
{
    if ((code & 0x7f) > 0x7c)
        return (double)NAN;
    if ((code & 0x7f) == 0x7c)
        return code & 0x80 ? -(double)INFINITY : (double)INFINITY;
    return decode_small(code, 5, 2, 15);
}

/* fnuz: no infinity, no negative zero; the code of negative zero is the only NaN. */
static double decode_fnuz(unsigned code, int exponent_bits, int mantissa_bits, int bias)
{
    return code == 0x80 ? (double)NAN : decode_small(code, exponent_bits, mantissa_bits, bias);
}

static double decode_e8m0(unsigned code)
{
    return code == 0xff ? (double)NAN : ldexp(1.0, (int)code - 127);
}

static void decode_byte(enum fsdpck_dtype dtype, uint8_t code, double v[2])
{
    switch (dtype) {
    case FSDPCK_INT8: v[0] = (int8_t)code; break;
    case FSDPCK_UINT8: v[0] = code; break;
    case FSDPCK_BOOL: v[0] = code != 0; break;
    case FSDPCK_FLOAT8_E4M3FN: v[0] = decode_e4m3fn(code); break;
    case FSDPCK_FLOAT8_E5M2: v[0] = decode_e5m2(code); break;
    case FSDPCK_FLOAT8_E4M3FNUZ: v[0] = decode_fnuz(code, 4, 3, 8); break;
    case FSDPCK_FLOAT8_E5M2FNUZ: v[0] = decode_fnuz(code, 5, 2, 16); break;
    case FSDPCK_FLOAT8_E8M0FNU: v[0] = decode_e8m0(code); break;
    case FSDPCK_FLOAT4_E2M1FN_X2:
        v[0] = decode_small(code & 15, 2, 1, 1);
        v[1] = decode_small(code >> 4, 2, 1, 1);
        break;
    default: assert(!"a wider dtype");
    }
}

/* Loads through memcpy, because elements in a file buffer have any alignment. */
#define LOAD(type, from, to) \
    do { \
        type loaded; \
        memcpy(&loaded, from, sizeof loaded); \
        (to) = (double)loaded; \
    } while (0)

void fsdpck_dtype_to_double(enum fsdpck_dtype dtype, const void *element, double v[2])
{
    v[0] = v[1] = 0;
    switch (dtype) {
    case FSDPCK_FLOAT64:
    case FSDPCK_FLOAT32:
    case FSDPCK_FLOAT16:
    case FSDPCK_BFLOAT16: fsdpck_dtype_cast(dtype, element, FSDPCK_FLOAT64, v, 1); break;
    case FSDPCK_COMPLEX128: memcpy(v, element, 16); break;
    case FSDPCK_COMPLEX64: fsdpck_dtype_cast(FSDPCK_FLOAT32, element, FSDPCK_FLOAT64, v, 2); break;
    case FSDPCK_COMPLEX32: fsdpck_dtype_cast(FSDPCK_FLOAT16, element, FSDPCK_FLOAT64, v, 2); break;
    case FSDPCK_INT64: LOAD(int64_t, element, v[0]); break;
    case FSDPCK_INT32: LOAD(int32_t, element, v[0]); break;
    case FSDPCK_INT16: LOAD(int16_t, element, v[0]); break;
    case FSDPCK_UINT64: LOAD(uint64_t, element, v[0]); break;
    case FSDPCK_UINT32: LOAD(uint32_t, element, v[0]); break;
    case FSDPCK_UINT16: LOAD(uint16_t, element, v[0]); break;
    default: decode_byte(dtype, *(const uint8_t *)element, v);
    }
}
