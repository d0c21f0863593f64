/* SPDX-License-Identifier: Apache-2.0 */
/* The functions that templates call: methods of strings and dictionaries, and the few globals of Jinja and
 * transformers. */
#include <stdio.h>
#include <string.h>

#include "text/jinja/impl.h"
#include "text/utf8.h"

int jargs_eval(struct jrun *r, const struct jnode *list, struct jargs *out)
{
    int rc = 0;
    out->count = 0;
    for (const struct jnode *n = list; n && !rc; n = n->next) {
        if (out->count == JARGS_MAX)
            return jfail(r, "more than %d arguments", JARGS_MAX);
        rc = jeval(r, n->a, &out->at[out->count]);
        out->names[out->count] = n->s;
        out->name_nbytes[out->count++] = n->n;
    }
    return rc;
}

const struct jvalue *jarg(const struct jargs *args, size_t place, const char *name)
{
    for (size_t i = 0; i < args->count; i++) {
        if (args->names[i] ? name && jname_is(args->names[i], args->name_nbytes[i], name) : i == place)
            return &args->at[i];
    }
    return NULL;
}

static bool python_space(uint32_t c)
{
    return c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x1f) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

/* True if str.strip() removes the character at s. */
static bool stripped(const char *s, size_t n, const struct jvalue *chars)
{
    size_t step;
    if (!chars)
        return python_space(utf8_get(s, &step));
    for (size_t i = 0; i < chars->n; i += step) {
        step = utf8_nbytes((unsigned char)chars->s[i]);
        if (step == n && memcmp(chars->s + i, s, n) == 0)
            return true;
    }
    return false;
}

struct jvalue jstrip(const struct jvalue *v, const struct jvalue *chars, bool left, bool right)
{
    const char *s = v->s;
    size_t n = v->n;
    for (size_t step; left && n > 0 && (step = utf8_nbytes((unsigned char)*s), stripped(s, step, chars)); n -= step)
        s += step;
    for (size_t at; right && n > 0 && (at = utf8_back(s, n), stripped(s + at, n - at, chars));)
        n = at;
    return jstring(s, n);
}

int jreplace(struct jrun *r, const struct jvalue *v, const struct jvalue *from, const struct jvalue *to,
             struct jvalue *out)
{
    if (!from || !to || from->kind != JV_STRING || to->kind != JV_STRING || from->n == 0)
        return jfail(r, "replace wants two strings, the first not empty");
    size_t hits = 0, n = 0;
    for (const char *at = v->s, *hit; (hit = memmem(at, (size_t)(v->s + v->n - at), from->s, from->n));
         at = hit + from->n)
        hits++;
    size_t nbytes = v->n + hits * to->n - hits * from->n;
    char *s = nbytes > JINJA_MAX_OUTPUT ? NULL : jarena_alloc(&r->arena, nbytes + 1);
    if (!s)
        return jinja_fail(r->j, r->line, FSDPCK_ERR_LIMIT, r->err, "it makes values of more than %d MiB",
                          JINJA_MAX_OUTPUT >> 20);
    const char *at = v->s;
    for (const char *hit; (hit = memmem(at, (size_t)(v->s + v->n - at), from->s, from->n)); at = hit + from->n) {
        memcpy(s + n, at, (size_t)(hit - at));
        n += (size_t)(hit - at);
        memcpy(s + n, to->s, to->n);
        n += to->n;
    }
    memcpy(s + n, at, (size_t)(v->s + v->n - at));
    *out = jstring(s, nbytes);
    return 0;
}

int jrecase(struct jrun *r, const struct jvalue *v, enum jcase how, struct jvalue *out)
{
    int rc = jstring_copy(r, v->s, v->n, out);
    char *s = rc ? NULL : (char *)out->s;
    bool first = true;
    for (size_t i = 0; !rc && i < v->n; i++) {
        if ((unsigned char)s[i] >= 0x80)
            return junsupported(r, "changing the case of letters beyond ASCII is not in this version");
        bool up = how == JCASE_UPPER || (first && how != JCASE_LOWER);
        if (s[i] >= 'a' && s[i] <= 'z' && up)
            s[i] = (char)(s[i] - 32);
        else if (s[i] >= 'A' && s[i] <= 'Z' && !up)
            s[i] = (char)(s[i] + 32);
        first = how == JCASE_TITLE && s[i] && strchr(" \t\n\r\v\f-({[<", s[i]);
    }
    return rc;
}

static int split_words(struct jrun *r, const struct jvalue *v, int64_t most, struct jvalue *out)
{
    int rc = jlist_new(r, 4, out);
    struct jvalue rest = jstrip(v, NULL, true, false);
    while (!rc && rest.n > 0) {
        size_t end = 0, step = 0;
        bool last = most >= 0 && (int64_t)out->list->count >= most;
        while (end < rest.n && (last || !python_space(utf8_get(rest.s + end, &step))))
            end += last ? 1 : step;
        struct jvalue word = jstring(rest.s, end);
        if (last)
            word = jstrip(&word, NULL, false, true);
        rc = jlist_add(r, out->list, &word);
        rest = jstring(rest.s + end, rest.n - end);
        rest = jstrip(&rest, NULL, true, false);
    }
    return rc;
}

static int split(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    const struct jvalue *by = jarg(args, 0, "sep"), *max = jarg(args, 1, "maxsplit");
    int64_t most = max && max->kind == JV_INT ? max->i : -1;
    if (!by || by->kind == JV_NONE)
        return split_words(r, v, most, out);
    if (by->kind != JV_STRING || by->n == 0)
        return jfail(r, "split wants a string that is not empty");
    int rc = jlist_new(r, 4, out);
    const char *at = v->s, *end = v->s + v->n;
    while (!rc) {
        const char *hit =
            most >= 0 && (int64_t)out->list->count >= most ? NULL : memmem(at, (size_t)(end - at), by->s, by->n);
        struct jvalue part = jstring(at, (size_t)((hit ? hit : end) - at));
        rc = jlist_add(r, out->list, &part);
        if (!hit)
            break;
        at = hit + by->n;
    }
    return rc;
}

static bool has_end(const struct jvalue *v, const struct jvalue *part, bool front)
{
    return part->kind == JV_STRING && part->n <= v->n &&
           memcmp(front ? v->s : v->s + v->n - part->n, part->s, part->n) == 0;
}

static int starts_or_ends(struct jrun *r, const struct jvalue *v, const struct jargs *args, bool front,
                          struct jvalue *out)
{
    const struct jvalue *part = jarg(args, 0, NULL);
    bool found = false;
    if (!part || (part->kind != JV_STRING && part->kind != JV_LIST))
        return jfail(r, "startswith and endswith want a string");
    if (args->count > 1)
        return junsupported(r, "startswith and endswith from a place on are not in this version");
    for (size_t i = 0; part->kind == JV_LIST && i < part->list->count; i++)
        found |= has_end(v, &part->list->items[i], front);
    *out = jbool(found || has_end(v, part, front));
    return 0;
}

static int find(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    const struct jvalue *part = jarg(args, 0, NULL);
    if (!part || part->kind != JV_STRING || args->count > 1)
        return jfail(r, "find wants one string");
    const char *hit = part->n ? memmem(v->s, v->n, part->s, part->n) : v->s;
    struct jvalue before = jstring(v->s, hit ? (size_t)(hit - v->s) : 0);
    *out = jint(hit ? (int64_t)jnchars(&before) : -1);
    return 0;
}

static int string_method(struct jrun *r, const struct jvalue *v, const char *s, size_t n, const struct jargs *args,
                         struct jvalue *out)
{
    static const char *const names[] = { "strip", "lstrip", "rstrip",     "split",   "startswith", "endswith",
                                         "upper", "lower",  "capitalize", "replace", "find" };
    size_t m = 0;
    while (m < sizeof names / sizeof names[0] && !jname_is(s, n, names[m]))
        m++;
    const struct jvalue *chars = jarg(args, 0, "chars");
    if (m <= 2 && chars && chars->kind != JV_STRING && chars->kind != JV_NONE)
        return jfail(r, "%s wants a string", names[m]);
    switch (m) {
    case 0:
    case 1:
    case 2: *out = jstrip(v, chars && chars->kind == JV_STRING ? chars : NULL, m != 2, m != 1); return 0;
    case 3: return split(r, v, args, out);
    case 4:
    case 5: return starts_or_ends(r, v, args, m == 4, out);
    case 6:
    case 7:
    case 8: return jrecase(r, v, m == 6 ? JCASE_UPPER : m == 7 ? JCASE_LOWER : JCASE_CAPITALIZE, out);
    case 9:
        return args->count > 2 ? junsupported(r, "replace with a count is not in this version")
                               : jreplace(r, v, jarg(args, 0, NULL), jarg(args, 1, NULL), out);
    case 10: return find(r, v, args, out);
    default: return junsupported(r, "the method '%.*s' of a string is not in this version", (int)(n > 60 ? 60 : n), s);
    }
}

/* items, keys (part 0) or values (part 1) */
static int dict_list(struct jrun *r, const struct jdict *d, bool keys, bool values, struct jvalue *out)
{
    int rc = jlist_new(r, d->count, out);
    for (size_t i = 0; !rc && i < d->count; i++) {
        struct jvalue v = keys ? d->pairs[i].key : d->pairs[i].value, pair;
        if (keys && values) {
            rc = jlist_new(r, 2, &pair);
            if (!rc)
                rc = jlist_add(r, pair.list, &v);
            if (!rc)
                rc = jlist_add(r, pair.list, &d->pairs[i].value);
            pair.tuple = true;
            v = pair;
        }
        if (!rc)
            rc = jlist_add(r, out->list, &v);
    }
    if (!rc) {
        out->kind = JV_VIEW;
        out->list->values = !keys;
    }
    return rc;
}

static int dict_method(struct jrun *r, const struct jvalue *v, const char *s, size_t n, const struct jargs *args,
                       struct jvalue *out)
{
    bool items = jname_is(s, n, "items"), keys = jname_is(s, n, "keys"), values = jname_is(s, n, "values");
    if (items || keys || values)
        return dict_list(r, v->dict, items || keys, items || values, out);
    const struct jvalue *key = jarg(args, 0, NULL), *otherwise = jarg(args, 1, NULL), *found;
    if (!jname_is(s, n, "get"))
        return junsupported(r, "the method '%.*s' of a dictionary is not in this version", (int)(n > 60 ? 60 : n), s);
    if (!key)
        return jfail(r, "get wants a key");
    found = jdict_find(v->dict, key);
    *out = found ? *found : otherwise ? *otherwise : jnone();
    return 0;
}

int jmethod(struct jrun *r, const struct jvalue *self, const char *s, size_t n, const struct jargs *args,
            struct jvalue *out)
{
    if (self->kind == JV_STRING)
        return string_method(r, self, s, n, args, out);
    if (self->kind == JV_DICT)
        return dict_method(r, self, s, n, args, out);
    if (self->kind == JV_LOOP && jname_is(s, n, "cycle") && args->count) {
        *out = args->at[self->loop->index % args->count];
        return 0;
    }
    return junsupported(r, "the method '%.*s' of %s is not in this version", (int)(n > 60 ? 60 : n), s,
                        jkind_name(self));
}

static int range(struct jrun *r, const struct jargs *args, struct jvalue *out)
{
    int64_t at[3] = { 0, 0, 1 };
    for (size_t i = 0; i < args->count; i++) {
        if (i > 2 || args->at[i].kind != JV_INT || args->at[i].i > JINJA_MAX_STEPS || args->at[i].i < -JINJA_MAX_STEPS)
            return jfail(r, "range wants one to three whole numbers");
        at[args->count == 1 ? 1 : i] = args->at[i].i;
    }
    if (args->count == 0 || at[2] == 0)
        return jfail(r, "range wants one to three whole numbers, the last not 0");
    int rc = jlist_new(r, 0, out);
    for (int64_t i = at[0]; !rc && (at[2] > 0 ? i < at[1] : i > at[1]); i += at[2]) {
        struct jvalue v = jint(i);
        rc = jlist_add(r, out->list, &v);
        r->steps++;
    }
    if (!rc)
        out->kind = JV_RANGE;
    return rc;
}

/* namespace(a=1), dict(a=1), and a copy of another dictionary. */
static int dict_of(struct jrun *r, const struct jargs *args, bool is_namespace, struct jvalue *out)
{
    int rc = jdict_new(r, out);
    for (size_t i = 0; !rc && i < args->count; i++) {
        struct jvalue key = jstring(args->names[i], args->name_nbytes[i]);
        if (args->names[i]) {
            rc = jdict_put(r, out->dict, &key, &args->at[i]);
            continue;
        }
        if (args->at[i].kind != JV_DICT)
            return jfail(r, "namespace and dict want name=value, or a dictionary");
        for (size_t k = 0; !rc && k < args->at[i].dict->count; k++)
            rc = jdict_put(r, out->dict, &args->at[i].dict->pairs[k].key, &args->at[i].dict->pairs[k].value);
    }
    if (!rc && is_namespace)
        out->kind = JV_NAMESPACE;
    return rc;
}

static int strftime_now(struct jrun *r, const struct jargs *args, struct jvalue *out)
{
    char format[100], text[400];
    struct tm tm;
    const struct jvalue *how = jarg(args, 0, "format");
    if (!how || how->kind != JV_STRING || how->n == 0 || how->n >= sizeof format)
        return jfail(r, "strftime_now wants a format of 1 to %zu bytes", sizeof format - 1);
    memcpy(format, how->s, how->n);
    format[how->n] = '\0';
    if (!localtime_r(&r->now, &tm))
        return jfail(r, "the date cannot be shown");
    size_t n = strftime(text, sizeof text, format, &tm);
    return n ? jstring_copy(r, text, n, out)
             : jfail(r, "strftime_now gives nothing, or more than %zu bytes", sizeof text - 1);
}

static int raise_exception(struct jrun *r, const struct jargs *args, struct jvalue *out)
{
    const struct jvalue *why = jarg(args, 0, "message");
    bool text = why && why->kind == JV_STRING;
    (void)out;
    return jfail(r, "%.*s", text ? (int)(why->n > 500 ? 500 : why->n) : 15, text ? why->s : "raise_exception");
}

static int namespace_of(struct jrun *r, const struct jargs *args, struct jvalue *out)
{
    return dict_of(r, args, true, out);
}

static int plain_dict_of(struct jrun *r, const struct jargs *args, struct jvalue *out)
{
    return dict_of(r, args, false, out);
}

static const struct {
    const char *name;
    int (*run)(struct jrun *r, const struct jargs *args, struct jvalue *out);
} functions[] = {
    { "raise_exception", raise_exception }, { "range", range },
    { "namespace", namespace_of },          { "dict", plain_dict_of },
    { "strftime_now", strftime_now },
};
enum { NFUNCTIONS = sizeof functions / sizeof functions[0] };

static size_t find_function(const char *s, size_t n)
{
    size_t i = 0;
    while (i < NFUNCTIONS && !jname_is(s, n, functions[i].name))
        i++;
    return i;
}

bool jfunction_exists(const char *s, size_t n)
{
    return find_function(s, n) < NFUNCTIONS;
}

int jfunction(struct jrun *r, const char *s, size_t n, const struct jargs *args, struct jvalue *out)
{
    size_t i = find_function(s, n);
    if (i == NFUNCTIONS) /* a variable holds a method without its object */
        return junsupported(r, "calling the method '%.*s' without the value before it is not in this version",
                            (int)(n > 60 ? 60 : n), s);
    return functions[i].run(r, args, out);
}
