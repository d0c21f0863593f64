/* SPDX-License-Identifier: Apache-2.0 */
/* Filters that make a text. */
#include "text/jinja/filters.h"

#include <string.h>

int jfilter_string(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    (void)args;
    return jtext(r, v, out);
}

int jfilter_trim(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    const struct jvalue *chars = jarg(args, 0, "chars");
    struct jvalue text;
    int rc = jtext(r, v, &text);
    if (!rc)
        *out = jstrip(&text, chars && chars->kind == JV_STRING ? chars : NULL, true, true);
    return rc;
}

static int recase(struct jrun *r, const struct jvalue *v, enum jcase how, struct jvalue *out)
{
    struct jvalue text;
    int rc = jtext(r, v, &text);
    return rc ? rc : jrecase(r, &text, how, out);
}

int jfilter_upper(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    (void)args;
    return recase(r, v, JCASE_UPPER, out);
}

int jfilter_lower(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    (void)args;
    return recase(r, v, JCASE_LOWER, out);
}

int jfilter_title(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    (void)args;
    return recase(r, v, JCASE_TITLE, out);
}

int jfilter_capitalize(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    (void)args;
    return recase(r, v, JCASE_CAPITALIZE, out);
}

static int separators(struct jrun *r, const struct jvalue *v, struct jdump *how)
{
    struct jvalue text;
    const char **to[2] = { &how->item, &how->key };
    if (v->kind != JV_LIST || v->list->count != 2)
        return jfail(r, "tojson: separators are two strings");
    for (int i = 0; i < 2; i++) {
        if (v->list->items[i].kind != JV_STRING)
            return jfail(r, "tojson: separators are two strings");
        int rc = jstring_copy(r, v->list->items[i].s, v->list->items[i].n, &text);
        if (rc)
            return rc;
        ((char *)text.s)[text.n] = '\0';
        *to[i] = text.s;
    }
    return 0;
}

/* transformers' tojson: json.dumps without HTML escapes; ASCII only on request. */
int jfilter_tojson(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    const struct jvalue *ascii = jarg(args, 0, "ensure_ascii"), *indent = jarg(args, 1, "indent"),
                        *between = jarg(args, 2, "separators"), *sort = jarg(args, 3, "sort_keys");
    struct jdump how = {
        .ascii = ascii && jtrue(ascii), .sort = sort && jtrue(sort), .indent = -1, .item = ", ", .key = ": "
    };
    int rc = 0;
    if (indent && indent->kind != JV_NONE) {
        if (indent->kind != JV_INT || indent->i < 0 || indent->i > 64)
            return jfail(r, "tojson: indent is a number from 0 to 64");
        how.indent = (int)indent->i;
        how.item = ",";
    }
    if (between && between->kind != JV_NONE)
        rc = separators(r, between, &how);
    return rc ? rc : jjson(r, v, &how, out);
}

int jfilter_replace(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    struct jvalue text;
    int rc = jtext(r, v, &text);
    if (!rc && args->count > 2)
        return junsupported(r, "replace with a count is not in this version");
    return rc ? rc : jreplace(r, &text, jarg(args, 0, "old"), jarg(args, 1, "new"), out);
}

int jfilter_indent(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    const struct jvalue *width = jarg(args, 0, "width"), *first = jarg(args, 1, "first"),
                        *blank = jarg(args, 2, "blank");
    struct jvalue text;
    int64_t w = width ? width->i : 4;
    char spaces[64];
    int rc = v->kind == JV_STRING ? jtext(r, v, &text) : jfail(r, "indent of %s", jkind_name(v));
    if (rc || (width && width->kind != JV_INT) || w < 0 || w > 64)
        return rc ? rc : jfail(r, "indent wants a width from 0 to 64");
    memset(spaces, ' ', sizeof spaces);
    size_t lines = 1, n = 0;
    for (size_t i = 0; i < text.n; i++)
        lines += text.s[i] == '\n';
    char *s = jarena_alloc(&r->arena, text.n + lines * (size_t)w + 1);
    if (!s)
        return jfail(r, "indent makes too much");
    for (size_t i = 0, line = 0; i <= text.n; line++) {
        const char *hit = memchr(text.s + i, '\n', text.n - i);
        size_t end = hit ? (size_t)(hit - text.s) : text.n;
        if ((line || (first && jtrue(first))) && (end > i || !line || (blank && jtrue(blank))))
            n = (size_t)((char *)mempcpy(s + n, spaces, (size_t)w) - s);
        n = (size_t)((char *)mempcpy(s + n, text.s + i, end - i + (hit != NULL)) - s);
        i = end + 1;
    }
    *out = jstring(s, n);
    return 0;
}
