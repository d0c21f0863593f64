/* SPDX-License-Identifier: Apache-2.0 */
/* UTF-8 as Unicode defines it: no overlong forms, no surrogates, at most U+10FFFF. */
#include "text/utf8.h"

#include <string.h>

/* Length of the character at s. If it is invalid: minus the length of its maximal broken part. */
static int measure(const unsigned char *s, size_t left)
{
    unsigned char low = 0x80, high = 0xbf, c = s[0];
    if (c < 0x80)
        return 1;
    if (c < 0xc2 || c > 0xf4)
        return -1;
    int need = c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    low = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : low;
    high = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : high;
    for (int i = 1; i < need; i++) {
        if ((size_t)i >= left || s[i] < low || s[i] > high)
            return -i;
        low = 0x80;
        high = 0xbf;
    }
    return need;
}

size_t utf8_valid_prefix(const char *s, size_t nbytes)
{
    size_t at = 0;
    uint64_t word;
    while (at < nbytes) {
        if (nbytes - at >= 8 && (memcpy(&word, s + at, 8), (word & 0x8080808080808080ull) == 0)) {
            at += 8;
            continue;
        }
        int n = measure((const unsigned char *)s + at, nbytes - at);
        if (n < 0)
            return at;
        at += (size_t)n;
    }
    return at;
}

size_t utf8_put(uint32_t c, char out[4])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char lead[5] = { 0, 0, 0xc0, 0xe0, 0xf0 };
    for (size_t i = n; i-- > 1; c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)(lead[n] | c);
    return n;
}

size_t utf8_replace(const char *s, size_t nbytes, char *out)
{
    size_t n = 0;
    for (size_t at = 0; at < nbytes;) {
        int m = measure((const unsigned char *)s + at, nbytes - at);
        if (m > 0)
            memcpy(out + n, s + at, (size_t)m);
        else
            memcpy(out + n, "\xef\xbf\xbd", 3);
        n += m > 0 ? (size_t)m : 3;
        at += (size_t)(m > 0 ? m : -m);
    }
    return n;
}
