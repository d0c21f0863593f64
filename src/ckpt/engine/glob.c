/* SPDX-License-Identifier: Apache-2.0 */
/* Matches shell-like patterns against whole names. Backtracks to the last '*' only: a later '*' can match everything
 * that an earlier one could. So the cost is at most pattern length times name length, for any pattern from a user or a
 * file. */
#include <fsdpck/select.h>

#include <string.h>

/* Returns the length of the character at s (not at the NUL). Names are valid UTF-8; an invalid byte counts as a
 * character. */
static size_t char_nbytes(const char *s)
{
    unsigned char c = (unsigned char)*s;
    size_t wanted = c < 0xc0 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4, n = 1;
    while (n < wanted && ((unsigned char)s[n] & 0xc0) == 0x80)
        n++;
    return n;
}

static uint32_t char_at(const char **s)
{
    size_t n = char_nbytes(*s);
    uint32_t c = 0;
    for (size_t i = 0; i < n; i++)
        c = c << 8 | (unsigned char)*(*s)++; /* the bytes in order: they compare like the code points */
    return c;
}

/* Returns the ']' that ends the set whose '[' is at g, or NULL: then '[' is an ordinary character. A leading ']' is a
 * member. */
static const char *set_end(const char *g)
{
    const char *p = g + 1;
    p += *p == '!' || *p == '^';
    p += *p == ']';
    while (*p && *p != ']')
        p += p[0] == '\\' && p[1] ? 2 : 1;
    return *p ? p : NULL;
}

static bool in_set(const char *g, const char *end, uint32_t c)
{
    const char *p = g + 1;
    bool negated = *p == '!' || *p == '^', found = false;
    p += negated;
    while (p < end) {
        p += *p == '\\' && p + 1 < end;
        uint32_t low = char_at(&p), high = low;
        if (*p == '-' && p + 1 < end) {
            p++;
            p += *p == '\\' && p + 1 < end;
            high = char_at(&p);
        }
        found = found || (low <= c && c <= high);
    }
    return found != negated;
}

/* Matches one character of the name with one element of the pattern that is not a '*'; advances both. */
static bool match_one(const char **glob, const char **name)
{
    const char *g = *glob, *end = *g == '[' ? set_end(g) : NULL;
    bool ok;
    if (*g == '\0')
        return false;
    if (end) {
        ok = in_set(g, end, char_at(name));
        g = end + 1;
    } else if (*g == '?') {
        *name += char_nbytes(*name);
        g++;
        ok = true;
    } else {
        g += g[0] == '\\' && g[1];
        ok = *g == **name;
        g++;
        (*name)++;
    }
    *glob = g;
    return ok;
}

bool fsdpck_glob_match(const char *glob, const char *name)
{
    const char *star = NULL, *resume = NULL; /* the pattern after the last '*', and the position in the name then */
    while (*name) {
        if (*glob == '*') {
            star = ++glob;
            resume = name;
        } else if (!match_one(&glob, &name)) {
            if (!star)
                return false;
            glob = star;
            resume += char_nbytes(resume);
            name = resume;
        }
    }
    while (*glob == '*')
        glob++;
    return *glob == '\0';
}

enum { DISTANCE_NBYTES = 255 };

static unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* Compares one element of the pattern that is not a '*'; returns its end. before, after: (n + 1) edit distances between
 * the pattern up to the element's start, or end, and the first i bytes of the name. */
static const char *compare_element(const char *glob, const char *name, size_t n, const unsigned *before,
                                   unsigned *after)
{
    const char *end = glob;
    for (size_t i = 0; i <= n; i++)
        after[i] = before[i] + 1;
    for (size_t i = 0; i < n; i++) {
        const char *g = glob, *to = name + i;
        const bool match = match_one(&g, &to);
        const size_t next = (size_t)(to - name) < n ? (size_t)(to - name) : n;
        end = g > end ? g : end;
        if (match)
            after[next] = least(after[next], before[i]);
        after[i + 1] = least(after[i + 1], least(before[i], after[i]) + 1);
    }
    return end > glob ? end : glob + char_nbytes(glob);
}

unsigned fsdpck_glob_distance(const char *glob, const char *name)
{
    unsigned rows[2][DISTANCE_NBYTES + 1], *before = rows[0], *after = rows[1];
    const char *const stop = glob + strnlen(glob, DISTANCE_NBYTES);
    const size_t n = strnlen(name, DISTANCE_NBYTES);
    for (size_t i = 0; i <= n; i++)
        before[i] = (unsigned)i;
    while (glob < stop) {
        if (*glob == '*') {
            for (size_t i = 1; i <= n; i++)
                before[i] = least(before[i], before[i - 1]);
            glob++;
            continue;
        }
        glob = compare_element(glob, name, n, before, after);
        unsigned *swap = before;
        before = after;
        after = swap;
    }
    return before[n];
}
