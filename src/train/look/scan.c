/* SPDX-License-Identifier: Apache-2.0 */
#include "look/scan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "arrays/grow.h"

static const char *skip_space(const char *at)
{
    while (*at == ' ' || *at == '\t')
        at++;
    return at;
}

static const char *skip_digits(const char *at)
{
    while (*at >= '0' && *at <= '9')
        at++;
    return at;
}

/* The end of a number by JSON's grammar, which strtod()'s is wider than; NULL: it is none. */
static const char *number_end(const char *at)
{
    const char *digits = at += *at == '-';
    at = skip_digits(at);
    if (at == digits || (*digits == '0' && at > digits + 1))
        return NULL;
    if (*at == '.') {
        digits = ++at;
        if ((at = skip_digits(at)) == digits)
            return NULL;
    }
    if (*at == 'e' || *at == 'E') {
        digits = at += 1 + (at[1] == '-' || at[1] == '+');
        if ((at = skip_digits(at)) == digits)
            return NULL;
    }
    return at;
}

/* Few digits are exact as an integer, and one division by a power of ten rounds as strtod() does. */
static double read_number(const char *at, const char *end)
{
    static const double tens[] = { 1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15 };
    const bool minus = *at == '-';
    const char *c = at + minus, *point = NULL;
    uint64_t value = 0;
    if (end - c > 15)
        return strtod(at, NULL);
    for (; c < end; c++) {
        if (*c == 'e' || *c == 'E')
            return strtod(at, NULL);
        if (*c == '.')
            point = c + 1;
        else
            value = 10 * value + (uint64_t)(*c - '0');
    }
    const double x = point ? (double)value / tens[end - point] : (double)value;
    return minus ? -x : x;
}

static const char *scan_value(const char *at, const struct scanned *as, struct scan *out)
{
    const bool null = strncmp(at, "null", 4) == 0;
    const char *end = null ? at + 4 : number_end(at);
    if (!end || !grow((void **)&out->at, &out->capacity, out->count + 1, sizeof *out->at))
        return NULL;
    struct scanned *s = &out->at[out->count++];
    *s = *as;
    s->value = null ? NAN : read_number(at, end);
    return isinf(s->value) ? NULL : skip_space(end);
}

static const char *scan_list(const char *at, struct scanned *as, struct scan *out)
{
    at = skip_space(at + 1);
    if (*at == ']')
        return skip_space(at + 1);
    for (as->index = 0;; as->index++) {
        at = scan_value(at, as, out);
        if (!at || (*at != ',' && *at != ']'))
            return NULL;
        if (*at == ']')
            return skip_space(at + 1);
        at = skip_space(at + 1);
    }
}

/* "key": value. A key with an escape or a control character is left to the parser. */
static const char *scan_member(const char *at, struct scan *out)
{
    struct scanned as = { .key = at + 1, .index = SCAN_ALONE };
    if (*at != '"')
        return NULL;
    for (at++; *at != '"'; at++)
        if ((unsigned char)*at < ' ' || *at == '\\' || (unsigned char)*at > '~')
            return NULL;
    as.nkey = (size_t)(at - as.key);
    at = skip_space(at + 1);
    if (*at != ':')
        return NULL;
    at = skip_space(at + 1);
    return *at == '[' ? scan_list(at, &as, out) : scan_value(at, &as, out);
}

bool scan_line(const char *line, struct scan *out)
{
    const char *at = skip_space(line);
    out->count = 0;
    if (*at != '{')
        return false;
    do {
        at = scan_member(skip_space(at + 1), out);
    } while (at && *at == ',');
    return at && *at == '}' && strcmp(skip_space(at + 1), "\n") == 0;
}
