/* SPDX-License-Identifier: Apache-2.0 */
/* Compares elements. Knows dtypes, not tensors. Works in blocks: equal bytes cost one memcmp; any other block is
 * widened to doubles and subtracted in loops of constant length without branches, so that compilers vectorise them. */
#include "verbs/diff_values.h"

#include <complex.h>
#include <math.h>
#include <string.h>

enum { BLOCK = 512 };                                /* elements */
#define INLINE inline __attribute__((always_inline)) /* inlined into functions built for several processors */

bool fsdpck_dtype_comparable(enum fsdpck_dtype a, enum fsdpck_dtype b)
{
    return a == b || (a != FSDPCK_FLOAT4_E2M1FN_X2 && b != FSDPCK_FLOAT4_E2M1FN_X2);
}

static bool is_64bit_integer(enum fsdpck_dtype d)
{
    return d == FSDPCK_INT64 || d == FSDPCK_UINT64;
}

static bool is_complex(enum fsdpck_dtype d)
{
    return fsdpck_dtype_info(d)->kind == FSDPCK_KIND_COMPLEX;
}

/* Returns the number of values in one element: real and imaginary part, or the two of a byte of FP4. */
static unsigned nparts(enum fsdpck_dtype d)
{
    return is_complex(d) || d == FSDPCK_FLOAT4_E2M1FN_X2 ? 2 : 1;
}

/* ---- elements to doubles */

/* The values of each code of a one-byte dtype; filled once per call. */
struct codes {
    double worth[256][2];
};

static void fill_codes(enum fsdpck_dtype dtype, struct codes *codes)
{
    if (fsdpck_dtype_info(dtype)->nbytes != 1)
        return;
    for (unsigned i = 0; i < 256; i++) {
        uint8_t code = (uint8_t)i;
        fsdpck_dtype_to_double(dtype, &code, codes->worth[i]);
    }
}

#define WIDEN(type) \
    for (uint64_t i = 0; i < n; i++) { \
        type loaded; \
        memcpy(&loaded, in + i * sizeof loaded, sizeof loaded); \
        out[i] = (double)loaded; \
    } \
    break

static void widen_codes(const struct codes *codes, const uint8_t *in, unsigned parts, uint64_t n, double *out)
{
    for (uint64_t i = 0; parts == 1 && i < n; i++)
        out[i] = codes->worth[in[i]][0];
    for (uint64_t i = 0; parts == 2 && i < n; i++)
        memcpy(out + 2 * i, codes->worth[in[i]], sizeof codes->worth[0]);
}

/* Converts n elements to n * nparts(dtype) doubles. */
static void widen(enum fsdpck_dtype dtype, const struct codes *codes, const char *in, uint64_t n, double *out)
{
    switch (dtype) {
    case FSDPCK_FLOAT64:
    case FSDPCK_FLOAT32:
    case FSDPCK_FLOAT16:
    case FSDPCK_BFLOAT16: fsdpck_dtype_cast(dtype, in, FSDPCK_FLOAT64, out, n); break;
    case FSDPCK_COMPLEX128: memcpy(out, in, 16 * n); break;
    case FSDPCK_COMPLEX64: fsdpck_dtype_cast(FSDPCK_FLOAT32, in, FSDPCK_FLOAT64, out, 2 * n); break;
    case FSDPCK_COMPLEX32: fsdpck_dtype_cast(FSDPCK_FLOAT16, in, FSDPCK_FLOAT64, out, 2 * n); break;
    case FSDPCK_INT64: WIDEN(int64_t);
    case FSDPCK_INT32: WIDEN(int32_t);
    case FSDPCK_INT16: WIDEN(int16_t);
    case FSDPCK_UINT64: WIDEN(uint64_t);
    case FSDPCK_UINT32: WIDEN(uint32_t);
    case FSDPCK_UINT16: WIDEN(uint16_t);
    default: widen_codes(codes, (const uint8_t *)in, nparts(dtype), n, out);
    }
}

/* A real number compared with a complex one has an imaginary part of 0. Goes from last to first, because it works in
 * place. */
static void add_imaginary(double *v, uint64_t n)
{
    for (uint64_t i = n; i-- > 0;) {
        v[2 * i] = v[i];
        v[2 * i + 1] = 0;
    }
}

/* ---- distances, of whole blocks: both sides are 0 after the last element */

/* Computes |a - b| in place of a. NaN equals NaN and is infinitely far from all other values; infinity equals itself,
 * although infinity - infinity is NaN. */
static INLINE void subtract(double *restrict a, const double *restrict b, unsigned nvalues)
{
    for (unsigned i = 0; i < nvalues; i++) {
        double x = a[i], y = b[i], d = fabs(x - y);
        int same = (x == y) | ((x != x) & (y != y));
        d = d != d ? (double)INFINITY : d;
        a[i] = same ? 0 : d;
    }
}

/* A double has 53 bits of significand, so large integers are subtracted as integers. */
static void subtract_integers(enum fsdpck_dtype dtype, const char *a, const char *b, uint64_t n, double *out)
{
    /* maps signed numbers to unsigned ones in the same order */
    const uint64_t sign = dtype == FSDPCK_INT64 ? UINT64_C(1) << 63 : 0;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t x, y;
        memcpy(&x, a + i * 8, 8);
        memcpy(&y, b + i * 8, 8);
        x ^= sign;
        y ^= sign;
        out[i] = (double)(x > y ? x - y : y - x);
    }
}

/* Combines the distances of the parts into the distance of two complex numbers, in place. Squares of 64-bit values
 * could overflow: cabs() scales them. (So does hypot(), which binaries would need glibc 2.35 for.) */
static void join_complex(double *d, uint64_t n, bool wide)
{
    for (uint64_t i = 0; wide && i < n; i++) {
        double complex z;
        memcpy(&z, d + 2 * i, sizeof z);
        d[i] = cabs(z);
    }
    for (uint64_t i = 0; !wide && i < n; i++)
        d[i] = sqrt(d[2 * i] * d[2 * i] + d[2 * i + 1] * d[2 * i + 1]);
}

static void join_larger(double *d, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        d[i] = d[2 * i] > d[2 * i + 1] ? d[2 * i] : d[2 * i + 1];
}

static INLINE double largest(const double *d)
{
    enum { LANES = 8 }; /* independent maxima per loop: a single maximum would be a dependency chain of BLOCK steps */
    double most[LANES] = { 0 };
    for (int i = 0; i < BLOCK; i += LANES)
        for (int k = 0; k < LANES; k++)
            most[k] = d[i + k] > most[k] ? d[i + k] : most[k];
    for (int k = 1; k < LANES; k++)
        most[0] = most[k] > most[0] ? most[k] : most[0];
    return most[0];
}

static INLINE uint64_t count_beyond(const double *d, double tolerance)
{
    uint64_t count = 0;
    for (int i = 0; i < BLOCK; i++)
        count += d[i] > tolerance;
    return count;
}

#define COUNT(type) \
    for (uint64_t i = 0; i < n; i++) { \
        type x, y; \
        memcpy(&x, a + i * sizeof x, sizeof x); \
        memcpy(&y, b + i * sizeof y, sizeof y); \
        count += x != y; \
    } \
    break

/* Counts the elements whose bytes differ. */
static INLINE uint64_t count_unequal(const char *a, const char *b, uint64_t n, uint64_t nbytes)
{
    uint64_t count = 0;
    switch (nbytes) {
    case 1: COUNT(uint8_t);
    case 2: COUNT(uint16_t);
    case 4: COUNT(uint32_t);
    case 8: COUNT(uint64_t);
    default:
        for (uint64_t i = 0; i < n; i++)
            count += memcmp(a + i * nbytes, b + i * nbytes, nbytes) != 0;
    }
    return count;
}

/* ---- blocks */

/* One side of a comparison. */
struct side {
    enum fsdpck_dtype dtype;
    const char *bytes;
    uint64_t nbytes; /* of one element */
    struct codes codes;
    double values[2 * BLOCK];
};

static void start_side(struct side *s, enum fsdpck_dtype dtype, const void *bytes)
{
    s->dtype = dtype;
    s->bytes = bytes;
    s->nbytes = fsdpck_dtype_info(dtype)->nbytes;
    fill_codes(dtype, &s->codes);
}

static void widen_side(struct side *s, uint64_t at, uint64_t n, unsigned parts)
{
    widen(s->dtype, &s->codes, s->bytes + at * s->nbytes, n, s->values);
    if (nparts(s->dtype) < parts)
        add_imaginary(s->values, n);
    if (n < BLOCK)
        memset(s->values + n * parts, 0, (BLOCK - n) * parts * sizeof *s->values);
}

/* Computes the distances of elements at .. at + n, in a->values. */
static INLINE void block_distances(struct side *a, struct side *b, uint64_t at, uint64_t n)
{
    unsigned parts = nparts(a->dtype) > nparts(b->dtype) ? nparts(a->dtype) : nparts(b->dtype);
    if (a->dtype == b->dtype && is_64bit_integer(a->dtype)) {
        subtract_integers(a->dtype, a->bytes + at * 8, b->bytes + at * 8, n, a->values);
        memset(a->values + n, 0, (BLOCK - n) * sizeof *a->values);
        return;
    }
    widen_side(a, at, n, parts);
    widen_side(b, at, n, parts);
    if (parts == 1) {
        subtract(a->values, b->values, BLOCK);
        return;
    }
    subtract(a->values, b->values, 2 * BLOCK);
    if (is_complex(a->dtype) || is_complex(b->dtype))
        join_complex(a->values, BLOCK,
                     a->nbytes == 16 || b->nbytes == 16 || a->dtype == FSDPCK_FLOAT64 || b->dtype == FSDPCK_FLOAT64);
    else
        join_larger(a->values, BLOCK);
}

static INLINE void compare_blocks(struct side *a, struct side *b, uint64_t nelem, double tolerance,
                                  struct fsdpck_value_diff *out)
{
    for (uint64_t at = 0; at < nelem; at += BLOCK) {
        uint64_t n = nelem - at < BLOCK ? nelem - at : BLOCK;
        const char *pa = a->bytes + at * a->nbytes, *pb = b->bytes + at * b->nbytes;
        if (a->dtype == b->dtype && memcmp(pa, pb, n * a->nbytes) == 0)
            continue;
        block_distances(a, b, at, n);
        out->ndifferent += tolerance < 0 ? count_unequal(pa, pb, n, a->nbytes) : count_beyond(a->values, tolerance);
        double most = largest(a->values);
        out->max_abs = most > out->max_abs ? most : out->max_abs;
    }
}

typedef void compare_fn(struct side *, struct side *, uint64_t, double, struct fsdpck_value_diff *);

static void compare_plain(struct side *a, struct side *b, uint64_t nelem, double tolerance,
                          struct fsdpck_value_diff *out)
{
    compare_blocks(a, b, nelem, tolerance, out);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void compare_avx2(struct side *a, struct side *b, uint64_t nelem,
                                                         double tolerance, struct fsdpck_value_diff *out)
{
    compare_blocks(a, b, nelem, tolerance, out);
}

static compare_fn *best_compare(void)
{
    return __builtin_cpu_supports("avx2") ? compare_avx2 : compare_plain;
}
#else
static compare_fn *best_compare(void)
{
    return compare_plain;
}
#endif

void fsdpck_values_compare(enum fsdpck_dtype a_dtype, const void *a, enum fsdpck_dtype b_dtype, const void *b,
                           uint64_t nelem, double tolerance, struct fsdpck_value_diff *out)
{
    struct side sa, sb;
    start_side(&sa, a_dtype, a);
    start_side(&sb, b_dtype, b);
    best_compare()(&sa, &sb, nelem, tolerance, out);
}
