/* SPDX-License-Identifier: Apache-2.0 */
/* The values of templates: construction, comparison, iteration. The arena holds them until the rendering ends. */
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "text/jinja/impl.h"
#include "text/utf8.h"

int jfail(struct jrun *r, const char *fmt, ...)
{
    char what[600];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return jinja_fail(r->j, r->line, FSDPCK_ERR_FORMAT, r->err, "%s", what);
}

int junsupported(struct jrun *r, const char *fmt, ...)
{
    char what[600];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return jinja_fail(r->j, r->line, FSDPCK_ERR_UNSUPPORTED, r->err, "%s", what);
}

int jno_memory(struct jrun *r)
{
    if (r->arena.total > JINJA_MAX_MEMORY / 4)
        return jinja_fail(r->j, r->line, FSDPCK_ERR_LIMIT, r->err, "it makes values of more than %d MiB",
                          JINJA_MAX_MEMORY >> 20);
    return fsdpck_error_nomem(r->err, 16384);
}

struct jvalue jstring(const char *s, size_t n)
{
    return (struct jvalue){ .kind = JV_STRING, .s = s, .n = n };
}

struct jvalue jint(int64_t i)
{
    return (struct jvalue){ .kind = JV_INT, .i = i };
}

struct jvalue jbool(bool b)
{
    return (struct jvalue){ .kind = JV_BOOL, .i = b };
}

struct jvalue jnone(void)
{
    return (struct jvalue){ .kind = JV_NONE };
}

struct jvalue jundefined(const char *s, size_t n)
{
    return (struct jvalue){ .kind = JV_UNDEFINED, .s = s, .n = n };
}

int jstring_copy(struct jrun *r, const char *s, size_t n, struct jvalue *out)
{
    char *copy = jarena_alloc(&r->arena, n + 1);
    if (!copy)
        return jno_memory(r);
    if (n)
        memcpy(copy, s, n);
    *out = jstring(copy, n);
    return 0;
}

int jlist_new(struct jrun *r, size_t capacity, struct jvalue *out)
{
    struct jlist *l = jarena_alloc(&r->arena, sizeof *l);
    if (!l || capacity > JINJA_MAX_MEMORY / sizeof *l->items)
        return jno_memory(r);
    *l = (struct jlist){ .items = jarena_alloc(&r->arena, capacity * sizeof *l->items), .capacity = capacity };
    if (!l->items)
        return jno_memory(r);
    *out = (struct jvalue){ .kind = JV_LIST, .list = l };
    return 0;
}

/* The arena keeps the old array; doubling bounds the waste. */
static int make_room(struct jrun *r, void **items, size_t count, size_t *capacity, size_t item_nbytes)
{
    if (count < *capacity)
        return 0;
    size_t larger = 2 * *capacity + 4;
    void *moved = jarena_alloc(&r->arena, larger * item_nbytes);
    if (!moved)
        return jno_memory(r);
    if (count)
        memcpy(moved, *items, count * item_nbytes);
    *items = moved;
    *capacity = larger;
    return 0;
}

int jlist_add(struct jrun *r, struct jlist *l, const struct jvalue *v)
{
    struct jvalue copy = *v;
    int rc = make_room(r, (void **)&l->items, l->count, &l->capacity, sizeof *l->items);
    if (!rc)
        l->items[l->count++] = copy;
    return rc;
}

int jdict_new(struct jrun *r, struct jvalue *out)
{
    struct jdict *d = jarena_alloc(&r->arena, sizeof *d);
    if (!d)
        return jno_memory(r);
    *d = (struct jdict){ 0 };
    *out = (struct jvalue){ .kind = JV_DICT, .dict = d };
    return 0;
}

/* True if Python can hash the value: a list, a dictionary or a view cannot be a key. */
static bool is_key(const struct jvalue *v, unsigned depth)
{
    bool ok = v->kind != JV_DICT && v->kind != JV_VIEW && (v->kind != JV_LIST || v->tuple) && depth <= JINJA_MAX_DEPTH;
    for (size_t i = 0; ok && v->kind == JV_LIST && i < v->list->count; i++)
        ok = is_key(&v->list->items[i], depth + 1);
    return ok;
}

int jdict_put(struct jrun *r, struct jdict *d, const struct jvalue *key, const struct jvalue *v)
{
    struct jvalue *found = (struct jvalue *)jdict_find(d, key);
    if (found) {
        *found = *v;
        return 0;
    }
    if (!is_key(key, 0))
        return jfail(r, "%s is no key", jkind_name(key));
    r->steps += d->count; /* charge the linear search */
    const struct jpair pair = { *key, *v };
    int rc = make_room(r, (void **)&d->pairs, d->count, &d->capacity, sizeof *d->pairs);
    if (!rc)
        d->pairs[d->count++] = pair;
    return rc;
}

const struct jvalue *jdict_get(const struct jdict *d, const char *s, size_t n)
{
    for (size_t i = 0; i < d->count; i++) {
        const struct jvalue *key = &d->pairs[i].key;
        if (key->kind == JV_STRING && key->n == n && memcmp(key->s, s, n) == 0)
            return &d->pairs[i].value;
    }
    return NULL;
}

const struct jvalue *jdict_find(const struct jdict *d, const struct jvalue *key)
{
    if (key->kind == JV_STRING)
        return jdict_get(d, key->s, key->n);
    for (size_t i = 0; i < d->count; i++) {
        if (jequal(&d->pairs[i].key, key, 0))
            return &d->pairs[i].value;
    }
    return NULL;
}

int jvalue_of_json(struct jrun *r, json_t *json, unsigned depth, struct jvalue *out)
{
    const char *key;
    size_t i, key_nbytes;
    json_t *member;
    struct jvalue v, k;
    int rc = 0;
    if (depth > JINJA_MAX_DEPTH)
        return jfail(r, "values of more than %d levels", JINJA_MAX_DEPTH);
    switch (json_typeof(json)) {
    case JSON_STRING: *out = jstring(json_string_value(json), json_string_length(json)); return 0;
    case JSON_INTEGER: *out = jint(json_integer_value(json)); return 0;
    case JSON_REAL: *out = (struct jvalue){ .kind = JV_FLOAT, .f = json_real_value(json) }; return 0;
    case JSON_TRUE:
    case JSON_FALSE: *out = jbool(json_is_true(json)); return 0;
    case JSON_NULL: *out = jnone(); return 0;
    case JSON_ARRAY:
        rc = jlist_new(r, json_array_size(json), out);
        for (i = 0; !rc && i < json_array_size(json); i++) {
            rc = jvalue_of_json(r, json_array_get(json, i), depth + 1, &v);
            if (!rc)
                rc = jlist_add(r, out->list, &v);
        }
        return rc;
    case JSON_OBJECT:
        rc = jdict_new(r, out);
        json_object_keylen_foreach(json, key, key_nbytes, member)
        {
            if (!rc)
                rc = jvalue_of_json(r, member, depth + 1, &v);
            k = jstring(key, key_nbytes);
            if (!rc)
                rc = jdict_put(r, out->dict, &k, &v);
        }
        return rc;
    }
    return 0;
}

bool jtrue(const struct jvalue *v)
{
    switch (v->kind) {
    case JV_UNDEFINED:
    case JV_NONE: return false;
    case JV_BOOL:
    case JV_INT: return v->i != 0;
    case JV_FLOAT: return v->f != 0;
    case JV_STRING: return v->n > 0;
    case JV_LIST:
    case JV_RANGE:
    case JV_VIEW: return v->list->count > 0;
    case JV_DICT: return v->dict->count > 0;
    default: return true;
    }
}

static bool is_number(const struct jvalue *v)
{
    return v->kind == JV_INT || v->kind == JV_FLOAT || v->kind == JV_BOOL;
}

static double number(const struct jvalue *v)
{
    return v->kind == JV_FLOAT ? v->f : (double)v->i;
}

/* Compares two views of keys or items as sets. */
static bool same_views(const struct jlist *a, const struct jlist *b, unsigned depth)
{
    if (a == b || a->values || b->values)
        return a == b;
    size_t found = 0;
    for (size_t i = 0; i < a->count && a->count == b->count; i++) {
        for (size_t k = 0; k < b->count && found <= i; k++)
            found += jequal(&a->items[i], &b->items[k], depth + 1);
    }
    return found == a->count && found == b->count;
}

bool jequal(const struct jvalue *a, const struct jvalue *b, unsigned depth)
{
    if (is_number(a) && is_number(b))
        return a->kind == JV_FLOAT || b->kind == JV_FLOAT ? number(a) == number(b) : a->i == b->i;
    if (a->kind != b->kind || depth > JINJA_MAX_DEPTH)
        return false;
    switch (a->kind) {
    case JV_STRING: return a->n == b->n && memcmp(a->s, b->s, a->n) == 0;
    case JV_LIST:
    case JV_RANGE:
        if (a->list->count != b->list->count || a->tuple != b->tuple)
            return false;
        for (size_t i = 0; i < a->list->count; i++) {
            if (!jequal(&a->list->items[i], &b->list->items[i], depth + 1))
                return false;
        }
        return true;
    case JV_DICT:
        if (a->dict->count != b->dict->count)
            return false;
        for (size_t i = 0; i < a->dict->count; i++) {
            const struct jvalue *other = jdict_find(b->dict, &a->dict->pairs[i].key);
            if (!other || !jequal(&a->dict->pairs[i].value, other, depth + 1))
                return false;
        }
        return true;
    case JV_VIEW: return same_views(a->list, b->list, depth);
    case JV_NAMESPACE: return a->dict == b->dict;
    case JV_UNDEFINED:
    case JV_NONE: return true;
    case JV_FUNCTION: return a->n == b->n && memcmp(a->s, b->s, a->n) == 0;
    default: return a->loop == b->loop;
    }
}

const char *jkind_name(const struct jvalue *v)
{
    static const char *const names[] = {
        "undefined",    "none",        "a boolean", "an integer", "a float",    "a string", "a list",
        "a dictionary", "a namespace", "loop",      "a macro",    "a function", "a range",  "a view of a dictionary",
        "an iterator"
    };
    return names[v->kind];
}

bool jis(const struct jvalue *v, const char *text)
{
    return v->kind == JV_STRING && jname_is(v->s, v->n, text);
}

size_t jnchars(const struct jvalue *v)
{
    size_t count = 0;
    for (size_t i = 0; i < v->n; i++)
        count += ((unsigned char)v->s[i] & 0xc0) != 0x80;
    return count;
}

static int characters(struct jrun *r, const struct jvalue *v, struct jvalue *out)
{
    int rc = jlist_new(r, jnchars(v), out);
    for (size_t i = 0, n; !rc && i < v->n; i += n) {
        n = utf8_nbytes((unsigned char)v->s[i]);
        struct jvalue c = jstring(v->s + i, n);
        rc = jlist_add(r, out->list, &c);
    }
    return rc;
}

static int items_of_other(struct jrun *r, const struct jvalue *v, struct jvalue *out)
{
    if (v->list->spent)
        return junsupported(r, "an iterator (from a filter as map, select or reverse) is gone through a second time: "
                               "write \"| list\" behind the filter");
    v->list->spent = v->kind == JV_ITERATOR;
    out->kind = JV_LIST;
    return 0;
}

int jitems(struct jrun *r, const struct jvalue *v, struct jvalue *out)
{
    int rc = 0;
    *out = *v;
    if (v->kind == JV_LIST)
        return 0;
    if (v->kind == JV_RANGE || v->kind == JV_VIEW || v->kind == JV_ITERATOR)
        return items_of_other(r, v, out);
    if (v->kind == JV_STRING)
        return characters(r, v, out);
    if (v->kind == JV_UNDEFINED)
        return jlist_new(r, 0, out);
    if (v->kind != JV_DICT)
        return jfail(r, "%s cannot be gone through", jkind_name(v));
    rc = jlist_new(r, v->dict->count, out);
    for (size_t i = 0; !rc && i < v->dict->count; i++)
        rc = jlist_add(r, out->list, &v->dict->pairs[i].key);
    return rc;
}

static int order(const struct jvalue *a, const struct jvalue *b)
{
    if (is_number(a) && is_number(b)) {
        if (a->kind != JV_FLOAT && b->kind != JV_FLOAT)
            return a->i < b->i ? -1 : a->i > b->i;
        return number(a) < number(b) ? -1 : number(a) > number(b);
    }
    int c = memcmp(a->s, b->s, a->n < b->n ? a->n : b->n); /* the byte order of UTF-8 is the order of code points */
    return c ? c : a->n < b->n ? -1 : a->n > b->n;
}

static int contains(struct jrun *r, const struct jvalue *item, const struct jvalue *in, bool *out)
{
    *out = false;
    if (in->kind == JV_STRING && item->kind == JV_STRING) {
        *out = item->n == 0 || memmem(in->s, in->n, item->s, item->n) != NULL;
        return 0;
    }
    if (in->kind == JV_DICT) {
        *out = jdict_find(in->dict, item) != NULL;
        return is_key(item, 0) ? 0 : jfail(r, "%s is no key", jkind_name(item));
    }
    if (in->kind == JV_LIST || in->kind == JV_RANGE || in->kind == JV_VIEW || in->kind == JV_ITERATOR) {
        struct jvalue items;
        int rc = jitems(r, in, &items);
        for (size_t i = 0; !rc && i < items.list->count && !*out; i++)
            *out = jequal(&items.list->items[i], item, 0);
        return rc;
    }
    return in->kind == JV_UNDEFINED ? 0 : jfail(r, "'in': %s cannot hold %s", jkind_name(in), jkind_name(item));
}

int jcompare(struct jrun *r, enum jop op, const struct jvalue *a, const struct jvalue *b, bool *out)
{
    if (op == JO_EQ || op == JO_NE) {
        *out = jequal(a, b, 0) == (op == JO_EQ);
        return 0;
    }
    if (op == JO_IN || op == JO_NOT_IN) {
        int rc = contains(r, a, b, out);
        *out = *out == (op == JO_IN);
        return rc;
    }
    if (a->kind == b->kind && (a->kind == JV_LIST || a->kind == JV_VIEW))
        return junsupported(r, "the order of lists or views is not in this version");
    if (!(is_number(a) && is_number(b)) && !(a->kind == JV_STRING && b->kind == JV_STRING))
        return jfail(r, "%s and %s cannot be compared%s%.*s", jkind_name(a), jkind_name(b),
                     a->kind == JV_UNDEFINED ? ": " : "", a->kind == JV_UNDEFINED ? (int)(a->n > 60 ? 60 : a->n) : 0,
                     a->kind == JV_UNDEFINED ? a->s : "");
    int c = order(a, b);
    *out = op == JO_LT ? c < 0 : op == JO_LE ? c <= 0 : op == JO_GT ? c > 0 : c >= 0;
    return 0;
}
