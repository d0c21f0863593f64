/* SPDX-License-Identifier: Apache-2.0 */
/* Filters over items: map, select and reject. */
#include <string.h>

#include "text/jinja/filters.h"

int jattribute(struct jrun *r, const struct jvalue *item, const struct jvalue *name, struct jvalue *out)
{
    if (name->kind == JV_STRING && memchr(name->s, '.', name->n))
        return junsupported(r, "an attribute with a point in it is not in this version");
    return jitem(r, item, name, out);
}

/* The arguments after the first `skip`. */
static struct jargs rest_of(const struct jargs *args, size_t skip)
{
    struct jargs rest = { .count = args->count > skip ? args->count - skip : 0 };
    for (size_t i = 0; i < rest.count; i++) {
        rest.at[i] = args->at[i + skip];
        rest.names[i] = args->names[i + skip];
        rest.name_nbytes[i] = args->name_nbytes[i + skip];
    }
    return rest;
}

int jfilter_map(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    const struct jvalue *attribute = jarg(args, JARGS_MAX, "attribute"), *otherwise = jarg(args, JARGS_MAX, "default"),
                        *name = jarg(args, 0, NULL);
    struct jvalue items, item;
    int filter = !attribute && name && name->kind == JV_STRING ? jfilter_find(name->s, name->n) : -1;
    if (!attribute && filter < 0)
        return jfail(r, "map wants an attribute, or a filter that is in this version");
    const struct jargs rest = rest_of(args, 1);
    int rc = jitems(r, v, &items);
    if (!rc)
        rc = jlist_new(r, items.list->count, out);
    for (size_t i = 0; !rc && i < items.list->count; i++) {
        rc = attribute ? jattribute(r, &items.list->items[i], attribute, &item)
                       : jfilter(r, filter, &items.list->items[i], &rest, &item);
        if (!rc && item.kind == JV_UNDEFINED && otherwise)
            item = *otherwise;
        if (!rc)
            rc = jlist_add(r, out->list, &item);
        r->steps++;
    }
    if (!rc)
        out->kind = JV_ITERATOR;
    return rc;
}

/* Keeps the items that pass a test; without a test, the true ones. by_attribute: tests an attribute of each item.
 * wanted false: keeps the others. */
static int pick(struct jrun *r, const struct jvalue *v, const struct jargs *args, bool by_attribute, bool wanted,
                struct jvalue *out)
{
    const struct jvalue *attribute = by_attribute ? jarg(args, 0, NULL) : NULL, *name = jarg(args, by_attribute, NULL);
    struct jvalue items, value;
    int test = name && name->kind == JV_STRING ? jtest_find(name->s, name->n) : -1;
    if ((by_attribute && !attribute) || (name && test < 0))
        return jfail(r, "select and reject want tests that are in this version");
    const struct jargs rest = rest_of(args, 1u + by_attribute);
    int rc = jitems(r, v, &items);
    if (!rc)
        rc = jlist_new(r, 4, out);
    for (size_t i = 0; !rc && i < items.list->count; i++) {
        bool holds = false;
        value = items.list->items[i];
        if (attribute)
            rc = jattribute(r, &items.list->items[i], attribute, &value);
        if (!rc && name)
            rc = jtest(r, test, &value, &rest, &holds);
        else if (!rc)
            holds = jtrue(&value);
        if (!rc && holds == wanted)
            rc = jlist_add(r, out->list, &items.list->items[i]);
        r->steps++;
    }
    if (!rc)
        out->kind = JV_ITERATOR;
    return rc;
}

int jfilter_select(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    return pick(r, v, args, false, true, out);
}

int jfilter_reject(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    return pick(r, v, args, false, false, out);
}

int jfilter_selectattr(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    return pick(r, v, args, true, true, out);
}

int jfilter_rejectattr(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    return pick(r, v, args, true, false, out);
}
