/* SPDX-License-Identifier: Apache-2.0 */
#include "text/trigger.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *trigger_put(const char *text, const char *word, bool in_front)
{
    static const char place[] = "[trigger]";
    const size_t nword = word ? strlen(word) : 0;
    size_t nplace = 0;
    for (const char *at = text; (at = strstr(at, place)); at += sizeof place - 1)
        nplace++;
    in_front = in_front && nword && !nplace && !strstr(text, word);
    char *out = malloc(strlen(text) + (nplace + 1) * (nword + 1) + 1), *to = out;
    if (!out)
        return NULL;
    if (in_front)
        to += sprintf(to, "%s%s", word, *text ? " " : "");
    while (*text) {
        if (nword && strncmp(text, place, sizeof place - 1) == 0) {
            to += sprintf(to, "%s", word);
            text += sizeof place - 1;
        } else {
            *to++ = *text++;
        }
    }
    *to = '\0';
    return out;
}
