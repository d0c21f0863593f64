/* Python expressions on POSIX's matcher: the part of the language that people write in these files (dots, sets, groups, alternatives, stars, \d \w \.)
 * means the same in both. Lookarounds, counted repeats and back references are not taken: they differ, or cost without bound. */
#include "lora/pattern.h"

#include <regex.h>
#include <stdio.h>
#include <string.h>

enum { MAX_NBYTES = 512 };

/* Copies the expression as POSIX spells it; NULL where it holds something else. */
static char *translate(const char *in, char *to, const char *end)
{
    for (bool in_set = false; *in; in++) {
        if (end - to < 8)
            return NULL;
        if (*in == '[')
            in_set = true;
        if (*in == ']')
            in_set = false;
        if (in[0] == '(' && in[1] == '?') {
            if (in[2] != ':')
                return NULL;
            *to++ = '(';
            in += 2;
        } else if (*in == '\\') {
            if (in_set || !in[1] || !strchr("d.wWsSb^$()[]+*?|-_/\\", in[1]))
                return NULL;
            in++;
            to = *in == 'd' ? stpcpy(to, "[0-9]") : strchr("-_/", *in) ? (*to = *in, to + 1) : (to[0] = '\\', to[1] = *in, to + 2);
        } else if (*in == '{' || *in == '}' || (unsigned char)*in < 0x20) {
            return NULL;
        } else {
            *to++ = *in;
        }
    }
    return to;
}

/* before: what opens the group that the expression goes into. */
static enum fsdpck_pattern_result match(const char *before, const char *expression, const char *module)
{
    char text[MAX_NBYTES];
    regex_t re;
    char *end = translate(expression, stpcpy(text, before), text + sizeof text - 4);
    if (!end)
        return PATTERN_UNKNOWN;
    strcpy(end, ")$");
    if (regcomp(&re, text, REG_EXTENDED | REG_NOSUB) != 0)
        return PATTERN_UNKNOWN;
    bool yes = regexec(&re, module, 0, NULL, 0) == 0;
    regfree(&re);
    return yes ? PATTERN_YES : PATTERN_NO;
}

/* Nearly all expressions are names, where only the dot means more than itself; an adapter may have thousands, and compiling costs. */
static bool is_name(const char *s) { return s[strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")] == '\0'; }

static bool same(const char *expression, const char *text)
{
    for (; *expression && *text; expression++, text++)
        if (*expression != *text && *expression != '.')
            return false;
    return *expression == *text;
}

enum fsdpck_pattern_result fsdpck_pattern_ends(const char *expression, const char *module)
{
    size_t n = strlen(expression), k = strlen(module);
    if (!is_name(expression))
        return match("^(.*\\.)?(", expression, module);
    return n <= k && (n == k || module[k - n - 1] == '.') && same(expression, module + k - n) ? PATTERN_YES : PATTERN_NO;
}

enum fsdpck_pattern_result fsdpck_pattern_whole(const char *expression, const char *module)
{
    return is_name(expression) ? (same(expression, module) ? PATTERN_YES : PATTERN_NO) : match("^(", expression, module);
}
