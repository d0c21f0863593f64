/* Ranges to a flat table: one load a character. */
#include "text/unicode.h"

#include <string.h>

static const struct {
    uint32_t first, last;
    uint8_t bits;
} ranges[] = {
#include "text/unicode_ranges.inc"
};

void unicode_fill(uint8_t bits[UNICODE_NPOINTS])
{
    memset(bits, 0, UNICODE_NPOINTS);
    for (unsigned i = 0; i < sizeof ranges / sizeof ranges[0]; i++)
        memset(bits + ranges[i].first, ranges[i].bits, ranges[i].last - ranges[i].first + 1);
}
