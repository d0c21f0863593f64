/* SPDX-License-Identifier: Apache-2.0 */
/* Globs: the input is pattern, newline, name. Properties: fsdpck_glob_match(), which backtracks to the last '*' only,
 * agrees with a table of all ways to match; a pattern that matches a name has edit distance 0 from it. */
#include <string.h>

#include "fuzz.h"
#include "engine/selection.h"
#include "base/utf8.h"

enum { MAX = 64 };

static size_t char_nbytes(const char *s)
{
    size_t n = 1;
    while (((unsigned char)s[n] & 0xc0) == 0x80)
        n++;
    return n;
}

/* The bytes of a code point as a number. */
static uint32_t char_value(const char *s)
{
    uint32_t c = 0;
    for (size_t i = 0, n = char_nbytes(s); i < n; i++)
        c = c << 8 | (unsigned char)s[i];
    return c;
}

/* Reads one member of a set, perhaps quoted, and moves *s past it. */
static uint32_t take_member(const char **s, const char *end)
{
    if (**s == '\\' && *s + 1 < end)
        ++*s;
    uint32_t c = char_value(*s);
    *s += char_nbytes(*s);
    return c;
}

/* Returns the end of the set at g ("[…"), or NULL if it is not a set. */
static const char *find_end(const char *g)
{
    const char *s = g + 1 + (g[1] == '!' || g[1] == '^');
    for (bool first = true; *s; first = false) {
        if (*s == ']' && !first)
            return s;
        s += *s == '\\' && s[1] ? 2 : 1;
    }
    return NULL;
}

static bool set_has(const char *g, const char *end, uint32_t c)
{
    bool negated = g[1] == '!' || g[1] == '^', found = false;
    for (const char *s = g + 1 + negated; s < end;) {
        uint32_t low = take_member(&s, end), high = low;
        if (*s == '-' && s + 1 < end) {
            s++;
            high = take_member(&s, end);
        }
        found |= low <= c && c <= high;
    }
    return found != negated;
}

/* Returns true if one element of the pattern at g matches the character at name. *next: the rest of the pattern. */
static bool takes(const char *g, const char *name, const char **next)
{
    const char *end = *g == '[' ? find_end(g) : NULL;
    if (end) {
        *next = end + 1;
        return set_has(g, end, char_value(name));
    }
    if (*g == '?') {
        *next = g + 1;
        return true;
    }
    g += *g == '\\' && g[1];
    *next = g + char_nbytes(g);
    return char_value(g) == char_value(name);
}

/* matches[i][k]: the pattern from byte i matches the name from byte k. */
static bool reference(const char *glob, const char *name)
{
    static signed char matches[MAX + 1][MAX + 1];
    size_t ng = strlen(glob), nn = strlen(name);
    memset(matches, 0, sizeof matches);
    for (size_t i = ng + 1; i-- > 0;) {
        if (((unsigned char)glob[i] & 0xc0) == 0x80)
            continue;
        for (size_t k = nn + 1; k-- > 0;) {
            const char *next;
            if (((unsigned char)name[k] & 0xc0) == 0x80)
                continue;
            if (i == ng)
                matches[i][k] = k == nn;
            else if (glob[i] == '*')
                matches[i][k] = matches[i + 1][k] || (k < nn && matches[i][k + char_nbytes(name + k)]);
            else
                matches[i][k] =
                    k < nn && takes(glob + i, name + k, &next) && matches[next - glob][k + char_nbytes(name + k)];
        }
    }
    return matches[0][0];
}

/* A pattern with every character quoted matches exactly the name. */
static void check_quoted(const char *name)
{
    char quoted[2 * MAX + 1];
    size_t n = 0;
    for (const char *s = name; *s; s++) {
        if (((unsigned char)*s & 0x80) == 0)
            quoted[n++] = '\\';
        quoted[n++] = *s;
    }
    quoted[n] = '\0';
    FUZZ_CHECK(fsdpck_glob_match(quoted, name));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    char *glob = fuzz_text(data, nbytes), *name = strchr(glob, '\n');
    if (name) {
        *name++ = '\0';
        bool answer = fsdpck_glob_match(glob, name),
             text = fsdpck_utf8_valid(glob, strlen(glob)) && fsdpck_utf8_valid(name, strlen(name));
        FUZZ_CHECK(fsdpck_glob_match("*", name));
        if (text && strlen(glob) <= MAX && strlen(name) <= MAX) {
            FUZZ_CHECK(answer == reference(glob, name));
            FUZZ_CHECK(!answer || fsdpck_glob_distance(glob, name) == 0);
            check_quoted(name);
        }
    }
    free(glob);
    return 0;
}
