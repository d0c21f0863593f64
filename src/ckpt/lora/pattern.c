/* SPDX-License-Identifier: Apache-2.0 */
/* Matches Python expressions with PCRE2. Accepts only syntax that means the same in both. Costs are limited, because
 * the file is untrusted. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "lora/pattern.h"

#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A module's path takes a few hundred steps; endless backtracking is stopped within milliseconds. */
enum { MAX_NBYTES = 1 << 16, MAX_STEPS = 100000, MAX_KIB = 1024 };

/* After "(?": accepts groups without a number, lookahead, lookbehind, and names. Refuses flags, conditions and
 * calls. */
static bool group_is_common(const char *at)
{
    static const char *const common[] = { ":", "=", "!", "<=", "<!", "P<", "P=", NULL };
    for (const char *const *c = common; *c; c++)
        if (strncmp(at, *c, strlen(*c)) == 0)
            return true;
    return false;
}

/* After a backslash: accepts classes, positions, group numbers, and any non-letter. */
static bool escape_is_common(char c)
{
    bool word = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    return c != '\0' && (!word || strchr("dDwWsSbBAntrf123456789", c));
}

static bool is_common(const char *e)
{
    for (bool in_set = false; *e; e++) {
        if (*e == '\\') {
            if (!escape_is_common(*++e))
                return false;
        } else if (in_set) {
            if (*e == '[' && (e[1] == ':' || e[1] == '.' || e[1] == '='))
                return false;
            in_set = *e != ']';
        } else if (*e == '[') {
            in_set = true;
            e += e[1] == '^';
            e += e[1] == ']'; /* as the first character it is a member of the set */
        } else if ((*e == '(' && (e[1] == '*' || (e[1] == '?' && !group_is_common(e + 2)))) ||
                   (*e == '{' && e[1] == ',')) {
            return false;
        }
    }
    return true;
}

static pcre2_code *compile(const char *expression)
{
    int code;
    PCRE2_SIZE at;
    if (strlen(expression) > MAX_NBYTES || !is_common(expression))
        return NULL;
    return pcre2_compile((PCRE2_SPTR)expression, PCRE2_ZERO_TERMINATED,
                         PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED | PCRE2_ENDANCHORED, &code, &at, NULL);
}

static enum fsdpck_pattern_result match(const char *expression, const char *module)
{
    pcre2_code *compiled = compile(expression);
    pcre2_match_data *data = compiled ? pcre2_match_data_create(1, NULL) : NULL;
    pcre2_match_context *limits = data ? pcre2_match_context_create(NULL) : NULL;
    int rc = PCRE2_ERROR_NOMEMORY;
    if (limits && pcre2_set_match_limit(limits, MAX_STEPS) == 0 && pcre2_set_heap_limit(limits, MAX_KIB) == 0)
        rc = pcre2_match(compiled, (PCRE2_SPTR)module, PCRE2_ZERO_TERMINATED, 0, 0, data, limits);
    pcre2_match_context_free(limits);
    pcre2_match_data_free(data);
    pcre2_code_free(compiled);
    return rc >= 0 ? PATTERN_YES : rc == PCRE2_ERROR_NOMATCH ? PATTERN_NO : PATTERN_UNKNOWN;
}

/* Most expressions are names, in which only the dot is special. An adapter may have thousands, and compiling is
 * expensive. */
static bool is_name(const char *s)
{
    return s[strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")] == '\0';
}

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
    if (is_name(expression))
        return n <= k && (n == k || module[k - n - 1] == '.') && same(expression, module + k - n) ? PATTERN_YES
                                                                                                  : PATTERN_NO;
    char *whole = malloc(n + 16);
    if (!whole)
        return PATTERN_UNKNOWN;
    sprintf(whole, "(.*\\.)?(%s)$", expression); /* as PEFT writes it, so that groups have the same numbers */
    enum fsdpck_pattern_result result = match(whole, module);
    free(whole);
    return result;
}

enum fsdpck_pattern_result fsdpck_pattern_whole(const char *expression, const char *module)
{
    return is_name(expression) ? (same(expression, module) ? PATTERN_YES : PATTERN_NO) : match(expression, module);
}
