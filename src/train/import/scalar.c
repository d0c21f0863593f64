/* SPDX-License-Identifier: Apache-2.0 */
/* Plain scalars of YAML, as PyYAML resolves them, and numbers and booleans of TOML. One difference to PyYAML: 1e-4 is a
 * number, as every trainer that reads such a file converts it to one. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "import/read.h"

static bool is_one_of(const char *text, const char *const *words)
{
    for (; *words; words++)
        if (strcmp(text, *words) == 0)
            return true;
    return false;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Copies a number without its sign and underscores. Returns false if the text has no form of a decimal number. */
static bool strip_number(const char *text, char *digits, bool *whole)
{
    size_t n = 0, nfigures = 0;
    bool point = false, exponent = false;
    for (const char *at = text + (*text == '-' || *text == '+'); *at; at++) {
        if (*at == '_' && n > 0 && is_digit(at[-1]))
            continue;
        if (is_digit(*at))
            nfigures++;
        else if (*at == '.' && !point && !exponent)
            point = true;
        else if ((*at == 'e' || *at == 'E') && nfigures > 0 && !exponent) {
            exponent = true;
            digits[n++] = *at;
            if (at[1] == '-' || at[1] == '+')
                digits[n++] = *++at;
            if (!is_digit(at[1]))
                return false;
            continue;
        } else
            return false;
        digits[n++] = *at;
    }
    digits[n] = '\0';
    *whole = !point && !exponent;
    return nfigures > 0;
}

static json_t *number(const char *text, const char **refusal)
{
    char digits[64];
    bool whole;
    if (strlen(text) >= sizeof digits || !strip_number(text, digits, &whole))
        return NULL;
    if (whole && digits[0] == '0' && digits[1]) {
        *refusal = "a number with a leading zero is octal to some readers and decimal to others: write it without";
        return NULL;
    }
    errno = 0;
    if (whole) {
        long long value = strtoll(digits, NULL, 10);
        if (errno == ERANGE)
            *refusal = "a number above 9223372036854775807";
        return errno ? NULL : json_integer(*text == '-' ? -value : value);
    }
    double value = strtod(digits, NULL);
    if (!isfinite(value))
        *refusal = "a number that is too large";
    return isfinite(value) ? json_real(*text == '-' ? -value : value) : NULL;
}

json_t *import_scalar(const char *text, size_t nbytes, const char **refusal)
{
    static const char *const nulls[] = { "", "~", "null", "Null", "NULL", NULL };
    static const char *const trues[] = { "true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON", NULL };
    static const char *const falses[] = { "false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF", NULL };
    static const char *const infinite[] = { ".inf", ".Inf", ".INF", ".nan", ".NaN", ".NAN", "inf", "nan", NULL };
    char word[80];
    *refusal = NULL;
    if (nbytes >= sizeof word || memchr(text, '\0', nbytes))
        return NULL;
    memcpy(word, text, nbytes);
    word[nbytes] = '\0';
    if (is_one_of(word, nulls))
        return json_null();
    if (is_one_of(word, trues))
        return json_true();
    if (is_one_of(word, falses))
        return json_false();
    if (is_one_of(word + (*word == '-' || *word == '+'), infinite))
        *refusal = "a number that is not finite";
    else if (word[0] == '0' && word[1] && strchr("xob", word[1]))
        *refusal = "a number that is not decimal";
    return *refusal ? NULL : number(word, refusal);
}
