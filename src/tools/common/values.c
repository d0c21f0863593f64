/* SPDX-License-Identifier: Apache-2.0 */
/* Parses typed text into values, strictly. It must not know which option a value belongs to, and prints nothing. */
#include "common/values.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

bool strings_add(struct strings *s, const char *text, size_t nbytes)
{
    char **grown = realloc(s->at, (s->count + 1) * sizeof *grown);
    if (!grown)
        return false;
    s->at = grown;
    char *copy = strndup(text, nbytes);
    if (!copy)
        return false;
    s->at[s->count++] = copy;
    return true;
}

void strings_free(struct strings *s)
{
    for (size_t i = 0; i < s->count; i++)
        free(s->at[i]);
    free(s->at);
    *s = (struct strings){ 0 };
}

static size_t part_length(const char *text)
{
    int depth = 0;
    size_t i = 0;
    for (; text[i] && (text[i] != ',' || depth > 0); i++) {
        if (text[i] == '\\' && text[i + 1])
            i++;
        else if (text[i] == '(' || text[i] == '[')
            depth++;
        else if ((text[i] == ')' || text[i] == ']') && depth > 0)
            depth--;
    }
    return i;
}

bool strings_add_list(struct strings *s, const char *text)
{
    for (;;) {
        size_t n = part_length(text);
        if (!strings_add(s, text, n))
            return false;
        if (!text[n])
            return true;
        text += n + 1;
    }
}

static bool unit_of(const char *suffix, uint64_t *unit)
{
    static const struct {
        const char *name;
        uint64_t nbytes;
    } units[] = {
        { "", 1 },
        { "B", 1 },
        { "KB", 1000 },
        { "MB", 1000000 },
        { "GB", 1000000000 },
        { "TB", 1000000000000 },
        { "KiB", 1ull << 10 },
        { "MiB", 1ull << 20 },
        { "GiB", 1ull << 30 },
        { "TiB", 1ull << 40 },
    };
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (strcasecmp(suffix, units[i].name) == 0) {
            *unit = units[i].nbytes;
            return true;
        }
    }
    return false;
}

/* Parses the digits at *text: *value is their number, *scale is 10 to the power of their count. Moves *text past them.
 * At most 18 digits, so that *scale fits. */
static bool digits(const char **text, uint64_t *value, uint64_t *scale)
{
    const char *s = *text;
    *value = 0;
    *scale = 1;
    for (; *s >= '0' && *s <= '9'; s++) {
        if (s - *text == 18)
            return false;
        *value = *value * 10 + (uint64_t)(*s - '0');
        *scale *= 10;
    }
    bool any = s != *text;
    *text = s;
    return any;
}

bool value_size(const char *text, uint64_t *out)
{
    uint64_t whole, part = 0, scale, part_scale = 1, unit, nbytes;
    if (!digits(&text, &whole, &scale))
        return false;
    if (*text == '.' && (text++, !digits(&text, &part, &part_scale)))
        return false;
    if (!unit_of(text, &unit) || (part_scale > 1 && unit == 1))
        return false;
    if (__builtin_mul_overflow(whole, unit, &nbytes))
        return false;
    /* part < 10^18 and unit <= 2^40: the product needs more than 64 bits */
    uint64_t extra = (uint64_t)((unsigned __int128)part * unit / part_scale);
    if (__builtin_add_overflow(nbytes, extra, &nbytes))
        return false;
    *out = nbytes;
    return true;
}

bool value_count(const char *text, uint32_t *out)
{
    uint64_t value, scale;
    if (!digits(&text, &value, &scale) || *text || value == 0 || value > UINT32_MAX)
        return false;
    *out = (uint32_t)value;
    return true;
}

bool value_exit_code(const char *text, uint32_t *out)
{
    uint64_t value, scale;
    if (!digits(&text, &value, &scale) || *text || value > 255)
        return false;
    *out = (uint32_t)value;
    return true;
}

bool value_number(const char *text, double *out)
{
    char *end;
    if (!((*text >= '0' && *text <= '9') || *text == '.'))
        return false;
    double value = strtod(text, &end);
    if (*end || !isfinite(value))
        return false;
    *out = value;
    return true;
}

bool value_choice(const char *text, const char *choices)
{
    size_t n = strlen(text);
    while (choices && *choices) {
        size_t span = strcspn(choices, "|");
        if (span == n && memcmp(choices, text, n) == 0)
            return true;
        choices += span + (choices[span] == '|');
    }
    return false;
}
