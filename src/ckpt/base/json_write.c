/* SPDX-License-Identifier: Apache-2.0 */
/* Growing text, and JSON's string escapes. Knows no document. */
#include "base/json_write.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reserves nbytes and a NUL. */
static bool reserve(struct fsdpck_text *t, size_t nbytes)
{
    if (t->failed)
        return false;
    if (nbytes < t->capacity - t->nbytes)
        return true;
    size_t capacity = t->capacity < 256 ? 256 : t->capacity;
    while (capacity - t->nbytes <= nbytes && capacity <= SIZE_MAX / 2)
        capacity *= 2;
    char *data = capacity - t->nbytes <= nbytes ? NULL : realloc(t->data, capacity);
    if (!data) {
        t->failed = true;
        return false;
    }
    t->data = data;
    t->capacity = capacity;
    return true;
}

void fsdpck_text_add(struct fsdpck_text *t, const void *bytes, size_t nbytes)
{
    if (!reserve(t, nbytes))
        return;
    if (nbytes > 0)
        memcpy(t->data + t->nbytes, bytes, nbytes);
    t->nbytes += nbytes;
    t->data[t->nbytes] = '\0';
}

void fsdpck_text_printf(struct fsdpck_text *t, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0)
        t->failed = true;
    if (n < 0 || !reserve(t, (size_t)n))
        return;
    va_start(ap, fmt);
    vsnprintf(t->data + t->nbytes, (size_t)n + 1, fmt, ap);
    va_end(ap);
    t->nbytes += (size_t)n;
}

/* Returns the two-character escape of a byte, or 0. */
static char short_escape(unsigned char c)
{
    switch (c) {
    case '"':
    case '\\': return (char)c;
    case '\b': return 'b';
    case '\f': return 'f';
    case '\n': return 'n';
    case '\r': return 'r';
    case '\t': return 't';
    default: return 0;
    }
}

static void add_escape(struct fsdpck_text *t, unsigned char c)
{
    char escape[2] = { '\\', short_escape(c) };
    if (escape[1] != 0)
        fsdpck_text_add(t, escape, sizeof escape);
    else
        fsdpck_text_printf(t, "\\u%04x", c);
}

void fsdpck_text_json(struct fsdpck_text *t, const char *s)
{
    const char *plain = s;
    fsdpck_text_add(t, "\"", 1);
    for (; *s != '\0'; s++) {
        unsigned char c = (unsigned char)*s;
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        fsdpck_text_add(t, plain, (size_t)(s - plain));
        add_escape(t, c);
        plain = s + 1;
    }
    fsdpck_text_add(t, plain, (size_t)(s - plain));
    fsdpck_text_add(t, "\"", 1);
}

void fsdpck_text_json_u64s(struct fsdpck_text *t, const uint64_t *values, size_t count)
{
    fsdpck_text_add(t, "[", 1);
    for (size_t i = 0; i < count; i++)
        fsdpck_text_printf(t, "%s%llu", i > 0 ? "," : "", (unsigned long long)values[i]);
    fsdpck_text_add(t, "]", 1);
}

void fsdpck_text_json_path(struct fsdpck_text *t, const struct fsdpck_key *path, uint32_t npath)
{
    fsdpck_text_add(t, "[", 1);
    for (uint32_t i = 0; i < npath; i++) {
        if (i > 0)
            fsdpck_text_add(t, ",", 1);
        if (path[i].str)
            fsdpck_text_json(t, path[i].str);
        else
            fsdpck_text_printf(t, "%llu", (unsigned long long)path[i].position);
    }
    fsdpck_text_add(t, "]", 1);
}

void fsdpck_text_hex(struct fsdpck_text *t, const uint8_t *bytes, size_t nbytes)
{
    if (nbytes > (SIZE_MAX - 2) / 2 || !reserve(t, 2 * nbytes + 2)) {
        t->failed = true;
        return;
    }
    char *p = t->data + t->nbytes;
    *p++ = '"';
    p = fsdpck_hex_format(bytes, nbytes, p);
    *p++ = '"';
    *p = '\0';
    t->nbytes = (size_t)(p - t->data);
}

int fsdpck_text_check(const struct fsdpck_text *t, struct fsdpck_error *err)
{
    return t->failed ? fsdpck_error_nomem(err, t->capacity) : 0;
}

void fsdpck_text_free(struct fsdpck_text *t)
{
    free(t->data);
    *t = (struct fsdpck_text){ 0 };
}

char *fsdpck_hex_format(const uint8_t *bytes, size_t nbytes, char *out)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < nbytes; i++) {
        *out++ = digits[bytes[i] >> 4];
        *out++ = digits[bytes[i] & 15];
    }
    return out;
}

/* Returns the value of a lower-case hex digit, or -1. */
static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool fsdpck_hex_parse(const char *hex, uint8_t *bytes, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++) {
        int high = hex_digit(hex[2 * i]);
        int low = high < 0 ? -1 : hex_digit(hex[2 * i + 1]); /* never read past a NUL */
        if (low < 0)
            return false;
        bytes[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}
