/* Patterns that have no scanner: PCRE2. Only what means the same to it and to the library's engine is let through, and since PCRE2's Unicode is another,
 * characters that it takes for something else are searched as ones of the same length that it takes for the right thing. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "text/split.h"
#include "text/utf8.h"

struct split_regex {
    const char *name; /* borrowed */
    pcre2_code *code;
    uint8_t *differs; /* (UNICODE_NPOINTS / 8) bit set: PCRE2 takes it for something else */
};

struct split_work {
    pcre2_match_data *match;
    pcre2_match_context *context;
    char *s;
    size_t capacity, n;
};

/* One item of a pattern at p that both engines read alike: its bytes, or 0. */
static size_t known_item(const char *p, bool in_class, bool folds)
{
    static const char *const escapes[] = { "\\p{L}", "\\p{N}", "\\s", "\\S", "\\r", "\\n", "\\t" };
    static const char *const groups[] = { "(?:", "(?i:", "(?!", "(?=" };
    for (size_t i = 0; i < sizeof escapes / sizeof escapes[0]; i++) {
        if (strncmp(p, escapes[i], strlen(escapes[i])) == 0)
            return strlen(escapes[i]);
    }
    for (size_t i = 0; !in_class && i < sizeof groups / sizeof groups[0]; i++) {
        if (strncmp(p, groups[i], strlen(groups[i])) == 0)
            return strlen(groups[i]);
    }
    if (p[0] == '\\')
        return p[1] && strchr(".?*+()[]{}|^$/-'\\", p[1]) ? 2 : 0;
    if (p[0] == '{' && !in_class) {
        size_t n = 1 + strspn(p + 1, "0123456789,");
        return n > 1 && p[n] == '}' && p[n + 1] != '+' ? n + 1 : 0;
    }
    if (folds && strchr("'sdmtlver|?:", p[0]))
        return 1;
    if (folds && ((unsigned char)p[0] >= 0x80 || (p[0] >= 'a' && p[0] <= 'z') || (p[0] >= 'A' && p[0] <= 'Z')))
        return 0;
    return strchr(in_class ? "[&" : ".^$#(", p[0]) ? 0 : 1;
}

static int check(const char *name, const char *regex, struct fsdpck_error *err)
{
    bool in_class = false, folds = strstr(regex, "(?i:") != NULL; /* folding is taken to hold everywhere: stricter, and simpler */
    for (const char *p = regex; *p;) {
        bool opens = *p == '[' && !in_class;
        size_t n = opens ? 1 + (p[1] == '^') : known_item(p, in_class, folds);
        if (n == 0)
            return fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, name, "pre_tokenizer Split: the pattern has '%.12s' at character %zu, which this version cannot match exactly", p,
                                    (size_t)(p - regex));
        in_class = opens || (in_class && *p != ']');
        p += n;
    }
    return 0;
}

static pcre2_code *compile(const char *regex, int *why, size_t *at)
{
    return pcre2_compile((PCRE2_SPTR)regex, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, why, at, NULL);
}

/* Compares what PCRE2 and the table say of the characters in s[at … end]. */
static void compare_range(struct split_regex *r, const uint8_t *bits, uint8_t bit, bool has, const char *s, size_t at, size_t end)
{
    for (size_t step; at < end; at += step) {
        uint32_t c = utf8_get(s + at, &step);
        if (has != ((bits[c] & bit) != 0))
            r->differs[c / 8] |= (uint8_t)(1u << c % 8);
    }
}

/* One class, on a text of all characters in order: its runs are few. */
static bool compare_class(struct split_regex *r, const uint8_t *bits, const char *regex, uint8_t bit, const char *all, size_t n)
{
    int why, rc;
    size_t at = 0;
    pcre2_code *code = compile(regex, &why, &at);
    pcre2_match_data *match = code ? pcre2_match_data_create(1, NULL) : NULL;
    at = 0;
    while (match && (rc = pcre2_match(code, (PCRE2_SPTR)all, n, at, PCRE2_NO_UTF_CHECK, match, NULL)) > 0) {
        const size_t *run = pcre2_get_ovector_pointer(match);
        compare_range(r, bits, bit, false, all, at, run[0]);
        compare_range(r, bits, bit, true, all, run[0], run[1]);
        at = run[1];
    }
    bool ok = match && rc == PCRE2_ERROR_NOMATCH;
    if (ok)
        compare_range(r, bits, bit, false, all, at, n);
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
    bool ok = all && compare_class(r, bits, "\\p{L}+", UNICODE_LETTER, all, n) && compare_class(r, bits, "\\p{N}+", UNICODE_NUMBER, all, n) &&
              compare_class(r, bits, "\\s+", UNICODE_SPACE, all, n);
    free(all);
    return ok;
}

int split_regex_new(const char *name, const char *regex, const uint8_t *bits, struct split_regex **out, struct fsdpck_error *err)
{
    char message[200];
    int why, rc = check(name, regex, err);
    size_t at;
    *out = NULL;
    if (rc)
        return rc;
    struct split_regex *r = calloc(1, sizeof *r);
    if (!r || !(r->differs = calloc(UNICODE_NPOINTS / 8, 1))) {
        free(r);
        return fsdpck_error_nomem(err, UNICODE_NPOINTS / 8);
    }
    r->name = name;
    r->code = compile(regex, &why, &at);
    if (!r->code) {
        pcre2_get_error_message(why, (PCRE2_UCHAR *)message, sizeof message);
        rc = fsdpck_error_set(err, FSDPCK_ERR_FORMAT, name, "pre_tokenizer Split: the pattern at character %zu: %s", at, message);
    } else if (!find_differences(r, bits)) {
        rc = fsdpck_error_nomem(err, sizeof *r);
    } else {
        pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE);
    }
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

/* Of as many bytes as c, and for PCRE2 what c is for the library. There is no new letter or digit of two bytes, nor white space that PCRE2 lacks. */
static const char *stand_in(uint8_t bits, size_t nbytes)
{
    if (bits & UNICODE_LETTER)
        return nbytes == 3 ? "\u4e00" : nbytes == 4 ? "\U00020000" : "\u01bb";
    if (bits & UNICODE_NUMBER)
        return nbytes == 3 ? "\u0966" : nbytes == 4 ? "\U000104a0" : "\u00b2";
    return nbytes == 3 ? "\u200b" : nbytes == 4 ? "\U000e0001" : "\u0378";
}

int split_work_set(struct split_work *w, const struct split_regex *r, const uint8_t *bits, const char *s, size_t n, struct fsdpck_error *err)
{
    size_t step;
    if (!grow((void **)&w->s, &w->capacity, n + 1, 1))
        return fsdpck_error_nomem(err, n);
    memcpy(w->s, s, n);
    w->n = n;
    for (size_t i = 0; i < n; i += step) {
        uint32_t c = utf8_get(s + i, &step);
        if (r->differs[c / 8] >> c % 8 & 1)
            memcpy(w->s + i, stand_in(bits[c], step), step);
    }
    return 0;
}

int split_work_next(struct split_work *w, const struct split_regex *r, size_t at, size_t *begin, size_t *end, struct fsdpck_error *err)
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
    return *end > *begin ? 0 : fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, r->name, "pre_tokenizer Split: the pattern matches nothing at all somewhere");
}
