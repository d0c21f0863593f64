/* Formats numbers and names for people. It must not know where they come from. */
#include "text.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

/* Bytes of the well-formed, printable UTF-8 character at s; 0 where there is none. */
static size_t printable(const unsigned char *s)
{
    static const uint32_t lowest[] = { 0, 0, 0x80, 0x800, 0x10000 };
    if (s[0] < 0x80)
        return s[0] >= 0x20 && s[0] != 0x7f;
    size_t n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : s[0] >= 0xc0 ? 2 : 0;
    if (n == 0 || s[0] >= 0xf8)
        return 0;
    uint32_t code = s[0] & (0xffu >> (n + 1));
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (s[i] & 0x3f);
    }
    bool well_formed = code >= lowest[n] && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
    return well_formed && code >= 0xa0 ? n : 0;
}

void text_print(FILE *f, const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    while (*s) {
        size_t n = printable(s);
        if (n)
            fwrite(s, 1, n, f);
        else
            fprintf(f, "\\x%02x", *s);
        s += n ? n : 1;
    }
}

size_t text_width(const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    size_t width = 0;
    while (*s) {
        size_t n = printable(s);
        width += n ? 1 : 4;
        s += n ? n : 1;
    }
    return width;
}

void text_print_padded(FILE *f, const char *text, size_t width)
{
    text_print(f, text);
    for (size_t n = text_width(text); n < width; n++)
        fputc(' ', f);
}

/* digits: after the point, for values of 1000 bytes and more */
static void scaled(double nbytes, int digits, const char *after, char buf[TEXT_NBYTES])
{
    static const char *const units[] = { "B", "kB", "MB", "GB", "TB", "PB", "EB" };
    size_t u = 0;
    while (nbytes >= 999.95 && u < sizeof units / sizeof units[0] - 1) {
        nbytes /= 1000;
        u++;
    }
    snprintf(buf, TEXT_NBYTES, "%.*f %s%s", u ? digits : 0, nbytes, units[u], after);
}

char *text_bytes(uint64_t nbytes, char buf[TEXT_NBYTES])
{
    scaled((double)nbytes, 1, "", buf);
    return buf;
}

char *text_rate(uint64_t nbytes, double seconds, char buf[TEXT_NBYTES])
{
    double rate = (double)nbytes / (seconds > 1e-6 ? seconds : 1e-6);
    scaled(rate, rate < 1e9 ? 0 : 2, "/s", buf);
    return buf;
}

char *text_seconds(double seconds, char buf[TEXT_NBYTES])
{
    snprintf(buf, TEXT_NBYTES, "%.*f s", seconds < 10 ? 2 : seconds < 100 ? 1 : 0, seconds);
    return buf;
}

char *text_clock(double seconds, char buf[TEXT_NBYTES])
{
    uint64_t s = seconds < 1e7 ? (uint64_t)(seconds + 0.5) : 10000000;
    if (s < 3600)
        snprintf(buf, TEXT_NBYTES, "%u:%02u", (unsigned)(s / 60), (unsigned)(s % 60));
    else
        snprintf(buf, TEXT_NBYTES, "%u:%02u:%02u", (unsigned)(s / 3600), (unsigned)(s / 60 % 60), (unsigned)(s % 60));
    return buf;
}

char *text_shape(uint32_t ndim, const uint64_t *shape, char *buf, size_t nbytes)
{
    size_t at = (size_t)snprintf(buf, nbytes, "[");
    for (uint32_t d = 0; d < ndim && at < nbytes; d++)
        at += (size_t)snprintf(buf + at, nbytes - at, "%s%" PRIu64, d ? ", " : "", shape[d]);
    if (at < nbytes)
        at += (size_t)snprintf(buf + at, nbytes - at, "]");
    if (at >= nbytes)
        strcpy(buf + nbytes - sizeof "…", "…");
    return buf;
}

char *text_count(uint64_t count, const char *noun, char buf[TEXT_NBYTES])
{
    snprintf(buf, TEXT_NBYTES, "%" PRIu64 " %s%s", count, noun, count == 1 ? "" : "s");
    return buf;
}
