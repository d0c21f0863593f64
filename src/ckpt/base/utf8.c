/* SPDX-License-Identifier: Apache-2.0 */
/* Checks UTF-8. Changes nothing. */
#include "base/utf8.h"

#include <stdint.h>
#include <string.h>

#include <fsdpck/error.h>

static bool continues(unsigned char c)
{
    return (c & 0xC0) == 0x80;
}

/* Returns the length of the character at s, with n bytes left; 0 if it is invalid. The second byte's range excludes
 * overlong forms, surrogates and code points above U+10FFFF (Unicode, table 3-7). */
static size_t character(const unsigned char *s, size_t n)
{
    unsigned char c = s[0];
    if (c < 0x80)
        return 1;
    if (c < 0xC2 || c > 0xF4 || n < 2)
        return 0;
    if (c < 0xE0)
        return continues(s[1]) ? 2 : 0;
    unsigned char least = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80;
    unsigned char most = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
    if (s[1] < least || s[1] > most || n < 3 || !continues(s[2]))
        return 0;
    if (c < 0xF0)
        return 3;
    return n >= 4 && continues(s[3]) ? 4 : 0;
}

bool fsdpck_utf8_valid(const char *s, size_t nbytes)
{
    const unsigned char *p = (const unsigned char *)s;
    for (size_t i = 0; i < nbytes;) {
        uint64_t eight;
        if (nbytes - i >= sizeof eight) {
            memcpy(&eight, p + i, sizeof eight);
            if ((eight & 0x8080808080808080u) == 0) {
                i += sizeof eight;
                continue;
            }
        }
        size_t n = character(p + i, nbytes - i);
        if (n == 0)
            return false;
        i += n;
    }
    return true;
}

/* Control characters (C1), line and paragraph separators, and characters that change the direction of text. */
static bool is_terminal_control(uint32_t code)
{
    return (code >= 0x80 && code < 0xA0) || code == 0x61C || code == 0x200E || code == 0x200F ||
           (code >= 0x2028 && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069) || code == 0xFEFF;
}

size_t fsdpck_printable(const char *s)
{
    const unsigned char *p = (const unsigned char *)s;
    size_t n = character(p, strnlen(s, 4));
    if (p[0] < 0x80)
        return p[0] >= 0x20 && p[0] != 0x7F;
    uint32_t code = n ? p[0] & (0xFFu >> (n + 1)) : 0;
    for (size_t i = 1; i < n; i++)
        code = code << 6 | (p[i] & 0x3F);
    return n && !is_terminal_control(code) ? n : 0;
}
