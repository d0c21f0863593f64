/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers of fuzz targets. Knows nothing of the library. */
#include "fuzz.h"

#include <string.h>

char *fuzz_text(const uint8_t *data, size_t nbytes)
{
    char *copy = malloc(nbytes + 1);
    FUZZ_CHECK(copy);
    if (nbytes)
        memcpy(copy, data, nbytes);
    copy[nbytes] = '\0';
    return copy;
}

uint8_t *fuzz_copy(const uint8_t *data, size_t nbytes)
{
    uint8_t *copy = malloc(nbytes ? nbytes : 1);
    FUZZ_CHECK(copy);
    if (nbytes)
        memcpy(copy, data, nbytes);
    return copy;
}

uint8_t fuzz_byte(struct fuzz_bytes *b)
{
    return b->nbytes ? (b->nbytes--, *b->at++) : 0;
}

uint64_t fuzz_below(struct fuzz_bytes *b, uint64_t n)
{
    uint64_t v = fuzz_byte(b);
    if (n > 256)
        v = v << 8 | fuzz_byte(b);
    return v % n;
}
