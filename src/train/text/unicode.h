/* What the tokenizers library takes each code point for. Its engines disagree with every version of Unicode that C libraries have, so the table is
 * made by asking it (tests/interop/make_unicode.py). */
#ifndef TRAIN_TEXT_UNICODE_H
#define TRAIN_TEXT_UNICODE_H

#include <stdint.h>

enum unicode_bit {
    UNICODE_LETTER = 1 << 0,  /* \p{L} */
    UNICODE_NUMBER = 1 << 1,  /* \p{N} */
    UNICODE_SPACE = 1 << 2,   /* \s */
    UNICODE_NUMERIC = 1 << 3, /* what Digits splits off */
    UNICODE_WORD = 1 << 4,    /* \w beside single_word tokens */
    UNICODE_JOINS = 1 << 5,   /* NFC may join it with, or move it before, what stands before it */
    UNICODE_CHANGES = 1 << 6, /* NFC changes it alone */
};

enum { UNICODE_NPOINTS = 0x110000 };

/* Fills the table of bits. */
void unicode_fill(uint8_t bits[UNICODE_NPOINTS]);

#endif
