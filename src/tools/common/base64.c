/* SPDX-License-Identifier: Apache-2.0 */
#include "common/base64.h"

#include <stdint.h>
#include <stdlib.h>

char *base64_of(const void *bytes, size_t nbytes)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *from = bytes;
    char *out = malloc((nbytes + 2) / 3 * 4 + 1), *to = out;
    for (size_t i = 0; out && i < nbytes; i += 3) {
        const size_t left = nbytes - i;
        const uint32_t three =
            (uint32_t)from[i] << 16 | (left > 1 ? (uint32_t)from[i + 1] << 8 : 0) | (left > 2 ? from[i + 2] : 0u);
        *to++ = digits[three >> 18];
        *to++ = digits[three >> 12 & 63];
        *to++ = left > 1 ? digits[three >> 6 & 63] : '=';
        *to++ = left > 2 ? digits[three & 63] : '=';
    }
    if (out)
        *to = '\0';
    return out;
}
