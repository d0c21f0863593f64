/* SPDX-License-Identifier: Apache-2.0 */
/* See name_pattern.h. */
#include "hf/name_pattern.h"

#include <stdio.h>
#include <string.h>

const char *fsdpck_name_index(const char *s, uint64_t *out)
{
    int n = 0;
    for (*out = 0; s[n] >= '0' && s[n] <= '9' && n < 9; n++)
        *out = *out * 10 + (uint64_t)(s[n] - '0');
    return n == 1 || (n > 1 && s[0] != '0') ? s + n : NULL;
}

const char *fsdpck_name_after(const char *pattern, const char *name, struct fsdpck_layer_number *layer)
{
    const char *mark = strchr(pattern, '#');
    *layer = (struct fsdpck_layer_number){ .digits = "" };
    if (mark) {
        const size_t before = (size_t)(mark - pattern);
        const char *rest = strncmp(name, pattern, before) == 0 ? fsdpck_name_index(name + before, &layer->value) : NULL;
        if (!rest)
            return NULL;
        layer->digits = name + before;
        layer->ndigits = (int)(rest - layer->digits);
        pattern = mark + 1;
        name = rest;
    }
    const size_t n = strlen(pattern);
    return strncmp(name, pattern, n) == 0 ? name + n : NULL;
}

bool fsdpck_name_matches(const char *pattern, const char *name, struct fsdpck_layer_number *layer)
{
    const char *rest = fsdpck_name_after(pattern, name, layer);
    return rest && !*rest;
}

void fsdpck_name_fill(const char *pattern, const struct fsdpck_layer_number *layer, char *out, size_t nbytes)
{
    const char *mark = strchr(pattern, '#');
    if (mark)
        snprintf(out, nbytes, "%.*s%.*s%s", (int)(mark - pattern), pattern, layer->ndigits, layer->digits, mark + 1);
    else
        snprintf(out, nbytes, "%s", pattern);
}
