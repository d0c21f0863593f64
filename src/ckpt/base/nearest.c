/* SPDX-License-Identifier: Apache-2.0 */
/* Computes the edit distance between two words, to suggest the nearest known name. */
#include <fsdpck/error.h>

#include <string.h>

enum { LONGEST = 64 }; /* limit after the common prefix of the two words; the rest is ignored */

static unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* Optimal string alignment, row by row: a swap needs the row before the last. */
static unsigned edits(const char *a, size_t na, const char *b, size_t nb)
{
    unsigned rows[3][LONGEST + 1];
    for (size_t j = 0; j <= nb; j++)
        rows[0][j] = (unsigned)j;
    for (size_t i = 1; i <= na; i++) {
        unsigned *row = rows[i % 3], *above = rows[(i - 1) % 3], *two_above = rows[(i + 1) % 3];
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= nb; j++) {
            row[j] = least(above[j - 1] + (a[i - 1] != b[j - 1]), 1 + least(above[j], row[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = least(row[j], two_above[j - 2] + 1);
        }
    }
    return rows[na % 3][nb];
}

unsigned fsdpck_name_distance(const char *typed, const char *known)
{
    const char *start = typed;
    while (*typed && *typed == *known)
        typed++, known++;
    if (!*typed && *known && typed > start)
        return 1;
    return edits(typed, strnlen(typed, LONGEST), known, strnlen(known, LONGEST));
}
