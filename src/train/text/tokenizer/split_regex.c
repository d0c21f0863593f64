/* SPDX-License-Identifier: Apache-2.0 */
/* PCRE2 for patterns without a scanner. A pattern is accepted only if PCRE2 and the library's engine agree on its
 * meaning. The two have different Unicode versions: in the searched text, a character that PCRE2 classifies differently
 * is replaced by one of the same length that has the right class. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer/split.h"
#include "text/utf8.h"

enum { MAX_PROPERTIES = 16, MAX_LITERALS = 64 };

/* \p{…}: the regex for PCRE2, and the categories that the library means by it. */
struct property {
    char regex[8]; /* "\p{Lu}+" */
    uint32_t categories;
};

struct split_regex {
    const char *name; /* borrowed */
    pcre2_code *code;
    uint8_t *differs;    /* (UNICODE_NPOINTS / 8) bit set: PCRE2 classifies the character differently */
    uint8_t *categories; /* (UNICODE_NPOINTS) */
    struct property properties[MAX_PROPERTIES];
    size_t nproperties;
    struct {
        uint32_t first, last;
    } literals[MAX_LITERALS]; /* the non-ASCII characters in the pattern */
    size_t nliterals;
    char stand_ins[UNICODE_NCATEGORIES][5][4]; /* by category and number of bytes; see stand_in() */
    bool has_stand_in[UNICODE_NCATEGORIES][5];
};

struct split_work {
    pcre2_match_data *match;
    pcre2_match_context *context;
    char *s;
    size_t capacity, n;
};

/* Parses "\p{Lu}" or "\P{Lu}". Returns its length; 0: not supported. Under case folding, only categories that folding
 * does not change are supported. */
static size_t take_property(struct split_regex *r, const char *p, bool folded)
{
    size_t n = strcspn(p, "}");
    uint32_t categories = n == 4 || n == 5 ? unicode_categories_of(p + 3, n - 3) : 0;
    bool known = categories && p[n] == '}' && p[2] == '{' && (n == 4 || !folded);
    for (size_t i = 0; known && i < r->nproperties; i++) {
        if (r->properties[i].categories == categories)
            return n + 1;
    }
    if (!known || r->nproperties == MAX_PROPERTIES)
        return 0;
    struct property *added = &r->properties[r->nproperties++];
    added->categories = categories;
    memcpy(added->regex, "\\p", 2);
    memcpy(added->regex + 2, p + 2, n - 1);
    added->regex[n + 1] = '+'; /* at most 7 characters, so the array ends with a NUL */
    return n + 1;
}

/* Parses one item at p that both engines interpret alike. Returns its length; 0: not supported. */
static size_t known_item(struct split_regex *r, const char *p, bool in_class, bool folded)
{
    static const char *const escapes[] = { "\\s", "\\S", "\\r", "\\n", "\\t" };
    static const char *const groups[] = { "(?:", "(?i:", "(?!", "(?=" };
    for (size_t i = 0; i < sizeof escapes / sizeof escapes[0]; i++) {
        if (strncmp(p, escapes[i], strlen(escapes[i])) == 0)
            return strlen(escapes[i]);
    }
    for (size_t i = 0; !in_class && i < sizeof groups / sizeof groups[0]; i++) {
        if (strncmp(p, groups[i], strlen(groups[i])) == 0)
            return strlen(groups[i]);
    }
    if (p[0] == '\\' && (p[1] == 'p' || p[1] == 'P'))
        return take_property(r, p, folded);
    if (p[0] == '\\')
        return p[1] && strchr(".?*+()[]{}|^$/-'\\", p[1]) ? 2 : 0;
    if (p[0] == '{' && !in_class) {
        size_t n = 1 + strspn(p + 1, "0123456789,");
        return n > 1 && p[n] == '}' && p[n + 1] != '+' ? n + 1 : 0;
    }
    if (folded && strchr("'sdmtlver|?:", p[0]))
        return 1;
    if (folded && ((p[0] >= 'a' && p[0] <= 'z') || (p[0] >= 'A' && p[0] <= 'Z')))
        return 0;
    if (in_class && p[0] == '&') /* "&&" means intersection */
        return p[1] == '&' ? 0 : 1;
    return strchr(in_class ? "[" : ".^$#(", p[0]) ? 0 : 1;
}

/* Parses a non-ASCII character, or in a class a range of them. Returns its length; 0: not supported. */
static size_t take_literal(struct split_regex *r, const char *pattern, const char *p, bool in_class, bool folded)
{
    size_t n, more;
    uint32_t first = utf8_get(p, &n), last = first;
    bool ends_range = in_class && p > pattern && p[-1] == '-'; /* of a range that begins with an ASCII character */
    if (folded || ends_range || r->nliterals == MAX_LITERALS)
        return 0;
    if (in_class && p[n] == '-' && (unsigned char)p[n + 1] >= 0x80) {
        last = utf8_get(p + n + 1, &more);
        n += 1 + more;
    }
    r->literals[r->nliterals].first = first;
    r->literals[r->nliterals++].last = last;
    return n;
}

static int check(struct split_regex *r, const char *regex, struct fsdpck_error *err)
{
    bool in_class = false, folded = false;
    int depth = 0, folded_at = 0;
    for (const char *p = regex; *p;) {
        bool opens = *p == '[' && !in_class, group = *p == '(' && !in_class, ends = *p == ')' && !in_class;
        size_t n = opens                       ? 1 + (p[1] == '^')
                   : (unsigned char)*p >= 0x80 ? take_literal(r, regex, p, in_class, folded)
                                               : known_item(r, p, in_class, folded);
        if (n == 0)
            return fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, r->name,
                                    "pre_tokenizer Split: the pattern has '%.12s' at character %zu, which this version "
                                    "cannot match exactly",
                                    p, (size_t)(p - regex));
        in_class = opens || (in_class && *p != ']');
        depth += group;
        if (group && !folded && n == 4) { /* (?i: */
            folded = true;
            folded_at = depth;
        }
        folded = folded && !(ends && depth == folded_at);
        depth -= ends;
        p += n;
    }
    return 0;
}

static pcre2_code *compile(const char *regex, int *why, size_t *at)
{
    return pcre2_compile((PCRE2_SPTR)regex, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, why, at, NULL);
}

/* property NULL: tests for white space. */
static bool has_property(const struct split_regex *r, const uint8_t *bits, const struct property *property, uint32_t c)
{
    return property ? property->categories >> r->categories[c] & 1 : (bits[c] & UNICODE_SPACE) != 0;
}

/* Marks the characters in s[at … end) whose property, according to the tables, is not `has`, PCRE2's answer. */
static void compare_range(struct split_regex *r, const uint8_t *bits, const struct property *property, bool has,
                          const char *s, size_t at, size_t end)
{
    for (size_t step; at < end; at += step) {
        uint32_t c = utf8_get(s + at, &step);
        if (has != has_property(r, bits, property, c))
            r->differs[c / 8] |= (uint8_t)(1u << c % 8);
    }
}

/* Compares one property for all characters in order. Such a text has few runs, so PCRE2 matches few times. */
static bool compare_property(struct split_regex *r, const uint8_t *bits, const struct property *property,
                             const char *all, size_t n)
{
    int why, rc;
    size_t at = 0;
    pcre2_code *code = compile(property ? property->regex : "\\s+", &why, &at);
    pcre2_match_data *match = code ? pcre2_match_data_create(1, NULL) : NULL;
    at = 0;
    while (match && (rc = pcre2_match(code, (PCRE2_SPTR)all, n, at, PCRE2_NO_UTF_CHECK, match, NULL)) > 0) {
        const size_t *run = pcre2_get_ovector_pointer(match);
        compare_range(r, bits, property, false, all, at, run[0]);
        compare_range(r, bits, property, true, all, run[0], run[1]);
        at = run[1];
    }
    bool ok = match && rc == PCRE2_ERROR_NOMATCH;
    if (ok)
        compare_range(r, bits, property, false, all, at, n);
    pcre2_match_data_free(match);
    pcre2_code_free(code);
    return ok;
}

static bool find_differences(struct split_regex *r, const uint8_t *bits)
{
    char *all = malloc(4 * (size_t)UNICODE_NPOINTS);
    size_t n = 0;
    for (uint32_t c = 0; all && c < UNICODE_NPOINTS; c++)
        n += c >= 0xd800 && c <= 0xdfff ? 0 : utf8_put(c, all + n);
    bool ok = all && compare_property(r, bits, NULL, all, n);
    for (size_t i = 0; ok && i < r->nproperties; i++)
        ok = compare_property(r, bits, &r->properties[i], all, n);
    free(all);
    return ok;
}

static bool does_differ(const struct split_regex *r, uint32_t c)
{
    return r->differs[c / 8] >> c % 8 & 1;
}

static bool is_literal(const struct split_regex *r, uint32_t c)
{
    bool found = false;
    for (size_t i = 0; i < r->nliterals; i++)
        found |= c >= r->literals[i].first && c <= r->literals[i].last;
    return found;
}

/* For each category and length in bytes, chooses a character that both engines classify alike and that the pattern does
 * not contain. */
static void choose_stand_ins(struct split_regex *r, const uint8_t *bits)
{
    char s[4];
    for (uint32_t c = 0x80; c < UNICODE_NPOINTS; c++) {
        size_t n = c >= 0xd800 && c <= 0xdfff ? 0 : utf8_put(c, s), category = r->categories[c];
        bool odd = (bits[c] & UNICODE_SPACE) &&
                   (category < UNICODE_ZS || category > UNICODE_ZP); /* white space that is no separator */
        if (n == 0 || odd || r->has_stand_in[category][n] || does_differ(r, c) || is_literal(r, c))
            continue;
        memcpy(r->stand_ins[category][n], s, n);
        r->has_stand_in[category][n] = true;
    }
}

/* A character as long as c that PCRE2 classifies as the library classifies c. NULL: none exists. */
static const char *stand_in(const struct split_regex *r, uint32_t c, size_t nbytes)
{
    uint8_t category = r->categories[c];
    return r->has_stand_in[category][nbytes] ? r->stand_ins[category][nbytes] : NULL;
}

/* Checks that each character that PCRE2 classifies differently has a usable stand-in. */
static int check_stand_ins(const struct split_regex *r, const uint8_t *bits, struct fsdpck_error *err)
{
    char s[4];
    size_t step;
    for (uint32_t c = 0; c < UNICODE_NPOINTS; c++) {
        const char *other = does_differ(r, c) ? stand_in(r, c, utf8_put(c, s)) : "";
        bool good = other && (!*other || ((bits[utf8_get(other, &step)] ^ bits[c]) & UNICODE_SPACE) == 0) &&
                    !(*other && is_literal(r, c));
        if (!good)
            return fsdpck_error_set(
                err, FSDPCK_ERR_UNSUPPORTED, r->name,
                "pre_tokenizer Split: PCRE2 takes U+%04X for something else than the library, and the pattern needs it",
                (unsigned)c);
    }
    return 0;
}

static int take_pattern(struct split_regex *r, const char *regex, const uint8_t *bits, struct fsdpck_error *err)
{
    char message[200];
    int why, rc = check(r, regex, err);
    size_t at;
    if (rc)
        return rc;
    r->code = compile(regex, &why, &at);
    if (!r->code) {
        pcre2_get_error_message(why, (PCRE2_UCHAR *)message, sizeof message);
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, r->name,
                                "pre_tokenizer Split: the pattern at character %zu: %s", at, message);
    }
    unicode_fill_categories(r->categories);
    if (!find_differences(r, bits))
        return fsdpck_error_nomem(err, sizeof *r);
    choose_stand_ins(r, bits);
    pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE);
    return check_stand_ins(r, bits, err);
}

int split_regex_new(const char *name, const char *regex, const uint8_t *bits, struct split_regex **out,
                    struct fsdpck_error *err)
{
    struct split_regex *r = calloc(1, sizeof *r);
    *out = NULL;
    if (r) {
        r->name = name;
        r->differs = calloc(UNICODE_NPOINTS / 8, 1);
        r->categories = malloc(UNICODE_NPOINTS);
    }
    int rc =
        r && r->differs && r->categories ? take_pattern(r, regex, bits, err) : fsdpck_error_nomem(err, UNICODE_NPOINTS);
    if (rc)
        split_regex_free(r);
    else
        *out = r;
    return rc;
}

void split_regex_free(struct split_regex *r)
{
    if (!r)
        return;
    pcre2_code_free(r->code);
    free(r->differs);
    free(r->categories);
    free(r);
}

struct split_work *split_work_new(const struct split_regex *r)
{
    struct split_work *w = calloc(1, sizeof *w);
    if (w) {
        w->match = pcre2_match_data_create_from_pattern(r->code, NULL);
        w->context = pcre2_match_context_create(NULL);
    }
    if (!w || !w->match || !w->context) {
        split_work_free(w);
        return NULL;
    }
    pcre2_set_match_limit(w->context, 10000000);
    return w;
}

void split_work_free(struct split_work *w)
{
    if (!w)
        return;
    pcre2_match_data_free(w->match);
    pcre2_match_context_free(w->context);
    free(w->s);
    free(w);
}

int split_work_set(struct split_work *w, const struct split_regex *r, const char *s, size_t n, struct fsdpck_error *err)
{
    size_t step;
    if (!grow((void **)&w->s, &w->capacity, n + 1, 1))
        return fsdpck_error_nomem(err, n);
    memcpy(w->s, s, n);
    w->n = n;
    for (size_t i = 0; i < n; i += step) {
        uint32_t c = utf8_get(s + i, &step);
        if (does_differ(r, c))
            memcpy(w->s + i, stand_in(r, c, step), step);
    }
    return 0;
}

int split_work_next(struct split_work *w, const struct split_regex *r, size_t at, size_t *begin, size_t *end,
                    struct fsdpck_error *err)
{
    char message[200];
    int rc = pcre2_match(r->code, (PCRE2_SPTR)w->s, w->n, at, PCRE2_NO_UTF_CHECK, w->match, w->context);
    if (rc == PCRE2_ERROR_NOMATCH) {
        *begin = *end = w->n;
        return 0;
    }
    if (rc < 0) {
        pcre2_get_error_message(rc, (PCRE2_UCHAR *)message, sizeof message);
        return fsdpck_error_set(err, FSDPCK_ERR_LIMIT, r->name, "pre_tokenizer Split: %s", message);
    }
    const size_t *ovector = pcre2_get_ovector_pointer(w->match);
    *begin = ovector[0];
    *end = ovector[1];
    return *end > *begin ? 0
                         : fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, r->name,
                                            "pre_tokenizer Split: the pattern matches nothing at all somewhere");
}
