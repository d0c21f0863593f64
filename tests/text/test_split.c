/* SPDX-License-Identifier: Apache-2.0 */
/* The hand-written scanners cut random texts like PCRE2 with the patterns that they replace. The texts contain every
 * class of character, contractions in every case, and code points of all planes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer/split.h"
#include "text/utf8.h"

static uint64_t state = 1;

static uint32_t below(uint32_t n)
{
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((state >> 33) % n);
}

static size_t add_piece(char *out)
{
    static const char *const pieces[] = {
        " ", "  ",       "\n", "\r\n", "\t",       "'", "'s", "'LL",          "'Re",      "'\xc5\xbf",    "a",
        "Z", "\xc3\xa9", "1",  "23",   "\xc2\xb2", ".", "!?", "\xe4\xb8\x80", "\xc2\xa0", "\xe2\x80\xa8", "\xe1\xa0\x8e"
    };
    if (below(8) > 0) {
        const char *p = pieces[below(sizeof pieces / sizeof pieces[0])];
        memcpy(out, p, strlen(p));
        return strlen(p);
    }
    uint32_t c = below(2) ? below(0x3000) : below(UNICODE_NPOINTS);
    return utf8_put(c >= 0xd800 && c <= 0xdfff ? 'x' : c, out);
}

static bool same(const char *pattern, struct split_regex *r, struct split_work *w, const uint8_t *bits,
                 const char *text, size_t n)
{
    split_scan_fn scan = split_scan_of(pattern);
    struct fsdpck_error err = { 0 };
    if (split_work_set(w, r, text, n, &err))
        return false;
    for (size_t at = 0, begin, end; at < n; at = end) {
        if (split_work_next(w, r, at, &begin, &end, &err))
            return false;
        size_t got = scan(bits, text + at, n - at);
        if (begin != at || end != at + got) {
            printf("%s\nat byte %zu of '%.*s': PCRE2 %zu … %zu, by hand %zu … %zu\n", pattern, at, (int)n, text, begin,
                   end, at, at + got);
            return false;
        }
    }
    return true;
}

int main(void)
{
    static const char *const patterns[] = {
        "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
        "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
        "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    };
    uint8_t *bits = malloc(UNICODE_NPOINTS);
    int failed = 0;
    unicode_fill(bits);
    for (size_t p = 0; p < 3; p++) {
        struct fsdpck_error err = { 0 };
        struct split_regex *r;
        if (!split_scan_of(patterns[p]) || split_regex_new("test", patterns[p], bits, &r, &err)) {
            printf("%s: %s\n", patterns[p], err.message);
            return 1;
        }
        struct split_work *w = split_work_new(r);
        for (int i = 0; i < 50000 && w && failed < 5; i++) {
            char text[256];
            size_t n = 0;
            for (uint32_t left = 1 + below(20); left > 0; left--)
                n += add_piece(text + n);
            failed += !same(patterns[p], r, w, bits, text, n);
        }
        failed += !w;
        split_work_free(w);
        split_regex_free(r);
    }
    /* Patterns that PCRE2 might read differently than the library are refused. */
    static const char *const refused[] = { "\\w+", ".",        "a{1,2}+",      "[[:alpha:]]",  "^a",
                                           "(a)",  "\\p{Han}", "(?i:\\p{Lu})", "[a-\xc3\xa9]", "(?i:x)",
                                           "\\d",  "(?<=a)b",  "[a&&b]" };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        struct fsdpck_error err = { 0 };
        struct split_regex *r;
        int rc = split_regex_new("test", refused[i], bits, &r, &err);
        if (rc != FSDPCK_ERR_UNSUPPORTED) {
            printf("%s: not refused\n", refused[i]);
            failed++;
        }
        split_regex_free(r);
    }
    free(bits);
    return failed ? 1 : 0;
}
