/* SPDX-License-Identifier: Apache-2.0 */
/* Element types: the table, every code of the small floats (against hashes of torch 2.15's values), casts against a
 * search for the nearest representable value. */
#include <fsdpck/dtype.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "draw.h"

static void names_lead_to_their_dtype(void **state)
{
    (void)state;
    enum fsdpck_dtype d;
    unsigned nsafetensors = 0;
    for (int i = 0; i < FSDPCK_NDTYPES; i++) {
        const struct fsdpck_dtype_info *info = fsdpck_dtype_info((enum fsdpck_dtype)i);
        assert_true(fsdpck_dtype_from_name(info->name, &d));
        assert_int_equal(d, i);
        assert_true(info->nbytes % info->swap == 0);
        if (!info->safetensors)
            continue;
        nsafetensors++;
        assert_true(fsdpck_dtype_from_safetensors(info->safetensors, &d));
        assert_int_equal(d, i);
    }
    assert_int_equal(nsafetensors, 20);
    assert_false(fsdpck_dtype_from_name("float31", &d));
    assert_false(fsdpck_dtype_from_name("torch.float32", &d));
    assert_false(fsdpck_dtype_from_safetensors("f32", &d));
    assert_false(fsdpck_dtype_from_safetensors("F6_E2M3", &d));
}

static double decode(enum fsdpck_dtype dtype, const void *element)
{
    double v[2];
    fsdpck_dtype_to_double(dtype, element, v);
    return v[0];
}

/* FNV-1a over the doubles of all codes, NaN as 0x7ff8…. The expected values come from torch's .to(torch.float64). */
static uint64_t hash_codes(enum fsdpck_dtype dtype)
{
    uint32_t n = 1u << 8 * fsdpck_dtype_info(dtype)->nbytes;
    uint64_t h = 0xcbf29ce484222325u;
    for (uint32_t code = 0; code < n; code++) {
        uint16_t element = (uint16_t)code; /* little-endian, so it is right for one byte too */
        double v = decode(dtype, &element);
        uint64_t bits = 0x7ff8000000000000u;
        if (!isnan(v))
            memcpy(&bits, &v, 8);
        for (int i = 0; i < 8; i++)
            h = (h ^ (bits >> 8 * i & 0xff)) * 0x100000001b3u;
    }
    return h;
}

static void every_code_of_small_floats_is_what_torch_says(void **state)
{
    (void)state;
    static const struct {
        enum fsdpck_dtype dtype;
        uint64_t hash;
    } known[] = {
        { FSDPCK_FLOAT8_E4M3FN, 0x4d4ded90c4f5d9b5u },   { FSDPCK_FLOAT8_E5M2, 0x61a099e723174195u },
        { FSDPCK_FLOAT8_E4M3FNUZ, 0x33a06c4d119992b0u }, { FSDPCK_FLOAT8_E5M2FNUZ, 0x08d9906cc5ea2650u },
        { FSDPCK_FLOAT8_E8M0FNU, 0x04b7d9d85633d505u },  { FSDPCK_FLOAT16, 0xfe87bb782adb2fc5u },
        { FSDPCK_BFLOAT16, 0x5e93c8468f9404d5u },
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (hash_codes(known[i].dtype) != known[i].hash)
            fail_msg("%s: hash of all codes is %016llx", fsdpck_dtype_info(known[i].dtype)->name,
                     (unsigned long long)hash_codes(known[i].dtype));
    const uint8_t max = 0x7e, inf = 0x7c;
    assert_true(decode(FSDPCK_FLOAT8_E4M3FN, &max) == 448);
    assert_true(isinf(decode(FSDPCK_FLOAT8_E5M2, &inf)));
}

static void float4_gives_both_values(void **state)
{
    (void)state;
    static const double values[8] = { 0, 0.5, 1, 1.5, 2, 3, 4, 6 };
    for (unsigned code = 0; code < 256; code++) {
        uint8_t byte = (uint8_t)code;
        double v[2];
        fsdpck_dtype_to_double(FSDPCK_FLOAT4_E2M1FN_X2, &byte, v);
        assert_true(fabs(v[0]) == values[code & 7] && !signbit(v[0]) == !(code & 8));
        assert_true(fabs(v[1]) == values[code >> 4 & 7] && !signbit(v[1]) == !(code & 128));
    }
}

static void other_types_as_numbers(void **state)
{
    (void)state;
    double v[2];
    int64_t i64 = -5;
    uint32_t u32 = 4000000000u;
    uint8_t yes = 7;
    float c64[2] = { 1.5f, -2.0f };
    uint16_t c32[2] = { 0x3c00, 0xc000 };
    double c128[2] = { 0.25, 3 };
    assert_true(decode(FSDPCK_INT64, &i64) == -5);
    assert_true(decode(FSDPCK_INT8, &i64) == -5);
    assert_true(decode(FSDPCK_INT16, &i64) == -5);
    assert_true(decode(FSDPCK_UINT32, &u32) == 4e9);
    assert_true(decode(FSDPCK_BOOL, &yes) == 1);
    fsdpck_dtype_to_double(FSDPCK_COMPLEX64, c64, v);
    assert_true(v[0] == 1.5 && v[1] == -2);
    fsdpck_dtype_to_double(FSDPCK_COMPLEX32, c32, v);
    assert_true(v[0] == 1 && v[1] == -2);
    fsdpck_dtype_to_double(FSDPCK_COMPLEX128, c128, v);
    assert_true(v[0] == 0.25 && v[1] == 3);
}

/* ---- casts ---- */

/* The 16-bit code nearest to x, by bisection over all finite codes. The midpoint of neighbours is exact in double. */
static uint16_t nearest(enum fsdpck_dtype to, double x)
{
    uint16_t infinity = to == FSDPCK_FLOAT16 ? 0x7c00 : 0x7f80, low = 0, sign = signbit(x) ? 0x8000 : 0;
    double a = fabs(x), top = to == FSDPCK_FLOAT16 ? 65536.0 : 0x1p128, below, above;
    uint16_t high = infinity;
    while (high - low > 1) { /* value(low) <= a < value(high) */
        uint16_t mid = (uint16_t)((low + high) / 2);
        if (decode(to, &mid) <= a)
            low = mid;
        else
            high = mid;
    }
    if (a == (double)INFINITY)
        return sign | infinity;
    below = decode(to, &low);
    above = high == infinity ? top : decode(to, &high);
    double middle = below / 2 + above / 2;
    return sign | (a > middle || (a == middle && (low & 1)) ? high : low);
}

static void check_narrow(enum fsdpck_dtype from, enum fsdpck_dtype to, const void *src, uint64_t n)
{
    uint16_t *out = malloc(n * 2 + 2);
    uint32_t width = fsdpck_dtype_info(from)->nbytes;
    assert_non_null(out);
    out[n] = 0xabcd;
    assert_true(fsdpck_dtype_cast(from, src, to, out, n));
    assert_int_equal(out[n], 0xabcd);
    for (uint64_t i = 0; i < n; i++) {
        double x = decode(from, (const char *)src + i * width);
        uint16_t quiet = to == FSDPCK_FLOAT16 ? 0x7e00 : 0x7fc0;
        bool ok = isnan(x) ? (out[i] & quiet) == quiet && !(out[i] & 0x8000) == !signbit(x) : out[i] == nearest(to, x);
        if (!ok)
            fail_msg("%s -> %s: %a gives %04x, wanted %04x", fsdpck_dtype_info(from)->name, fsdpck_dtype_info(to)->name,
                     x, out[i], isnan(x) ? quiet : nearest(to, x));
    }
    free(out);
}

/* Difficult bit patterns: random ones, and all midpoints of a 16-bit type with a little added or subtracted. */
static void narrowing_rounds_to_nearest_even(void **state)
{
    (void)state;
    enum { N = 40000 };
    static const enum fsdpck_dtype to[] = { FSDPCK_FLOAT16, FSDPCK_BFLOAT16 };
    static double d[N];
    static float f[N];
    for (int k = 0; k < 2; k++) {
        uint16_t infinity = k == 0 ? 0x7c00 : 0x7f80;
        for (size_t i = 0; i < N; i++) {
            uint64_t r = draw_bits();
            uint32_t r32 = (uint32_t)r;
            memcpy(&d[i], &r, 8);
            memcpy(&f[i], &r32, 4);
            uint16_t code = (uint16_t)(r % infinity), up = (uint16_t)(code + 1);
            if (i % 4 == 0)
                continue;
            double low = decode(to[k], &code), high = up == infinity ? ldexp(1, k == 0 ? 16 : 128) : decode(to[k], &up);
            d[i] = low / 2 + high / 2;
            f[i] = (float)d[i];
            if (i % 4 == 1) {
                d[i] = nextafter(d[i], r & 1u << 20 ? 0 : 1e300);
                f[i] = nextafterf(f[i], r & 1u << 20 ? 0 : 1e38f);
            }
            if (r & 1u << 21) {
                d[i] = -d[i];
                f[i] = -f[i];
            }
        }
        check_narrow(FSDPCK_FLOAT64, to[k], d, N);
        check_narrow(FSDPCK_FLOAT32, to[k], f, N);
    }
}

static void special_values_survive(void **state)
{
    (void)state;
    static const double d[] = { 0.0,
                                -0.0,
                                INFINITY,
                                -INFINITY,
                                NAN,
                                -NAN,
                                65504,
                                65519.999,
                                65520,
                                65536,
                                1e300,
                                -1e300,
                                0x1p-24,
                                0x1p-25,
                                0x1.8p-25,
                                0x1.0000000000001p-25,
                                0x1p-133,
                                0x1p-134,
                                0x1.0000000000001p-134,
                                5e-324,
                                3.4028235677973366e38,
                                0x1.fep127,
                                0x1.ffp127,
                                0x1.fefffffffffffp127,
                                1.00390625,
                                1.01171875,
                                1.003906250000001 };
    float f[sizeof d / sizeof *d];
    uint64_t n = sizeof d / sizeof *d;
    assert_true(fsdpck_dtype_cast(FSDPCK_FLOAT64, d, FSDPCK_FLOAT32, f, n));
    for (uint64_t i = 0; i < n; i++)
        assert_true(isnan(d[i]) ? isnan(f[i]) : f[i] == (float)d[i] && !signbit(f[i]) == !signbit(d[i]));
    check_narrow(FSDPCK_FLOAT64, FSDPCK_FLOAT16, d, n);
    check_narrow(FSDPCK_FLOAT64, FSDPCK_BFLOAT16, d, n);
    check_narrow(FSDPCK_FLOAT32, FSDPCK_FLOAT16, f, n);
    check_narrow(FSDPCK_FLOAT32, FSDPCK_BFLOAT16, f, n);
    uint32_t signalling[] = { 0x7f800001u, 0xff800001u, 0x7fbfffffu };
    check_narrow(FSDPCK_FLOAT32, FSDPCK_BFLOAT16, signalling, 3);
    check_narrow(FSDPCK_FLOAT32, FSDPCK_FLOAT16, signalling, 3);
}

static void widening_and_back_gives_every_code_again(void **state)
{
    (void)state;
    static const enum fsdpck_dtype narrow[] = { FSDPCK_FLOAT16, FSDPCK_BFLOAT16 },
                                   wide[] = { FSDPCK_FLOAT32, FSDPCK_FLOAT64 };
    static uint16_t codes[65536], back[65536];
    static double buf[65536];
    for (uint32_t i = 0; i < 65536; i++)
        codes[i] = (uint16_t)i;
    for (int k = 0; k < 4; k++) {
        enum fsdpck_dtype n = narrow[k & 1], w = wide[k >> 1];
        uint16_t quiet = n == FSDPCK_FLOAT16 ? 0x0200 : 0x0040;
        assert_true(fsdpck_dtype_cast(n, codes, w, buf, 65536));
        assert_true(fsdpck_dtype_cast(w, buf, n, back, 65536));
        for (uint32_t i = 0; i < 65536; i++)
            assert_int_equal(back[i], isnan(decode(n, &codes[i])) ? codes[i] | quiet : codes[i]);
    }
}

static void any_length_and_alignment(void **state)
{
    (void)state;
    char src[4 * 700 + 8], dst[8 * 700 + 8];
    float f[700];
    for (int i = 0; i < 700; i++)
        f[i] = (float)i - 350.25f;
    for (uint64_t n = 0; n < 700; n += 1 + n / 5) {
        unsigned shift = (unsigned)(n % 7);
        memcpy(src + shift, f, n * 4);
        memset(dst, 0x55, sizeof dst);
        assert_true(fsdpck_dtype_cast(FSDPCK_FLOAT32, src + shift, FSDPCK_FLOAT64, dst + 1 + shift, n));
        for (uint64_t i = 0; i < n; i++)
            assert_true(decode(FSDPCK_FLOAT64, dst + 1 + shift + i * 8) == (double)f[i]);
        assert_int_equal(dst[shift], 0x55);
        assert_int_equal(dst[1 + shift + n * 8], 0x55);
    }
    assert_true(fsdpck_dtype_cast(FSDPCK_FLOAT32, f, FSDPCK_FLOAT32, dst, 700));
    assert_memory_equal(dst, f, sizeof f);
    assert_false(fsdpck_dtype_cast(FSDPCK_FLOAT32, f, FSDPCK_INT32, dst, 1));
    assert_false(fsdpck_dtype_cast(FSDPCK_FLOAT8_E5M2, f, FSDPCK_FLOAT32, dst, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_lead_to_their_dtype),
        cmocka_unit_test(every_code_of_small_floats_is_what_torch_says),
        cmocka_unit_test(float4_gives_both_values),
        cmocka_unit_test(other_types_as_numbers),
        cmocka_unit_test(narrowing_rounds_to_nearest_even),
        cmocka_unit_test(special_values_survive),
        cmocka_unit_test(widening_and_back_gives_every_code_again),
        cmocka_unit_test(any_length_and_alignment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
