/* SPDX-License-Identifier: Apache-2.0 */
/* Filters of templates. The parser resolves their names: a name that is not in this table is rejected when the template
 * is parsed. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja/impl.h"

typedef int (*filter_fn)(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out);

static int as_text(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    (void)args;
    return jtext(r, v, out);
}

static int filter_trim(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    const struct jvalue *chars = jarg(args, 0, "chars");
    struct jvalue text;
    int rc = jtext(r, v, &text);
    if (!rc)
        *out = jstrip(&text, chars && chars->kind == JV_STRING ? chars : NULL, true, true);
    return rc;
}

static int filter_length(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    struct jvalue items;
    (void)args;
    if (v->kind == JV_STRING) {
        *out = jint((int64_t)jnchars(v));
        return 0;
    }
    int rc = v->kind == JV_ITERATOR ? jfail(r, "%s has no length", jkind_name(v)) : jitems(r, v, &items);
    *out = jint(rc ? 0 : (int64_t)items.list->count);
    return rc;
}

static int recase(struct jrun *r, const struct jvalue *v, enum jcase how, struct jvalue *out)
{
    struct jvalue text;
    int rc = jtext(r, v, &text);
    return rc ? rc : jrecase(r, &text, how, out);
}

static int filter_upper(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    (void)args;
    return recase(r, v, JCASE_UPPER, out);
}

static int filter_lower(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    (void)args;
    return recase(r, v, JCASE_LOWER, out);
}

static int filter_title(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    (void)args;
    return recase(r, v, JCASE_TITLE, out);
}

static int filter_capitalize(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
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
static int filter_tojson(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
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

static int filter_join(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    const struct jvalue *by = jarg(args, 0, "d"), *attribute = jarg(args, 1, "attribute");
    struct jvalue items, item, text, between = jstring("", 0);
    char *s = NULL;
    size_t n = 0, capacity = 0;
    int rc = jitems(r, v, &items);
    if (!rc && by)
        rc = jtext(r, by, &between);
    for (size_t i = 0; !rc && i < items.list->count; i++) {
        item = items.list->items[i];
        if (attribute)
            rc = jattribute(r, &items.list->items[i], attribute, &item);
        if (!rc)
            rc = jtext(r, &item, &text);
        if (!rc && n + between.n + text.n > JINJA_MAX_OUTPUT)
            rc = jfail(r, "join makes more than %d MiB", JINJA_MAX_OUTPUT >> 20);
        if (!rc && !grow((void **)&s, &capacity, n + between.n + text.n + 1, 1))
            rc = fsdpck_error_nomem(r->err, n);
        if (!rc && i)
            n = (size_t)((char *)mempcpy(s + n, between.s, between.n) - s);
        if (!rc)
            n = (size_t)((char *)mempcpy(s + n, text.s, text.n) - s);
        r->steps++;
    }
    if (!rc)
        rc = jstring_copy(r, s, n, out);
    free(s);
    return rc;
}

static int filter_default(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    const struct jvalue *otherwise = jarg(args, 0, "default_value"), *falsy = jarg(args, 1, "boolean");
    (void)r;
    bool use = v->kind == JV_UNDEFINED || (falsy && jtrue(falsy) && !jtrue(v));
    *out = !use ? *v : otherwise ? *otherwise : jstring("", 0);
    return 0;
}

static int one_of(struct jrun *r, const struct jvalue *v, bool first, struct jvalue *out)
{
    struct jvalue items;
    int rc = !first && v->kind == JV_ITERATOR ? jfail(r, "%s has no last item", jkind_name(v)) : jitems(r, v, &items);
    *out = jundefined(first ? "first" : "last", first ? 5 : 4);
    if (!rc && items.list->count)
        *out = items.list->items[first ? 0 : items.list->count - 1];
    return rc;
}

static int filter_first(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    (void)args;
    return one_of(r, v, true, out);
}

static int filter_last(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    (void)args;
    return one_of(r, v, false, out);
}

static int filter_list(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    (void)args;
    int rc = jitems(r, v, out);
    out->tuple = rc ? out->tuple : false;
    return rc;
}

/* *out holds the default. It is unchanged if Python's int() would reject the text. */
static int int_of_text(struct jrun *r, const struct jvalue *v, struct jvalue *out)
{
    const struct jvalue trimmed = jstrip(v, NULL, true, true);
    char text[32], *end;
    size_t ascii = 0;
    while (ascii < trimmed.n && (unsigned char)trimmed.s[ascii] < 0x80 && trimmed.s[ascii] != '_')
        ascii++;
    if (ascii < trimmed.n)
        return junsupported(r, "int of a text with '_' or beyond ASCII is not in this version");
    size_t n = 0;
    while (n < trimmed.n && memchr("+-0123456789.eE", trimmed.s[n], 15))
        n++;
    if (n == 0 || n < trimmed.n)
        return 0;
    if (n > 18)
        return junsupported(r, "int of a text of more than 18 characters is not in this version");
    memcpy(text, trimmed.s, n);
    text[n] = '\0';
    long long i = strtoll(text, &end, 10);
    if (*end == '\0') {
        *out = jint(i);
        return 0;
    }
    double f = strtod(text, &end);
    if (*end != '\0' || isinf(f))
        return 0;
    if (fabs(f) >= 9e18)
        return jfail(r, "a number is too large");
    *out = jint((int64_t)f);
    return 0;
}

static int filter_int(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    const struct jvalue *otherwise = jarg(args, 0, "default");
    *out = otherwise ? *otherwise : jint(0);
    if (args->count > 1)
        return junsupported(r, "int with a base is not in this version");
    if (v->kind == JV_INT || v->kind == JV_BOOL)
        *out = jint(v->i);
    if (v->kind == JV_UNDEFINED)
        return jundefined_error(r, v);
    if (v->kind == JV_FLOAT && isfinite(v->f) && fabs(v->f) >= 9e18)
        return jfail(r, "a number is too large");
    if (v->kind == JV_FLOAT && fabs(v->f) < 9e18)
        *out = jint((int64_t)v->f);
    if (v->kind != JV_STRING)
        return 0;
    return int_of_text(r, v, out);
}

static int filter_float(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    (void)args;
    if (v->kind != JV_INT && v->kind != JV_FLOAT && v->kind != JV_BOOL)
        return junsupported(r, "float of %s is not in this version", jkind_name(v));
    *out = (struct jvalue){ .kind = JV_FLOAT, .f = v->kind == JV_FLOAT ? v->f : (double)v->i };
    return 0;
}

static int filter_items(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    (void)args;
    int rc = v->kind == JV_UNDEFINED ? jlist_new(r, 0, out)
             : v->kind == JV_DICT    ? jmethod(r, v, "items", 5, &(struct jargs){ 0 }, out)
                                     : jfail(r, "items of %s", jkind_name(v));
    if (!rc)
        out->kind = JV_ITERATOR;
    return rc;
}

static int by_pair_key(const void *a, const void *b)
{
    const struct jvalue *x = &((const struct jvalue *)a)->list->items[0],
                        *y = &((const struct jvalue *)b)->list->items[0];
    int c = memcmp(x->s, y->s, x->n < y->n ? x->n : y->n);
    return c ? c : x->n < y->n ? -1 : x->n > y->n;
}

static int filter_dictsort(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    int rc = v->kind == JV_UNDEFINED ? jundefined_error(r, v) : filter_items(r, v, args, out);
    if (args->count)
        return junsupported(r, "dictsort with arguments is not in this version");
    for (size_t i = 0; !rc && i < out->list->count; i++) {
        const struct jvalue *key = &out->list->items[i].list->items[0];
        if (key->kind != JV_STRING)
            return junsupported(r, "dictsort: a key that is %s is not in this version", jkind_name(key));
        for (size_t k = 0; k < key->n; k++) {
            if (((unsigned char)key->s[k] >= 0x80) || (key->s[k] >= 'A' && key->s[k] <= 'Z'))
                return junsupported(r, "dictsort of keys that are not all small ASCII letters is not in this version");
        }
    }
    if (!rc)
        out->kind = JV_LIST;
    if (!rc)
        qsort(out->list->items, out->list->count, sizeof *out->list->items, by_pair_key);
    return rc;
}

static int filter_replace(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    struct jvalue text;
    int rc = jtext(r, v, &text);
    if (!rc && args->count > 2)
        return junsupported(r, "replace with a count is not in this version");
    return rc ? rc : jreplace(r, &text, jarg(args, 0, "old"), jarg(args, 1, "new"), out);
}

static int filter_reverse(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    struct jvalue items;
    (void)args;
    if (v->kind == JV_STRING)
        return junsupported(r, "reverse of a string is not in this version");
    int rc = jitems(r, v, &items);
    if (!rc)
        rc = jlist_new(r, items.list->count, out);
    for (size_t i = rc ? 0 : items.list->count; i > 0 && !rc; i--)
        rc = jlist_add(r, out->list, &items.list->items[i - 1]);
    if (!rc && v->kind != JV_ITERATOR) /* Python's reversed() rejects an iterator; Jinja makes a list first */
        out->kind = JV_ITERATOR;
    return rc;
}

static int filter_unique(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    struct jvalue items;
    int rc = jitems(r, v, &items);
    if (args->count)
        return junsupported(r, "unique with arguments is not in this version");
    if (!rc)
        rc = jlist_new(r, 4, out);
    for (size_t i = 0; !rc && i < items.list->count; i++) {
        bool seen = false;
        if (items.list->items[i].kind == JV_STRING)
            return junsupported(
                r, "unique of strings is not in this version"); /* Jinja compares them case-insensitively */
        for (size_t k = 0; k < out->list->count && !seen; k++)
            seen = jequal(&out->list->items[k], &items.list->items[i], 0);
        r->steps += out->list->count;
        if (!seen)
            rc = jlist_add(r, out->list, &items.list->items[i]);
    }
    if (!rc)
        out->kind = JV_ITERATOR;
    return rc;
}

static int filter_indent(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
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

static int filter_abs(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    (void)args;
    if ((v->kind != JV_INT || v->i == INT64_MIN) && v->kind != JV_FLOAT)
        return jfail(r, "abs of %s", jkind_name(v));
    *out = v->kind == JV_INT ? jint(v->i < 0 ? -v->i : v->i) : (struct jvalue){ .kind = JV_FLOAT, .f = fabs(v->f) };
    return 0;
}

static const struct {
    const char *name;
    filter_fn run;
} filters[] = {
    { "abs", filter_abs },
    { "capitalize", filter_capitalize },
    { "count", filter_length },
    { "d", filter_default },
    { "default", filter_default },
    { "dictsort", filter_dictsort },
    { "first", filter_first },
    { "float", filter_float },
    { "indent", filter_indent },
    { "int", filter_int },
    { "items", filter_items },
    { "join", filter_join },
    { "last", filter_last },
    { "length", filter_length },
    { "list", filter_list },
    { "lower", filter_lower },
    { "map", jfilter_map },
    { "reject", jfilter_reject },
    { "rejectattr", jfilter_rejectattr },
    { "replace", filter_replace },
    { "reverse", filter_reverse },
    { "safe", as_text },
    { "select", jfilter_select },
    { "selectattr", jfilter_selectattr },
    { "string", as_text },
    { "title", filter_title },
    { "tojson", filter_tojson },
    { "trim", filter_trim },
    { "unique", filter_unique },
    { "upper", filter_upper },
};

int jfilter_find(const char *s, size_t n)
{
    for (size_t i = 0; i < sizeof filters / sizeof filters[0]; i++) {
        if (jname_is(s, n, filters[i].name))
            return (int)i;
    }
    return -1;
}

int jfilter(struct jrun *r, int filter, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    if (r->depth >= 4 * JINJA_MAX_DEPTH) /* limits chains such as map of map */
        return jfail(r, "filters of filters of filters");
    r->depth++;
    int rc = filters[filter].run(r, v, args, out);
    r->depth--;
    return rc;
}
