/* Compares elements. Knows dtypes, not tensors. Equal bytes are passed over by memcmp, so that only what differs costs arithmetic. */
#include "verbs/diff_values.h"

#include <math.h>
#include <string.h>

enum { STRIDE_NELEM = 1024 }; /* compared by one memcmp */

bool fsdpck_dtype_comparable(enum fsdpck_dtype a, enum fsdpck_dtype b)
{
    return a == b || (a != FSDPCK_FLOAT4_E2M1FN_X2 && b != FSDPCK_FLOAT4_E2M1FN_X2);
}

static bool is_64bit_integer(enum fsdpck_dtype d) { return d == FSDPCK_INT64 || d == FSDPCK_UINT64; }

/* A double holds 53 bits: two large integers must be subtracted as integers. */
static double integer_distance(enum fsdpck_dtype dtype, const void *a, const void *b)
{
    uint64_t x, y;
    memcpy(&x, a, 8);
    memcpy(&y, b, 8);
    bool a_larger = dtype == FSDPCK_INT64 ? (int64_t)x > (int64_t)y : x > y;
    return (double)(a_larger ? x - y : y - x);
}

static double distance(double a, double b)
{
    if (isnan(a) || isnan(b))
        return isnan(a) && isnan(b) ? 0 : INFINITY;
    return a == b ? 0 : fabs(a - b); /* infinity - infinity would be NaN */
}

static double element_distance(enum fsdpck_dtype a_dtype, const void *a, enum fsdpck_dtype b_dtype, const void *b)
{
    double x[2] = { 0, 0 }, y[2] = { 0, 0 };
    if (a_dtype == b_dtype && is_64bit_integer(a_dtype))
        return integer_distance(a_dtype, a, b);
    fsdpck_dtype_to_double(a_dtype, a, x);
    fsdpck_dtype_to_double(b_dtype, b, y);
    bool a_complex = fsdpck_dtype_info(a_dtype)->kind == FSDPCK_KIND_COMPLEX, b_complex = fsdpck_dtype_info(b_dtype)->kind == FSDPCK_KIND_COMPLEX;
    double first = distance(x[0], y[0]);
    if (a_dtype == FSDPCK_FLOAT4_E2M1FN_X2)
        return fmax(first, distance(x[1], y[1]));
    return a_complex || b_complex ? hypot(first, distance(a_complex ? x[1] : 0, b_complex ? y[1] : 0)) : first;
}

void fsdpck_values_compare(enum fsdpck_dtype a_dtype, const void *a, enum fsdpck_dtype b_dtype, const void *b, uint64_t nelem, double tolerance,
                           struct fsdpck_value_diff *out)
{
    const unsigned char *pa = a, *pb = b;
    uint64_t na = fsdpck_dtype_info(a_dtype)->nbytes, nb = fsdpck_dtype_info(b_dtype)->nbytes;
    for (uint64_t i = 0; i < nelem;) {
        uint64_t n = nelem - i < STRIDE_NELEM ? nelem - i : STRIDE_NELEM;
        if (a_dtype == b_dtype && memcmp(pa + i * na, pb + i * nb, n * na) == 0) {
            i += n;
            continue;
        }
        for (uint64_t stop = i + n; i < stop; i++) {
            if (a_dtype == b_dtype && memcmp(pa + i * na, pb + i * nb, na) == 0)
                continue;
            double d = element_distance(a_dtype, pa + i * na, b_dtype, pb + i * nb);
            out->ndifferent += tolerance < 0 || d > tolerance;
            if (d > out->max_abs)
                out->max_abs = d;
        }
    }
}
