/* SPDX-License-Identifier: Apache-2.0 */
/* fsdpck_values_compare() against a comparison of single elements: random bits of every pair of dtypes, tails, offsets,
 * tolerances. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "verbs/diff_values.h"

enum { MOST = 1500 }; /* elements: several blocks and a remainder */

static uint64_t seed = 1;

static uint64_t draw(uint64_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (seed >> 33) % n;
}

static double distance(double a, double b)
{
    if (isnan(a) || isnan(b))
        return isnan(a) && isnan(b) ? 0 : INFINITY;
    return a == b ? 0 : fabs(a - b);
}

static double integer_distance(enum fsdpck_dtype dtype, const char *a, const char *b)
{
    uint64_t x, y;
    memcpy(&x, a, 8);
    memcpy(&y, b, 8);
    bool a_larger = dtype == FSDPCK_INT64 ? (int64_t)x > (int64_t)y : x > y;
    return (double)(a_larger ? x - y : y - x);
}

static double plain_distance(enum fsdpck_dtype a_dtype, const char *a, enum fsdpck_dtype b_dtype, const char *b)
{
    double x[2] = { 0, 0 }, y[2] = { 0, 0 };
    if (a_dtype == b_dtype && (a_dtype == FSDPCK_INT64 || a_dtype == FSDPCK_UINT64))
        return integer_distance(a_dtype, a, b);
    fsdpck_dtype_to_double(a_dtype, a, x);
    fsdpck_dtype_to_double(b_dtype, b, y);
    bool a_complex = fsdpck_dtype_info(a_dtype)->kind == FSDPCK_KIND_COMPLEX,
         b_complex = fsdpck_dtype_info(b_dtype)->kind == FSDPCK_KIND_COMPLEX;
    double first = distance(x[0], y[0]);
    if (a_dtype == FSDPCK_FLOAT4_E2M1FN_X2)
        return fmax(first, distance(x[1], y[1]));
    return a_complex || b_complex ? hypot(first, distance(a_complex ? x[1] : 0, b_complex ? y[1] : 0)) : first;
}

static void plain_compare(enum fsdpck_dtype a_dtype, const char *a, enum fsdpck_dtype b_dtype, const char *b,
                          uint64_t nelem, double tolerance, struct fsdpck_value_diff *out)
{
    uint64_t na = fsdpck_dtype_info(a_dtype)->nbytes, nb = fsdpck_dtype_info(b_dtype)->nbytes;
    for (uint64_t i = 0; i < nelem; i++, a += na, b += nb) {
        double d = plain_distance(a_dtype, a, b_dtype, b);
        out->ndifferent += tolerance < 0 ? memcmp(a, b, na) != 0 : d > tolerance;
        out->max_abs = fmax(out->max_abs, d);
    }
}

/* Random bytes on both sides, equal in places. */
static void fill(char *a, char *b, size_t nbytes, bool alike)
{
    for (size_t i = 0; i < nbytes; i++) {
        a[i] = (char)draw(256);
        b[i] = draw(8) > 0 && alike ? a[i] : (char)draw(256);
    }
}

/* Rounding of a sum of squares may differ from hypot in the last place. */
static bool near(double a, double b)
{
    return a == b || fabs(a - b) <= 1e-15 * b;
}

static void check(enum fsdpck_dtype a_dtype, enum fsdpck_dtype b_dtype, double tolerance)
{
    static char a[MOST * 16 + 3], b[MOST * 16 + 3];
    uint64_t nelem = draw(3) > 0 ? 1 + draw(MOST) : 1 + draw(20), a_at = draw(4), b_at = draw(4);
    struct fsdpck_value_diff got = { .ndifferent = 3, .max_abs = 0 }, want = got; /* results accumulate */
    fill(a, b, sizeof a, a_dtype == b_dtype);
    fsdpck_values_compare(a_dtype, a + a_at, b_dtype, b + b_at, nelem, tolerance, &got);
    plain_compare(a_dtype, a + a_at, b_dtype, b + b_at, nelem, tolerance, &want);
    if (got.ndifferent != want.ndifferent || !near(got.max_abs, want.max_abs))
        fail_msg("%s and %s, %llu elements, tolerance %g: %llu differ by %.17g, %llu by %.17g wanted",
                 fsdpck_dtype_info(a_dtype)->name, fsdpck_dtype_info(b_dtype)->name, (unsigned long long)nelem,
                 tolerance, (unsigned long long)got.ndifferent, got.max_abs, (unsigned long long)want.ndifferent,
                 want.max_abs);
}

static void test_all_pairs(void **state)
{
    static const double tolerances[] = { 0, 1e-30, 0.37, 100, 1e18, INFINITY };
    (void)state;
    for (int a = 0; a < FSDPCK_NDTYPES; a++)
        for (int b = 0; b < FSDPCK_NDTYPES; b++) {
            if (!fsdpck_dtype_comparable((enum fsdpck_dtype)a, (enum fsdpck_dtype)b))
                continue;
            for (size_t i = 0; i < sizeof tolerances / sizeof tolerances[0]; i++)
                check((enum fsdpck_dtype)a, (enum fsdpck_dtype)b, tolerances[i]);
            for (int again = 0; again < 4 && a == b; again++)
                check((enum fsdpck_dtype)a, (enum fsdpck_dtype)b, -1);
        }
}

/* The squares of these parts exceed the range of a double. */
static void test_large_complex(void **state)
{
    const double a[4] = { 1e300, 1e300, 3e-300, 0 }, b[4] = { 0, 0, 0, 4e-300 };
    struct fsdpck_value_diff first = { 0 }, second = { 0 };
    (void)state;
    fsdpck_values_compare(FSDPCK_COMPLEX128, a, FSDPCK_COMPLEX128, b, 1, 0, &first);
    assert_true(near(first.max_abs, hypot(1e300, 1e300)));
    fsdpck_values_compare(FSDPCK_COMPLEX128, a + 2, FSDPCK_COMPLEX128, b + 2, 1, 0, &second);
    assert_true(near(second.max_abs, 5e-300));
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_all_pairs), cmocka_unit_test(test_large_complex) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
