/* SPDX-License-Identifier: Apache-2.0 */
/* Filters of lists and their like: length, join, sort, and others that need no further filter. */
#include "text/jinja/filters.h"

#include <stdlib.h>
#include <string.h>

int jfilter_length(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
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

int jfilter_join(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
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

static int one_of(struct jrun *r, const struct jvalue *v, bool first, struct jvalue *out)
{
    struct jvalue items;
    int rc = !first && v->kind == JV_ITERATOR ? jfail(r, "%s has no last item", jkind_name(v)) : jitems(r, v, &items);
    *out = jundefined(first ? "first" : "last", first ? 5 : 4);
    if (!rc && items.list->count)
        *out = items.list->items[first ? 0 : items.list->count - 1];
    return rc;
}

int jfilter_first(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    (void)args;
    return one_of(r, v, true, out);
}

int jfilter_last(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    (void)args;
    return one_of(r, v, false, out);
}

int jfilter_list(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    (void)args;
    int rc = jitems(r, v, out);
    out->tuple = rc ? out->tuple : false;
    return rc;
}

int jfilter_items(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
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

int jfilter_dictsort(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    int rc = v->kind == JV_UNDEFINED ? jundefined_error(r, v) : jfilter_items(r, v, args, out);
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

int jfilter_reverse(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
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

int jfilter_unique(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
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
