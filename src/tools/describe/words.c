/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the value column of option tables: capitals name a kind of value, small letters are literal words. */
#include "describe/words.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "common/help.h"

/* Moves *at to the next part of "a|B|c" and returns its length, 0 at the end. */
static size_t next_part(const char **at)
{
    *at += **at == '|';
    return strcspn(*at, "|");
}

static bool is_word(const struct option *o, const char *part, size_t n)
{
    if (o->type == OPTION_CHOICE)
        return true;
    for (size_t i = 0; i < n; i++) {
        if (!islower((unsigned char)part[i]))
            return false;
    }
    return o->type == OPTION_STRING;
}

bool words_has_path(const struct option *o)
{
    static const char *const paths[] = { "FILE", "FOLDER", "DIR" };
    for (const char *at = o->value ? o->value : ""; *at;) {
        const size_t n = next_part(&at);
        for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
            if (strlen(paths[i]) == n && memcmp(at, paths[i], n) == 0)
                return true;
        }
        at += n;
    }
    return false;
}

bool words_has_setting(const struct option *o)
{
    return o->value && strcmp(o->value, "KEY=VALUE") == 0;
}

bool words_is_repeated(const struct option *o)
{
    return o->type == OPTION_STRINGS || o->type == OPTION_LIST;
}

bool words_put(const struct option *o)
{
    bool any = false;
    for (const char *at = o->value ? o->value : ""; *at;) {
        const size_t n = next_part(&at);
        if (is_word(o, at, n)) {
            printf("%s%.*s", any ? " " : "", (int)n, at);
            any = true;
        }
        at += n;
    }
    return any;
}

void words_put_quoted(const char *text, const char *quote)
{
    for (const char *s = text; *s; s++) {
        if (*s == '\'')
            fputs(quote, stdout);
        else
            putchar(*s);
    }
}

void words_each_option(const struct command_line *line, void (*put)(const struct option *o))
{
    for (size_t g = 0; g < line->ngroups; g++) {
        for (size_t i = 0; i < line->groups[g].count; i++) {
            if (line->groups[g].options[i].type != OPTION_LATER)
                put(&line->groups[g].options[i]);
        }
    }
    put(&help_option);
}
