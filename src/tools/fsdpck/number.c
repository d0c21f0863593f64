/* SPDX-License-Identifier: Apache-2.0 */
/* Formats elements of every dtype. It must not know about arrays. */
#include "number.h"

#include <endian.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DOUBLE_DIGITS = 17 };

/* Digits that always distinguish two values. The 8- and 4-bit floats are short in decimal and printed exactly. */
static int most_digits(enum fsdpck_dtype dtype)
{
    switch (dtype) {
    case FSDPCK_BFLOAT16: return 4;
    case FSDPCK_FLOAT16: return 5;
    case FSDPCK_FLOAT32: return 9;
    default: return DOUBLE_DIGITS;
    }
}

static bool round_trips(enum fsdpck_dtype dtype, const char *text, double value)
{
    double parsed = strtod(text, NULL), back[2] = { parsed, 0 };
    unsigned char element[8];
    if (most_digits(dtype) < DOUBLE_DIGITS) {
        uint64_t bits;
        memcpy(&bits, &parsed, sizeof bits);
        bits = htole64(bits);
        fsdpck_dtype_cast(FSDPCK_FLOAT64, &bits, dtype, element, 1);
        fsdpck_dtype_to_double(dtype, element, back);
    }
    return back[0] == value;
}

/* Writes "d.ddde±xx" with the fewest digits that give the value back. More digits always come closer, so bisection
 * finds the least count. */
static void shortest(enum fsdpck_dtype dtype, double value, char *buf, size_t nbytes)
{
    int low = 1, high = most_digits(dtype);
    while (low < high) {
        int middle = (low + high) / 2;
        snprintf(buf, nbytes, "%.*e", middle - 1, value);
        if (round_trips(dtype, buf, value))
            high = middle;
        else
            low = middle + 1;
    }
    snprintf(buf, nbytes, "%.*e", high - 1, value);
}

/* digits: without a point and without trailing zeros; value = 0.DIGITS * 10^(exponent+1). after: written after a point
 * that no digit follows. */
static void write_positional(const char *digits, int exponent, const char *after, char *buf, size_t nbytes)
{
    int n = (int)strlen(digits);
    if (exponent < 0)
        snprintf(buf, nbytes, "0.%.*s%s", -exponent - 1, "0000000000", digits);
    else if (n <= exponent + 1)
        snprintf(buf, nbytes, "%s%.*s.%s", digits, exponent + 1 - n, "00000000000000000000", after);
    else
        snprintf(buf, nbytes, "%.*s.%s", exponent + 1, digits, digits + exponent + 1);
}

static int format_finite(enum fsdpck_dtype dtype, double value, const char *after, char *buf, size_t nbytes)
{
    char text[40], digits[DOUBLE_DIGITS + 1], body[40];
    shortest(dtype, fabs(value), text, sizeof text);
    char *e = strchr(text, 'e');
    int exponent = atoi(e + 1), n = 0;
    for (const char *s = text; s < e; s++) {
        if (*s != '.')
            digits[n++] = *s;
    }
    while (n > 1 && digits[n - 1] == '0')
        n--;
    digits[n] = '\0';
    if (exponent >= -5 && exponent < 16)
        write_positional(digits, exponent, after, body, sizeof body);
    else
        snprintf(body, sizeof body, "%c.%s%s", digits[0], digits[1] ? digits + 1 : after, e);
    return snprintf(buf, nbytes, "%s%s", signbit(value) ? "-" : "", body);
}

static int format_float(enum fsdpck_dtype dtype, double value, enum number_style style, char *buf, size_t nbytes)
{
    if (isfinite(value))
        return format_finite(dtype, value, style == NUMBER_JSON ? "0" : "", buf, nbytes);
    if (style == NUMBER_JSON)
        return snprintf(buf, nbytes, "%s", isnan(value) ? "\"NaN\"" : value > 0 ? "\"Infinity\"" : "\"-Infinity\"");
    return snprintf(buf, nbytes, "%s", isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
}

/* Formats two floats of one element: a complex number, or a FLOAT4 pair. */
static void format_pair(enum fsdpck_dtype part, const double v[2], bool complex_number, enum number_style style,
                        char *buf)
{
    char a[36], b[36];
    format_float(part, v[0], style, a, sizeof a);
    format_float(part, v[1], style, b, sizeof b);
    if (style == NUMBER_JSON)
        snprintf(buf, NUMBER_NBYTES, "[%s,%s]", a, b);
    else if (complex_number)
        snprintf(buf, NUMBER_NBYTES, "%s%s%sj", a, *b == '-' ? "" : "+", b);
    else
        snprintf(buf, NUMBER_NBYTES, "(%s %s)", a, b);
}

static enum fsdpck_dtype part_of(enum fsdpck_dtype dtype)
{
    return dtype == FSDPCK_COMPLEX128 ? FSDPCK_FLOAT64 : dtype == FSDPCK_COMPLEX64 ? FSDPCK_FLOAT32 : FSDPCK_FLOAT16;
}

static void format_integer(const struct fsdpck_dtype_info *info, const void *element, char *buf)
{
    uint64_t bits = 0;
    memcpy(&bits, element, info->nbytes);
    bits = le64toh(bits);
    if (info->kind == FSDPCK_KIND_UINT) {
        snprintf(buf, NUMBER_NBYTES, "%" PRIu64, bits);
        return;
    }
    unsigned shift = 64 - 8 * info->nbytes; /* the shifts extend the sign */
    snprintf(buf, NUMBER_NBYTES, "%" PRId64, (int64_t)(bits << shift) >> shift);
}

char *number_format(enum fsdpck_dtype dtype, const void *element, enum number_style style, char buf[NUMBER_NBYTES])
{
    const struct fsdpck_dtype_info *info = fsdpck_dtype_info(dtype);
    double v[2] = { 0 };
    if (info->kind == FSDPCK_KIND_INT || info->kind == FSDPCK_KIND_UINT) {
        format_integer(info, element, buf);
        return buf;
    }
    fsdpck_dtype_to_double(dtype, element, v);
    if (info->kind == FSDPCK_KIND_BOOL)
        snprintf(buf, NUMBER_NBYTES, "%s",
                 style == NUMBER_JSON ? (v[0] != 0 ? "true" : "false")
                 : v[0] != 0          ? "True"
                                      : "False");
    else if (info->kind == FSDPCK_KIND_COMPLEX)
        format_pair(part_of(dtype), v, true, style, buf);
    else if (dtype == FSDPCK_FLOAT4_E2M1FN_X2)
        format_pair(dtype, v, false, style, buf);
    else
        format_float(dtype, v[0], style, buf, NUMBER_NBYTES);
    return buf;
}
