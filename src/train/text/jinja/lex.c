/* SPDX-License-Identifier: Apache-2.0 */
/* Tokenizes a template, with the white space rules of trim_blocks and lstrip_blocks. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja/impl.h"
#include "text/utf8.h"

struct jarena_block {
    struct jarena_block *previous;
    size_t used, capacity;
    _Alignas(16) char bytes[];
};

void *jarena_alloc(struct jarena *a, size_t nbytes)
{
    if (nbytes > JINJA_MAX_MEMORY - a->total)
        return NULL;
    size_t rounded = (nbytes + 15) & ~(size_t)15;
    if (!a->last || a->last->capacity - a->last->used < rounded) {
        size_t capacity = rounded > 16384 ? rounded : 16384;
        struct jarena_block *block = malloc(sizeof *block + capacity);
        if (!block)
            return NULL;
        *block = (struct jarena_block){ .previous = a->last, .capacity = capacity };
        a->last = block;
    }
    void *p = a->last->bytes + a->last->used;
    a->last->used += rounded;
    a->total += nbytes;
    return p;
}

void jarena_free(struct jarena *a)
{
    for (struct jarena_block *b = a->last, *previous; b; b = previous) {
        previous = b->previous;
        free(b);
    }
    *a = (struct jarena){ 0 };
}

int jinja_fail(const struct jinja *j, uint32_t line, int code, struct fsdpck_error *err, const char *fmt, ...)
{
    char what[500];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return fsdpck_error_set(err, code, j->name, "line %u of the template: %s", line, what);
}

struct lexer {
    struct jinja *j;
    const char *s;
    size_t n, at;
    uint32_t line;
    bool line_starting; /* the last tag removed the line end behind it */
    struct fsdpck_error *err;
};

static int fail(const struct lexer *l, const char *what)
{
    return jinja_fail(l->j, l->line, FSDPCK_ERR_FORMAT, l->err, "%s", what);
}

static int add(struct lexer *l, struct jtoken token)
{
    struct jinja *j = l->j;
    token.line = l->line;
    if (!grow((void **)&j->tokens, &j->tokens_capacity, j->ntokens + 1, sizeof *j->tokens))
        return fsdpck_error_nomem(l->err, sizeof token);
    j->tokens[j->ntokens++] = token;
    return 0;
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static void advance(struct lexer *l, size_t to)
{
    for (; l->at < to; l->at++)
        l->line += l->s[l->at] == '\n';
}

static bool starts(const struct lexer *l, const char *text)
{
    size_t n = strlen(text);
    return l->n - l->at >= n && memcmp(l->s + l->at, text, n) == 0;
}

static size_t find(const struct lexer *l, size_t from, const char *text)
{
    const char *hit = from < l->n ? memmem(l->s + from, l->n - from, text, strlen(text)) : NULL;
    return hit ? (size_t)(hit - l->s) : l->n;
}

/* At the end of a block or comment: "-" removes all white space behind it, "+" none; otherwise one line end is
 * removed. */
static void skip_behind(struct lexer *l, char sign)
{
    size_t before = l->at;
    if (sign == '-')
        while (l->at < l->n && is_space(l->s[l->at]))
            advance(l, l->at + 1);
    else if (sign != '+' && l->at < l->n && l->s[l->at] == '\n')
        advance(l, l->at + 1);
    l->line_starting = l->at > before && l->s[l->at - 1] == '\n';
}

/* Emits the text up to the tag that begins at `end`. sign: the character behind "{%"; block: lstrip_blocks applies. */
static int lex_data(struct lexer *l, size_t end, char sign, bool block)
{
    size_t from = l->at, to = end;
    if (sign == '-') {
        while (to > from && is_space(l->s[to - 1]))
            to--;
    } else if (block && sign != '+') {
        size_t line = end;
        while (line > from && l->s[line - 1] != '\n' && is_space(l->s[line - 1]))
            line--;
        if (line > from ? l->s[line - 1] == '\n' : l->line_starting)
            to = line;
    }
    int rc = to > from ? add(l, (struct jtoken){ .kind = JT_DATA, .s = l->s + from, .n = to - from }) : 0;
    advance(l, end);
    return rc;
}

static int hex_value(const char *s, unsigned digits, uint32_t *out)
{
    *out = 0;
    for (unsigned i = 0; i < digits; i++) {
        char c = s[i];
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (d < 0)
            return -1;
        *out = *out * 16 + (uint32_t)d;
    }
    return 0;
}

/* Decodes the escape behind a backslash at s. Returns the number of bytes read; 0: unknown escape. *written: bytes
 * written to out. */
static size_t unescape(const char *s, size_t left, char *out, size_t *written)
{
    static const char from[] = "ntr\\'\"abfv0", to[] = "\n\t\r\\'\"\a\b\f\v\0";
    const char *hit = *s ? strchr(from, *s) : NULL;
    unsigned digits = *s == 'x' ? 2 : *s == 'u' ? 4 : *s == 'U' ? 8 : 0;
    uint32_t c;
    *written = 0;
    if (*s == '\n')
        return 1;
    if (digits) {
        if (left <= digits || hex_value(s + 1, digits, &c) || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff))
            return 0;
        *written = utf8_put(c, out);
        return 1 + digits;
    }
    if ((*s >= '1' && *s <= '7') || *s == 'N' || (*s == '0' && left > 1 && s[1] >= '0' && s[1] <= '7'))
        return 0; /* octal and \N{name} are unsupported */
    if (!hit) {   /* unknown escapes keep their backslash */
        out[0] = '\\';
        out[1] = *s;
        *written = 2;
        return 1;
    }
    out[0] = to[hit - from];
    *written = 1;
    return 1;
}

static int lex_string(struct lexer *l)
{
    char quote = l->s[l->at];
    size_t end = l->at + 1, n = 0;
    while (end < l->n && l->s[end] != quote)
        end += l->s[end] == '\\' ? 2 : 1;
    if (end >= l->n)
        return fail(l, "a string does not end");
    char *out = jarena_alloc(&l->j->arena, end - l->at + 4);
    if (!out)
        return fsdpck_error_nomem(l->err, end - l->at);
    for (size_t i = l->at + 1; i < end;) {
        size_t written = 1, read = 1;
        if (l->s[i] == '\\') {
            read = unescape(l->s + i + 1, end - i - 1, out + n, &written);
            if (read == 0)
                return fail(l, "an escape in a string that this version does not know");
            read++;
        } else {
            out[n] = l->s[i];
        }
        n += written;
        i += read;
    }
    int rc = add(l, (struct jtoken){ .kind = JT_STRING, .s = out, .n = n });
    advance(l, end + 1);
    return rc;
}

static int lex_number(struct lexer *l)
{
    char text[64];
    size_t n = 0, end = l->at;
    bool whole = true, powered = false;
    for (; end < l->n && n < sizeof text - 2; end++) {
        char c = l->s[end];
        bool point = c == '.' && whole && !powered && end + 1 < l->n && l->s[end + 1] >= '0' && l->s[end + 1] <= '9';
        bool power = n > 0 && !powered && (c == 'e' || c == 'E');
        size_t sign = power && end + 1 < l->n && (l->s[end + 1] == '+' || l->s[end + 1] == '-');
        power = power && end + 1 + sign < l->n && l->s[end + 1 + sign] >= '0' && l->s[end + 1 + sign] <= '9';
        if (point || power)
            whole = false;
        powered |= power;
        if (power && sign) {
            text[n++] = 'e';
            c = l->s[++end];
        } else if (c == '_')
            continue;
        else if (!point && !power && (c < '0' || c > '9'))
            break;
        text[n++] = c;
    }
    text[n] = '\0';
    errno = 0;
    struct jtoken token = { .kind = whole ? JT_INT : JT_FLOAT,
                            .i = whole ? strtoll(text, NULL, 10) : 0,
                            .f = whole ? 0 : strtod(text, NULL) };
    if (errno || n >= sizeof text - 2)
        return fail(l, "a number is too large");
    l->at = end;
    return add(l, token);
}

static bool is_name(char c, bool first)
{
    return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (!first && c >= '0' && c <= '9');
}

static int lex_operator(struct lexer *l)
{
    static const char *const operators[] = { "//", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
                                             "]",  "(",  ")",  "{",  "}",  ">", "<", "=", ".", ":", "|", "," };
    for (size_t i = 0; i < sizeof operators / sizeof operators[0]; i++) {
        if (starts(l, operators[i])) {
            l->at += strlen(operators[i]);
            return add(l, (struct jtoken){ .kind = JT_OP, .s = operators[i], .n = strlen(operators[i]) });
        }
    }
    return fail(l, "a character that has no meaning here");
}

/* Tokenizes the inside of a tag, up to its end. */
static int lex_tag(struct lexer *l, bool variable)
{
    const char *close = variable ? "}}" : "%}";
    int braces = 0, rc = 0;
    while (!rc) {
        while (l->at < l->n && is_space(l->s[l->at]))
            advance(l, l->at + 1);
        if (l->at >= l->n)
            return fail(l, "a tag does not end");
        char c = l->s[l->at], sign = c == '-' || (c == '+' && !variable) ? c : 0;
        size_t skip = sign ? 1 : 0;
        if (l->n - l->at >= 2 + skip && memcmp(l->s + l->at + skip, close, 2) == 0 &&
            !(variable && !skip && braces > 0)) {
            l->at += 2 + skip;
            rc = add(l, (struct jtoken){ .kind = variable ? JT_VAR_END : JT_BLOCK_END });
            if (!variable || sign == '-')
                skip_behind(l, sign);
            else
                l->line_starting = false;
            return rc;
        }
        braces += c == '{' ? 1 : c == '}' ? -1 : 0;
        if (c == '\'' || c == '"') {
            rc = lex_string(l);
        } else if (c >= '0' && c <= '9') {
            rc = lex_number(l);
        } else if (is_name(c, true)) {
            size_t end = l->at;
            while (end < l->n && is_name(l->s[end], false))
                end++;
            rc = add(l, (struct jtoken){ .kind = JT_NAME, .s = l->s + l->at, .n = end - l->at });
            l->at = end;
        } else {
            rc = lex_operator(l);
        }
    }
    return rc;
}

/* "{% raw %}" is unsupported: it would turn the rest into text. */
static int refuse_raw(const struct lexer *l)
{
    size_t at = l->at + 2 + (l->at + 2 < l->n && (l->s[l->at + 2] == '-' || l->s[l->at + 2] == '+'));
    while (at < l->n && is_space(l->s[at]))
        at++;
    if (l->n - at <= 3 || memcmp(l->s + at, "raw", 3) != 0 || is_name(l->s[at + 3], false))
        return 0;
    return jinja_fail(l->j, l->line, FSDPCK_ERR_UNSUPPORTED, l->err, "{%% raw %%} is not in this version");
}

static int lex_comment(struct lexer *l)
{
    size_t end = find(l, l->at + 2, "#}");
    if (end == l->n)
        return fail(l, "a comment does not end");
    char sign = l->s[end - 1];
    advance(l, end + 2);
    skip_behind(l, end - 1 >= 2 && (sign == '-' || sign == '+') ? sign : 0);
    return 0;
}

static int lex_all(struct lexer *l)
{
    int rc = 0;
    l->line_starting = true;
    while (!rc && l->at < l->n) {
        size_t tag = l->at;
        while (tag < l->n && !(l->s[tag] == '{' && tag + 1 < l->n && strchr("{%#", l->s[tag + 1]) && l->s[tag + 1]))
            tag++;
        char kind = tag < l->n ? l->s[tag + 1] : 0, sign = tag + 2 < l->n ? l->s[tag + 2] : 0;
        if (kind == '{' && sign == '+')
            sign = 0;
        rc = kind ? lex_data(l, tag, sign, kind != '{') : lex_data(l, l->n, 0, false);
        if (rc || !kind)
            break;
        if (kind == '#') {
            rc = lex_comment(l);
            continue;
        }
        if (kind == '%')
            rc = refuse_raw(l);
        if (!rc)
            rc = add(l, (struct jtoken){ .kind = kind == '{' ? JT_VAR_BEGIN : JT_BLOCK_BEGIN });
        l->at += 2 + (sign == '-' || (kind == '%' && sign == '+'));
        if (!rc)
            rc = lex_tag(l, kind == '{');
    }
    return rc ? rc : add(l, (struct jtoken){ .kind = JT_END });
}

int jinja_lex(struct jinja *j, struct fsdpck_error *err)
{
    struct lexer l = { .j = j, .s = j->source, .n = j->nbytes, .line = 1, .err = err };
    return lex_all(&l);
}
