/* SPDX-License-Identifier: Apache-2.0 */
/* The class that the tokenizers library assigns to each code point. Its engines disagree with the Unicode versions of
 * all C libraries; so tests/interop/make_unicode.py generates the table by asking the library. */
#ifndef TRAIN_TEXT_UNICODE_H
#define TRAIN_TEXT_UNICODE_H

#include <stddef.h>
#include <stdint.h>

enum unicode_bit {
    UNICODE_LETTER = 1 << 0,     /* \p{L} */
    UNICODE_NUMBER = 1 << 1,     /* \p{N} */
    UNICODE_SPACE = 1 << 2,      /* \s */
    UNICODE_NUMERIC = 1 << 3,    /* split by Digits */
    UNICODE_WORD = 1 << 4,       /* \w: next to single_word tokens */
    UNICODE_JOINS = 1 << 5,      /* NFC may join it with the character before it, or move it before that */
    UNICODE_CHANGES = 1 << 6,    /* NFC changes it even alone */
    UNICODE_DECOMPOSES = 1 << 7, /* NFKD changes it even alone, or NFD may move it */
};

/* General categories as the library's regex engine sees them; unicode_categories.inc uses these numbers. */
enum unicode_category {
    UNICODE_CN,
    UNICODE_LU,
    UNICODE_LL,
    UNICODE_LT,
    UNICODE_LM,
    UNICODE_LO,
    UNICODE_MN,
    UNICODE_MC,
    UNICODE_ME,
    UNICODE_ND,
    UNICODE_NL,
    UNICODE_NO,
    UNICODE_PC,
    UNICODE_PD,
    UNICODE_PS,
    UNICODE_PE,
    UNICODE_PI,
    UNICODE_PF,
    UNICODE_PO,
    UNICODE_SM,
    UNICODE_SC,
    UNICODE_SK,
    UNICODE_SO,
    UNICODE_ZS,
    UNICODE_ZL,
    UNICODE_ZP,
    UNICODE_CC,
    UNICODE_CF,
    UNICODE_CO,
    UNICODE_NCATEGORIES
};

enum { UNICODE_NPOINTS = 0x110000 };

/* Fills the table of bits. */
void unicode_fill(uint8_t bits[UNICODE_NPOINTS]);
/* Fills the table of categories. */
void unicode_fill_categories(uint8_t categories[UNICODE_NPOINTS]);
/* The categories of \p{name} as a bit set: "Lu", or "L" for all letters. 0: unknown name. */
uint32_t unicode_categories_of(const char *name, size_t nbytes);

#endif
