/* SPDX-License-Identifier: Apache-2.0 */
/* Formats values: for {{ }} as Python's str and repr, and for tojson. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "text/jinja/impl.h"
#include "text/utf8.h"

struct writer {
    struct jrun *r;
    const struct jdump *json; /* NULL: format as Python */
    char *s;
    size_t n, capacity;
};

static int put(struct writer *w, const char *s, size_t n)
{
    if (w->n + n > JINJA_MAX_OUTPUT)
        return jfail(w->r, "a text of more than %d MiB", JINJA_MAX_OUTPUT >> 20);
    if (!grow((void **)&w->s, &w->capacity, w->n + n + 1, 1))
        return fsdpck_error_nomem(w->r->err, n);
    memcpy(w->s + w->n, s, n);
    w->n += n;
    return 0;
}

static int put_text(struct writer *w, const char *s)
{
    return put(w, s, strlen(s));
}

/* Python's repr of a float: the fewest digits that round-trip; an exponent from 1e16 on and below 1e-4. */
static int put_float(struct writer *w, double f)
{
    char text[40], *e;
    if (!isfinite(f))
        return put_text(w, isnan(f) ? w->json ? "NaN" : "nan"
                           : f > 0  ? (w->json ? "Infinity" : "inf")
                                    : (w->json ? "-Infinity" : "-inf"));
    int digits = 1;
    do
        snprintf(text, sizeof text, "%.*e", digits - 1, f);
    while (strtod(text, NULL) != f && ++digits < 18);
    e = strchr(text, 'e');
    int exponent = e ? atoi(e + 1) : 0;
    if (f == 0 || (exponent >= -4 && exponent < 16)) {
        int decimals = digits - 1 - exponent;
        snprintf(text, sizeof text, "%.*f", decimals > 0 ? decimals : 1, f);
        return put_text(w, text);
    }
    char power[16];
    snprintf(power, sizeof power, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    int rc = put(w, text, (size_t)(e - text));
    return rc ? rc : put_text(w, power);
}

static int put_escaped(struct writer *w, uint32_t c)
{
    char text[16];
    if (c > 0xffff)
        snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10), 0xdc00 + ((c - 0x10000) & 0x3ff));
    else
        snprintf(text, sizeof text, "\\u%04x", c);
    return put_text(w, text);
}

static int put_json_string(struct writer *w, const char *s, size_t n)
{
    static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
    int rc = put_text(w, "\"");
    for (size_t i = 0, step; !rc && i < n; i += step) {
        uint32_t c = utf8_get(s + i, &step);
        const char *hit = c && c < 128 ? strchr(from, (int)c) : NULL;
        char pair[2] = { '\\', hit ? to[hit - from] : 0 };
        if (hit)
            rc = put(w, pair, 2);
        else if (c < 0x20 || (c > 0x7e && w->json->ascii))
            rc = put_escaped(w, c);
        else
            rc = put(w, s + i, step);
    }
    return rc ? rc : put_text(w, "\"");
}

/* True if Python's repr prints the character unescaped. */
static bool is_printable(uint32_t c)
{
    if (c < 0x7f)
        return c >= 0x20;
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k != UTF8PROC_CATEGORY_CN && k < UTF8PROC_CATEGORY_ZS;
}

/* Python's repr of a string: in single quotes, unless it contains those and no double quotes. */
static int put_repr(struct writer *w, const char *s, size_t n)
{
    char quote = memchr(s, '\'', n) && !memchr(s, '"', n) ? '"' : '\'', text[16];
    int rc = put(w, &quote, 1);
    for (size_t i = 0, step; !rc && i < n; i += step) {
        uint32_t c = utf8_get(s + i, &step);
        if (c == '\n' || c == '\r' || c == '\t')
            snprintf(text, sizeof text, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else
            snprintf(text, sizeof text, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
        if (!is_printable(c))
            rc = put_text(w, text);
        else if (c == '\\' || c == (uint32_t)quote)
            rc = put(w, "\\", 1);
        if (!rc && is_printable(c))
            rc = put(w, s + i, step);
    }
    return rc ? rc : put(w, &quote, 1);
}

static int line_break(struct writer *w, unsigned depth)
{
    int rc = w->json && w->json->indent >= 0 ? put_text(w, "\n") : 0;
    for (unsigned i = 0; !rc && w->json && w->json->indent > 0 && i < depth * (unsigned)w->json->indent; i++)
        rc = put_text(w, " ");
    return rc;
}

static int put_value(struct writer *w, const struct jvalue *v, unsigned depth);

static int put_list(struct writer *w, const struct jvalue *v, unsigned depth)
{
    const struct jlist *l = v->list;
    bool tuple = v->tuple && !w->json;
    int rc = put_text(w, tuple ? "(" : "[");
    for (size_t i = 0; !rc && i < l->count; i++) {
        if (i)
            rc = put_text(w, w->json ? w->json->item : ", ");
        if (!rc)
            rc = line_break(w, depth + 1);
        if (!rc)
            rc = put_value(w, &l->items[i], depth + 1);
    }
    if (!rc && l->count)
        rc = line_break(w, depth);
    return rc ? rc : put_text(w, !tuple ? "]" : l->count == 1 ? ",)" : ")");
}

static int by_key(const void *a, const void *b)
{
    const struct jvalue *x = &((const struct jpair *)a)->key, *y = &((const struct jpair *)b)->key;
    int c = memcmp(x->s, y->s, x->n < y->n ? x->n : y->n);
    return c ? c : x->n < y->n ? -1 : x->n > y->n;
}

static int put_pair(struct writer *w, const struct jpair *pair, unsigned depth)
{
    if (w->json && pair->key.kind != JV_STRING)
        return junsupported(w->r, "tojson: a key that is %s is not in this version", jkind_name(&pair->key));
    int rc = put_value(w, &pair->key, depth);
    if (!rc)
        rc = put_text(w, w->json ? w->json->key : ": ");
    return rc ? rc : put_value(w, &pair->value, depth);
}

static int put_dict(struct writer *w, const struct jdict *d, unsigned depth)
{
    struct jpair *pairs = d->pairs;
    int rc = put_text(w, "{");
    if (w->json && w->json->sort && d->count) {
        pairs = jarena_alloc(&w->r->arena, d->count * sizeof *pairs);
        if (!pairs)
            return jno_memory(w->r);
        memcpy(pairs, d->pairs, d->count * sizeof *pairs);
        for (size_t i = 0; i < d->count; i++) {
            if (pairs[i].key.kind != JV_STRING)
                return junsupported(w->r, "tojson: a key that is %s is not in this version", jkind_name(&pairs[i].key));
        }
        qsort(pairs, d->count, sizeof *pairs, by_key);
    }
    for (size_t i = 0; !rc && i < d->count; i++) {
        if (i)
            rc = put_text(w, w->json ? w->json->item : ", ");
        if (!rc)
            rc = line_break(w, depth + 1);
        if (!rc)
            rc = put_pair(w, &pairs[i], depth + 1);
    }
    if (!rc && d->count)
        rc = line_break(w, depth);
    return rc ? rc : put_text(w, "}");
}

static int put_value(struct writer *w, const struct jvalue *v, unsigned depth)
{
    char text[32];
    if (depth > JINJA_MAX_DEPTH)
        return jfail(w->r, "values of more than %d levels", JINJA_MAX_DEPTH);
    w->r->steps++;
    switch (v->kind) {
    case JV_NONE: return put_text(w, w->json ? "null" : "None");
    case JV_BOOL: return put_text(w, w->json ? v->i ? "true" : "false" : v->i ? "True" : "False");
    case JV_INT: snprintf(text, sizeof text, "%lld", (long long)v->i); return put_text(w, text);
    case JV_FLOAT: return put_float(w, v->f);
    case JV_STRING: return w->json ? put_json_string(w, v->s, v->n) : put_repr(w, v->s, v->n);
    case JV_LIST: return put_list(w, v, depth);
    case JV_DICT: return put_dict(w, v->dict, depth);
    case JV_UNDEFINED:
        if (!w->json)
            return put_text(w, "Undefined");
        return jfail(w->r, "%s has no text", jkind_name(v));
    case JV_RANGE:
    case JV_VIEW:
    case JV_ITERATOR:
        return junsupported(w->r, "%s has no text in this version: write \"| list\" behind it", jkind_name(v));
    case JV_FUNCTION:
        return junsupported(w->r, "the text of a function ('%.*s') is not in this version",
                            (int)(v->n > 60 ? 60 : v->n), v->s);
    default: return jfail(w->r, "%s has no text", jkind_name(v));
    }
}

static int finish(struct writer *w, int rc, struct jvalue *out)
{
    if (!rc)
        rc = jstring_copy(w->r, w->s, w->n, out);
    free(w->s);
    return rc;
}

int jtext(struct jrun *r, const struct jvalue *v, struct jvalue *out)
{
    struct writer w = { .r = r };
    if (v->kind == JV_STRING || v->kind == JV_UNDEFINED) {
        *out = v->kind == JV_STRING ? *v : jstring("", 0);
        return 0;
    }
    return finish(&w, put_value(&w, v, 0), out);
}

int jjson(struct jrun *r, const struct jvalue *v, const struct jdump *how, struct jvalue *out)
{
    struct writer w = { .r = r, .json = how };
    return finish(&w, put_value(&w, v, 0), out);
}
