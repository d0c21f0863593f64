/* SPDX-License-Identifier: Apache-2.0 */
/* Evaluates expressions. */
#include <string.h>

#include "text/jinja/impl.h"
#include "text/utf8.h"

static int lookup(struct jrun *r, const struct jnode *n, struct jvalue *out)
{
    for (const struct jframe *f = r->frame; f; f = f->parent) {
        for (const struct jvariable *v = f->variables; v; v = v->next) {
            if (v->n == n->n && memcmp(v->s, n->s, n->n) == 0) {
                *out = v->value;
                return 0;
            }
        }
    }
    *out = jundefined(n->s, n->n);
    if (jfunction_exists(n->s, n->n)) /* templates test whether such a name is defined */
        out->kind = JV_FUNCTION;
    return 0;
}

int jundefined_error(struct jrun *r, const struct jvalue *v)
{
    return jfail(r, "'%.*s' is undefined", (int)(v->n > 100 ? 100 : v->n), v->s);
}

/* Makes a negative index count from the end. Returns false if it is out of range. */
static bool in_range(int64_t *i, size_t n)
{
    *i += *i < 0 ? (int64_t)n : 0;
    return *i >= 0 && (uint64_t)*i < n;
}

/* True if s names a method of Python's dict, list or str. A template that names a method without calling it gets a
 * defined, true value. In transformers' sandbox, methods that modify a dictionary or a list are undefined. */
static bool is_method(const struct jvalue *v, const char *s, size_t n, struct jvalue *out)
{
    static const char *const of_dict[] = { "copy", "fromkeys", "get", "items", "keys", "values", NULL },
                             *const undefined_of_dict[] = { "clear", "pop", "popitem", "setdefault", "update", NULL },
                             *const of_list[] = { "copy", "count", "index", NULL },
                             *const of_string[] = { "capitalize",   "casefold",     "center",       "count",
                                                    "encode",       "endswith",     "expandtabs",   "find",
                                                    "format",       "format_map",   "index",        "isalnum",
                                                    "isalpha",      "isascii",      "isdecimal",    "isdigit",
                                                    "isidentifier", "islower",      "isnumeric",    "isprintable",
                                                    "isspace",      "istitle",      "isupper",      "join",
                                                    "ljust",        "lower",        "lstrip",       "maketrans",
                                                    "partition",    "removeprefix", "removesuffix", "replace",
                                                    "rfind",        "rindex",       "rjust",        "rpartition",
                                                    "rsplit",       "rstrip",       "split",        "splitlines",
                                                    "startswith",   "strip",        "swapcase",     "title",
                                                    "translate",    "upper",        "zfill",        NULL };
    const char *const *name = v->kind == JV_DICT                ? of_dict
                              : v->kind == JV_LIST && !v->tuple ? of_list
                              : v->kind == JV_LIST              ? of_list + 1
                                                                : of_string;
    while (*name && !jname_is(s, n, *name))
        name++;
    *out = jundefined(s, n);
    if (*name)
        out->kind = JV_FUNCTION;
    for (size_t i = 0; v->kind == JV_DICT && !*name && undefined_of_dict[i]; i++) {
        if (jname_is(s, n, undefined_of_dict[i]))
            return true;
    }
    return *name != NULL;
}

int jitem(struct jrun *r, const struct jvalue *v, const struct jvalue *key, struct jvalue *out)
{
    *out = jundefined(key->kind == JV_STRING ? key->s : "item", key->kind == JV_STRING ? key->n : 4);
    if (v->kind == JV_UNDEFINED)
        return jundefined_error(r, v);
    if ((v->kind == JV_LIST || v->kind == JV_STRING || v->kind == JV_RANGE) &&
        (key->kind == JV_INT || key->kind == JV_BOOL)) {
        struct jvalue items;
        int64_t i = key->i;
        int rc = jitems(r, v, &items);
        if (!rc && in_range(&i, items.list->count))
            *out = items.list->items[i];
        return rc;
    }
    const struct jvalue *found = v->kind == JV_DICT ? jdict_find(v->dict, key) : NULL;
    if (found) {
        *out = *found;
        return 0;
    }
    if (v->kind == JV_DICT && key->kind == JV_STRING) {
        is_method(v, key->s, key->n, out);
        return 0;
    }
    return key->kind == JV_STRING ? jattr(r, v, key->s, key->n, out) : 0;
}

static int loop_attr(struct jrun *r, const struct jloop *loop, const char *s, size_t n, struct jvalue *out)
{
    size_t count = loop->items->count, i = loop->index;
    const struct {
        const char *name;
        struct jvalue value;
    } attrs[] = {
        { "index", jint((int64_t)i + 1) },
        { "index0", jint((int64_t)i) },
        { "first", jbool(i == 0) },
        { "last", jbool(i + 1 == count) },
        { "length", jint((int64_t)count) },
        { "revindex", jint((int64_t)(count - i)) },
        { "revindex0", jint((int64_t)(count - i - 1)) },
        { "previtem", i ? loop->items->items[i - 1] : jundefined("previtem", 8) },
        { "nextitem", i + 1 < count ? loop->items->items[i + 1] : jundefined("nextitem", 8) },
    };
    for (size_t a = 0; a < sizeof attrs / sizeof attrs[0]; a++) {
        if (jname_is(s, n, attrs[a].name)) {
            *out = attrs[a].value;
            return 0;
        }
    }
    return junsupported(r, "loop.%.*s is not in this version", (int)(n > 60 ? 60 : n), s);
}

int jattr(struct jrun *r, const struct jvalue *v, const char *s, size_t n, struct jvalue *out)
{
    *out = jundefined(s, n);
    if (v->kind == JV_UNDEFINED)
        return jundefined_error(r, v);
    if (v->kind == JV_LOOP)
        return loop_attr(r, v->loop, s, n, out);
    if ((v->kind == JV_DICT || v->kind == JV_LIST || v->kind == JV_STRING) && is_method(v, s, n, out))
        return 0;
    if (v->kind == JV_RANGE && (jname_is(s, n, "start") || jname_is(s, n, "stop") || jname_is(s, n, "step") ||
                                jname_is(s, n, "count") || jname_is(s, n, "index")))
        return junsupported(r, "'%.*s' of a range is not in this version", (int)n, s);
    if (v->kind == JV_DICT || v->kind == JV_NAMESPACE) {
        const struct jvalue *found = jdict_get(v->dict, s, n);
        if (found)
            *out = *found;
    }
    return 0;
}

/* Evaluates one bound of a slice and clamps it as Python does. */
static int bound(struct jrun *r, const struct jnode *n, int64_t count, bool backwards, int64_t absent, int64_t *out)
{
    struct jvalue v;
    *out = absent;
    if (!n)
        return 0;
    int rc = jeval(r, n, &v);
    if (rc || v.kind == JV_NONE)
        return rc;
    if (v.kind != JV_INT)
        return jfail(r, "a slice's bounds are whole numbers, not %s", jkind_name(&v));
    int64_t least = backwards ? -1 : 0, most = backwards ? count - 1 : count;
    *out = v.i < 0 ? v.i + count : v.i;
    *out = *out < least ? least : *out > most ? most : *out;
    return 0;
}

static int slice(struct jrun *r, const struct jnode *n, struct jvalue *out)
{
    struct jvalue v, step, items, text = { 0 };
    int64_t by = 1, from, to;
    int rc = jeval(r, n->where, &v);
    if (!rc && n->c && !(rc = jeval(r, n->c, &step)) && step.kind != JV_NONE) {
        if (step.kind != JV_INT || step.i == 0 || step.i < -JINJA_MAX_STEPS || step.i > JINJA_MAX_STEPS)
            return jfail(r, "a slice's step is no whole number but 0");
        by = step.i;
    }
    if (rc)
        return rc;
    if (v.kind == JV_UNDEFINED)
        return jundefined_error(r, &v);
    if (v.kind != JV_LIST && v.kind != JV_STRING && v.kind != JV_RANGE)
        return jfail(r, "%s has no slices", jkind_name(&v));
    rc = jitems(r, &v, &items);
    int64_t count = rc ? 0 : (int64_t)items.list->count;
    if (!rc)
        rc = bound(r, n->a, count, by < 0, by < 0 ? count - 1 : 0, &from);
    if (!rc)
        rc = bound(r, n->b, count, by < 0, by < 0 ? -1 : count, &to);
    if (!rc)
        rc = jlist_new(r, 0, out);
    char *joined = rc || v.kind != JV_STRING ? NULL : jarena_alloc(&r->arena, v.n + 1);
    if (!rc && v.kind == JV_STRING && !joined)
        return jno_memory(r);
    for (int64_t i = from; !rc && (by > 0 ? i < to : i > to); i += by) {
        const struct jvalue *item = &items.list->items[i];
        if (joined)
            memcpy(joined + text.n, item->s, item->n);
        if (joined)
            text.n += item->n;
        else
            rc = jlist_add(r, out->list, item);
    }
    if (!rc && joined)
        *out = jstring(joined, text.n);
    else if (!rc)
        *out = (struct jvalue){ .kind = v.kind, .tuple = v.tuple, .list = out->list };
    return rc;
}

static int binary(struct jrun *r, const struct jnode *n, struct jvalue *out)
{
    struct jvalue a, b;
    int rc = jeval(r, n->a, &a);
    if (!rc)
        rc = jeval(r, n->b, &b);
    r->line = n->line;
    return rc ? rc : jbinary(r, n->op, &a, &b, out);
}

static int compare(struct jrun *r, const struct jnode *n, struct jvalue *out)
{
    struct jvalue a, b;
    int rc = jeval(r, n->a, &a);
    bool holds = true;
    for (const struct jnode *part = n->list; part && holds && !rc; part = part->next) {
        rc = jeval(r, part->a, &b);
        r->line = n->line;
        if (!rc)
            rc = jcompare(r, part->op, &a, &b, &holds);
        a = b;
    }
    *out = jbool(holds);
    return rc;
}

static int list(struct jrun *r, const struct jnode *n, struct jvalue *out)
{
    struct jvalue v;
    int rc = jlist_new(r, 4, out);
    for (const struct jnode *item = n->list; item && !rc; item = item->next) {
        rc = jeval(r, item->a, &v);
        if (!rc)
            rc = jlist_add(r, out->list, &v);
    }
    out->tuple = !rc && n->op == JO_CONCAT;
    return rc;
}

static int dict(struct jrun *r, const struct jnode *n, struct jvalue *out)
{
    struct jvalue key, v;
    int rc = jdict_new(r, out);
    for (const struct jnode *pair = n->list; pair && !rc; pair = pair->next) {
        rc = jeval(r, pair->a, &key);
        if (!rc)
            rc = jeval(r, pair->b, &v);
        if (!rc)
            rc = jdict_put(r, out->dict, &key, &v);
    }
    return rc;
}

static int call(struct jrun *r, const struct jnode *n, struct jvalue *out)
{
    struct jargs args;
    struct jvalue self;
    const struct jnode *f = n->a;
    int rc = 0;
    if (f->kind == JN_NAME && !(rc = lookup(r, f, &self)) && self.kind == JV_MACRO)
        return jcall_macro(r, self.macro, n->list, out);
    if (!rc)
        rc = jargs_eval(r, n->list, &args);
    if (rc)
        return rc;
    r->line = n->line;
    if (f->kind == JN_NAME && self.kind == JV_UNDEFINED)
        return jundefined_error(r, &self);
    if (f->kind == JN_NAME)
        return self.kind == JV_FUNCTION ? jfunction(r, self.s, self.n, &args, out)
                                        : jfail(r, "'%.*s' is %s and cannot be called", (int)(f->n > 60 ? 60 : f->n),
                                                f->s, jkind_name(&self));
    if (f->kind != JN_ATTR)
        return jfail(r, "this cannot be called");
    rc = jeval(r, f->a, &self);
    r->line = n->line;
    if (!rc && self.kind == JV_UNDEFINED)
        return jundefined_error(r, &self);
    return rc ? rc : jmethod(r, &self, f->s, f->n, &args, out);
}

static int applied(struct jrun *r, const struct jnode *n, struct jvalue *out)
{
    struct jargs args;
    struct jvalue v;
    bool holds = false;
    int rc = jeval(r, n->a, &v);
    if (!rc)
        rc = jargs_eval(r, n->list, &args);
    r->line = n->line;
    if (!rc && n->kind == JN_FILTER)
        return jfilter(r, n->function, &v, &args, out);
    if (!rc)
        rc = jtest(r, n->function, &v, &args, &holds);
    *out = jbool(holds);
    return rc;
}

static int negative(struct jrun *r, struct jvalue *v)
{
    if (v->kind == JV_FLOAT)
        v->f = -v->f;
    else if ((v->kind == JV_INT || v->kind == JV_BOOL) && v->i != INT64_MIN)
        *v = jint(-v->i);
    else
        return jfail(r, "%s has no negative", jkind_name(v));
    return 0;
}

static int eval(struct jrun *r, const struct jnode *n, struct jvalue *out)
{
    struct jvalue v, key;
    int rc;
    switch (n->kind) {
    case JN_CONST: *out = *n->value; return 0;
    case JN_NAME: return lookup(r, n, out);
    case JN_LIST: return list(r, n, out);
    case JN_DICT: return dict(r, n, out);
    case JN_ATTR:
        rc = jeval(r, n->a, &v);
        r->line = n->line;
        return rc ? rc : jattr(r, &v, n->s, n->n, out);
    case JN_ITEM:
        rc = jeval(r, n->a, &v);
        if (!rc)
            rc = jeval(r, n->b, &key);
        r->line = n->line;
        return rc ? rc : jitem(r, &v, &key, out);
    case JN_SLICE: return slice(r, n, out);
    case JN_CALL: return call(r, n, out);
    case JN_FILTER:
    case JN_TEST: return applied(r, n, out);
    case JN_NOT:
        rc = jeval(r, n->a, &v);
        *out = jbool(!rc && !jtrue(&v));
        return rc;
    case JN_NEG: rc = jeval(r, n->a, out); return rc ? rc : negative(r, out);
    case JN_AND:
    case JN_OR: rc = jeval(r, n->a, out); return rc || jtrue(out) == (n->kind == JN_OR) ? rc : jeval(r, n->b, out);
    case JN_BINARY: return binary(r, n, out);
    case JN_COMPARE: return compare(r, n, out);
    case JN_COND:
        rc = jeval(r, n->a, &v);
        if (rc || jtrue(&v))
            return rc ? rc : jeval(r, n->b, out);
        *out = jundefined("the other of an inline if", 25);
        return n->c ? jeval(r, n->c, out) : 0;
    default: return jfail(r, "this is no expression");
    }
}

int jeval(struct jrun *r, const struct jnode *n, struct jvalue *out)
{
    if (++r->steps > JINJA_MAX_STEPS)
        return jinja_fail(r->j, n->line, FSDPCK_ERR_LIMIT, r->err, "it takes more than %d steps", JINJA_MAX_STEPS);
    if (r->depth >= 4 * JINJA_MAX_DEPTH)
        return jinja_fail(r->j, n->line, FSDPCK_ERR_LIMIT, r->err,
                          "it is nested, or calls itself, more than %d levels deep", 4 * JINJA_MAX_DEPTH);
    r->depth++;
    r->line = n->line;
    int rc = eval(r, n, out);
    r->depth--;
    return rc;
}
