/* SPDX-License-Identifier: Apache-2.0 */
/* UTF-8 helpers. The decoders require valid text; tokenizer_encode() checks it. */
#ifndef TRAIN_TEXT_UTF8_H
#define TRAIN_TEXT_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Length of the valid UTF-8 prefix of s. */
size_t utf8_valid_prefix(const char *s, size_t nbytes);

static inline size_t utf8_nbytes(unsigned char first)
{
    return first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

static inline uint32_t utf8_get(const char *s, size_t *nbytes)
{
    const unsigned char *u = (const unsigned char *)s;
    *nbytes = utf8_nbytes(u[0]);
    switch (*nbytes) {
    case 1: return u[0];
    case 2: return (u[0] & 0x1fu) << 6 | (u[1] & 0x3fu);
    case 3: return (u[0] & 0x0fu) << 12 | (u[1] & 0x3fu) << 6 | (u[2] & 0x3fu);
    default: return (u[0] & 0x07u) << 18 | (u[1] & 0x3fu) << 12 | (u[2] & 0x3fu) << 6 | (u[3] & 0x3fu);
    }
}

/* Where the character that ends at s[at] begins; at > 0. */
static inline size_t utf8_back(const char *s, size_t at)
{
    do
        at--;
    while (at > 0 && ((unsigned char)s[at] & 0xc0) == 0x80);
    return at;
}

size_t utf8_put(uint32_t c, char out[4]); /* returns the number of bytes written */

/* Replaces invalid UTF-8 by U+FFFD, one per maximal broken part, as Rust and Python do. out has room for 3 * nbytes.
 * Returns the number of bytes written. */
size_t utf8_replace(const char *s, size_t nbytes, char *out);

#endif
