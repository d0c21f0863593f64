/* SPDX-License-Identifier: Apache-2.0 */
/* Formats numbers and names for people. It must not know their source. */
#include "common/text.h"

#include <inttypes.h>
#include <string.h>

#include <fsdpck/error.h>

void text_print(FILE *f, const char *text)
{
    while (*text) {
        size_t n = fsdpck_printable(text);
        if (n)
            fwrite(text, 1, n, f);
        else
            fprintf(f, "\\x%02x", (unsigned char)*text);
        text += n ? n : 1;
    }
}

void text_print_word(FILE *f, const char *text)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%^";
    if (*text && !text[strspn(text, plain)]) {
        fputs(text, f);
        return;
    }
    putc('\'', f);
    for (;;) {
        const size_t n = strcspn(text, "'");
        text_print_block(f, text, n);
        if (!text[n])
            break;
        fputs("'\\''", f);
        text += n + 1;
    }
    putc('\'', f);
}

size_t text_width(const char *text)
{
    size_t width = 0;
    while (*text) {
        size_t n = fsdpck_printable(text);
        width += n ? 1 : 4;
        text += n ? n : 1;
    }
    return width;
}

void text_print_block(FILE *f, const char *text, size_t nbytes)
{
    char character[8];
    for (size_t at = 0, n; at < nbytes; at += n) {
        size_t left = nbytes - at < 4 ? nbytes - at : 4;
        memcpy(character, text + at, left);
        character[left] = '\0';
        n = character[0] == '\n' || character[0] == '\t' ? 1 : fsdpck_printable(character);
        if (n)
            fwrite(character, 1, n, f);
        else
            fprintf(f, "\\x%02x", (unsigned char)character[0]);
        n = n ? n : 1;
    }
}

void text_print_padded(FILE *f, const char *text, size_t width)
{
    text_print(f, text);
    for (size_t n = text_width(text); n < width; n++)
        fputc(' ', f);
}

/* digits: decimals, for values of 1000 bytes and more */
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
    snprintf(buf, TEXT_NBYTES, "%" PRIu64 " %s%s", count, noun, fsdpck_plural(count));
    return buf;
}
