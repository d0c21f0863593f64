/* SPDX-License-Identifier: Apache-2.0 */
/* Writes integers, in their shortest form in protocol 2: the only value in our pickles that is not fixed text. */
#ifndef CKPT_PICKLE_WRITE_H
#define CKPT_PICKLE_WRITE_H

#include "base/hash.h"

#define FSDPCK_PICKLE_INT_MAX 11u /* maximum number of bytes of an integer */

/* Returns the number of bytes written to out. */
static inline size_t fsdpck_pickle_put_int(uint8_t *out, uint64_t value)
{
    if (value < 256) {
        out[0] = 'K'; /* BININT1 */
        out[1] = (uint8_t)value;
        return 2;
    }
    if (value < 65536) {
        out[0] = 'M'; /* BININT2 */
        fsdpck_put16(out + 1, (uint16_t)value);
        return 3;
    }
    if (value <= INT32_MAX) {
        out[0] = 'J'; /* BININT, signed */
        fsdpck_put32(out + 1, (uint32_t)value);
        return 5;
    }
    uint8_t n = 0;
    while (n < 8 && value >> 8 * n)
        n++;
    out[0] = 0x8a; /* LONG1: two's complement, so a set top bit needs one more byte */
    fsdpck_put64(out + 2, value);
    out[10] = 0;
    n = (uint8_t)(n + (out[1 + n] >> 7));
    out[1] = n;
    return 2u + n;
}

#endif
