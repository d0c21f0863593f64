/* SPDX-License-Identifier: Apache-2.0 */
/* Expands ranges into a flat table, so a lookup is one load. */
#include "text/tokenizer/unicode.h"

#include <string.h>

static const struct {
    uint32_t first, last;
    uint8_t bits;
} ranges[] = {
#include "text/tokenizer/unicode_ranges.inc"
};

void unicode_fill(uint8_t bits[UNICODE_NPOINTS])
{
    memset(bits, 0, UNICODE_NPOINTS);
    for (unsigned i = 0; i < sizeof ranges / sizeof ranges[0]; i++)
        memset(bits + ranges[i].first, ranges[i].bits, ranges[i].last - ranges[i].first + 1);
}

/* 32 * code point + category */
static const uint32_t runs[] = {
#include "text/tokenizer/unicode_categories.inc"
};

void unicode_fill_categories(uint8_t categories[UNICODE_NPOINTS])
{
    enum { NRUNS = sizeof runs / sizeof runs[0] };
    for (size_t i = 0; i < NRUNS; i++) {
        uint32_t first = runs[i] >> 5, end = i + 1 < NRUNS ? runs[i + 1] >> 5 : UNICODE_NPOINTS;
        memset(categories + first, (int)(runs[i] & 31), end - first);
    }
}

uint32_t unicode_categories_of(const char *name, size_t nbytes)
{
    static const char names[] = "CnLuLlLtLmLoMnMcMeNdNlNoPcPdPsPePiPfPoSmScSkSoZsZlZpCcCfCo";
    uint32_t found = 0;
    for (int i = 0; i < UNICODE_NCATEGORIES && nbytes >= 1 && nbytes <= 2; i++)
        found |= memcmp(names + 2 * i, name, nbytes) == 0 ? 1u << i : 0;
    return found;
}
