/* SPDX-License-Identifier: Apache-2.0 */
/* Hand-written scanners for the patterns of GPT-2, and of Llama 3 and Qwen 2: one branch per alternative, in the order
 * of the pattern. Tests compare them with PCRE2. */
#include <string.h>

#include "text/tokenizer/split.h"
#include "text/utf8.h"

static inline uint8_t class_at(const uint8_t *bits, const char *s, size_t *step)
{
    unsigned char c = (unsigned char)*s;
    if (c < 0x80) {
        *step = 1;
        return bits[c];
    }
    return bits[utf8_get(s, step)];
}

/* The end of a run of characters that have a bit of `any`, or (any == 0) no bit of `none`. */
static inline size_t run(const uint8_t *bits, const char *s, size_t at, size_t n, uint8_t any)
{
    size_t step;
    while (at < n && (class_at(bits, s + at, &step) & any))
        at += step;
    return at;
}

enum { NOT_OTHER = UNICODE_LETTER | UNICODE_NUMBER | UNICODE_SPACE };

static inline size_t run_other(const uint8_t *bits, const char *s, size_t at, size_t n)
{
    size_t step;
    while (at < n && !(class_at(bits, s + at, &step) & NOT_OTHER))
        at += step;
    return at;
}

/* Length of 's 't 're 've 'm 'll 'd at s[0] == '\''. folded: ignore case, and accept the long s. */
static size_t contraction(const char *s, size_t n, bool folded)
{
    if (n < 2)
        return 0;
    char a = s[1], b = n > 2 ? s[2] : 0;
    if (folded && n > 2 && a == '\xc5' && b == '\xbf')
        return 3;
    if (folded) {
        a = (char)(a >= 'A' && a <= 'Z' ? a + 32 : a);
        b = (char)(b >= 'A' && b <= 'Z' ? b + 32 : b);
    }
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

/* \s+(?!\S)|\s+ : white space up to `end`. Of several characters, the last one is left for the next word. */
static size_t spaces(const char *s, size_t end, size_t n)
{
    if (end == n)
        return end;
    size_t last = utf8_back(s, end);
    return last > 0 ? last : end;
}

size_t split_scan_gpt2(const uint8_t *bits, const char *s, size_t n)
{
    size_t step, at = 0;
    if (s[0] == '\'') {
        size_t c = contraction(s, n, false);
        if (c)
            return c;
    }
    uint8_t first = class_at(bits, s, &step), next = first;
    if (s[0] == ' ' && n > 1) {
        at = 1;
        next = class_at(bits, s + 1, &step);
    }
    if (next & UNICODE_LETTER)
        return run(bits, s, at + step, n, UNICODE_LETTER);
    if (next & UNICODE_NUMBER)
        return run(bits, s, at + step, n, UNICODE_NUMBER);
    if (!(next & UNICODE_SPACE))
        return run_other(bits, s, at + step, n);
    return spaces(s, run(bits, s, at + step, n, UNICODE_SPACE), n);
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ : up to the last line end in the white space, if there is one. */
static size_t lines(const uint8_t *bits, const char *s, size_t n)
{
    size_t end = run(bits, s, 0, n, UNICODE_SPACE);
    for (size_t i = end; i-- > 0;) {
        if (s[i] == '\r' || s[i] == '\n')
            return i + 1;
    }
    return spaces(s, end, n);
}

static inline size_t scan_llama3(const uint8_t *bits, const char *s, size_t n, unsigned ndigits)
{
    size_t step, step2 = 0;
    if (s[0] == '\'') {
        size_t c = contraction(s, n, true);
        if (c)
            return c;
    }
    uint8_t first = class_at(bits, s, &step), next = 0;
    if (first & UNICODE_LETTER)
        return run(bits, s, step, n, UNICODE_LETTER);
    if (first & UNICODE_NUMBER) {
        size_t at = step;
        for (unsigned i = 1; i < ndigits && at < n && (class_at(bits, s + at, &step) & UNICODE_NUMBER); i++)
            at += step;
        return at;
    }
    if (step < n)
        next = class_at(bits, s + step, &step2);
    if ((next & UNICODE_LETTER) && s[0] != '\r' && s[0] != '\n')
        return run(bits, s, step + step2, n, UNICODE_LETTER);
    size_t other = !(first & UNICODE_SPACE) ? step : s[0] == ' ' && step < n && !(next & NOT_OTHER) ? step + step2 : 0;
    if (!other)
        return lines(bits, s, n);
    other = run_other(bits, s, other, n);
    while (other < n && (s[other] == '\r' || s[other] == '\n'))
        other++;
    return other;
}

static size_t scan_llama3_3(const uint8_t *bits, const char *s, size_t n)
{
    return scan_llama3(bits, s, n, 3);
}

static size_t scan_llama3_1(const uint8_t *bits, const char *s, size_t n)
{
    return scan_llama3(bits, s, n, 1);
}

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define TAIL         "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

split_scan_fn split_scan_of(const char *regex)
{
    static const struct {
        const char *regex;
        split_scan_fn scan;
    } known[] = {
        { CONTRACTIONS "\\p{N}{1,3}" TAIL, scan_llama3_3 },
        { CONTRACTIONS "\\p{N}" TAIL, scan_llama3_1 },
        { "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", split_scan_gpt2 },
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(known[i].regex, regex) == 0)
            return known[i].scan;
    }
    return NULL;
}
