/* SPDX-License-Identifier: Apache-2.0 */
/* Parses the operands of expressions with their postfixes (attributes, calls, filters, tests). */
#include <string.h>

#include "text/jinja/impl.h"

const struct jtoken *jparse_peek(const struct jparser *p)
{
    return &p->j->tokens[p->at];
}

bool jparse_is(const struct jparser *p, enum jtoken_kind kind, const char *text)
{
    const struct jtoken *t = jparse_peek(p);
    return t->kind == kind && (!text || jname_is(t->s, t->n, text));
}

bool jparse_take(struct jparser *p, enum jtoken_kind kind, const char *text)
{
    if (!jparse_is(p, kind, text))
        return false;
    p->at += p->j->tokens[p->at].kind != JT_END;
    return true;
}

void *jparse_fail(struct jparser *p, const char *what)
{
    const struct jtoken *t = jparse_peek(p);
    static const char *const names[] = { "text",     "{{",       "}}",       "{%",          "%}",     "a name",
                                         "a string", "a number", "a number", "an operator", "the end" };
    if (t->kind == JT_NAME || t->kind == JT_OP)
        jinja_fail(p->j, t->line, FSDPCK_ERR_FORMAT, p->err, "'%.*s' found, %s wanted", (int)(t->n > 60 ? 60 : t->n),
                   t->s, what);
    else
        jinja_fail(p->j, t->line, FSDPCK_ERR_FORMAT, p->err, "%s found, %s wanted", names[t->kind], what);
    return NULL;
}

bool jparse_want(struct jparser *p, enum jtoken_kind kind, const char *text)
{
    static const char *const names[] = { "text",     "{{",       "}}",       "{%",          "%}",     "a name",
                                         "a string", "a number", "a number", "an operator", "the end" };
    if (jparse_take(p, kind, text))
        return true;
    jparse_fail(p, text ? text : names[kind]);
    return false;
}

struct jnode *jparse_node(struct jparser *p, enum jnode_kind kind)
{
    struct jnode *n = jarena_alloc(&p->j->arena, sizeof *n);
    if (!n) {
        fsdpck_error_nomem(p->err, sizeof *n);
        return NULL;
    }
    *n = (struct jnode){ .kind = kind, .line = jparse_peek(p)->line, .function = -1 };
    return n;
}

static struct jnode *name_node(struct jparser *p, enum jnode_kind kind, const char *what)
{
    const struct jtoken *t = jparse_peek(p);
    struct jnode *n = jparse_node(p, kind);
    if (!n)
        return NULL;
    n->s = t->s;
    n->n = t->n;
    return jparse_take(p, JT_NAME, NULL) ? n : jparse_fail(p, what);
}

static struct jnode *constant(struct jparser *p, struct jvalue value)
{
    struct jnode *n = jparse_node(p, JN_CONST);
    struct jvalue *copy = jarena_alloc(&p->j->arena, sizeof *copy);
    if (!n || !copy)
        return NULL;
    *copy = value;
    n->value = copy;
    return n;
}

struct jnode *jparse_binary(struct jparser *p, enum jnode_kind kind, enum jop op, struct jnode *a, struct jnode *b)
{
    struct jnode *n = a && b ? jparse_node(p, kind) : NULL;
    if (n) {
        n->op = op;
        n->a = a;
        n->b = b;
        n->line = a->line;
    }
    return n;
}

/* Parses items up to `close`; the items of a dict are pairs a: b. */
static struct jnode *items(struct jparser *p, enum jnode_kind kind, const char *close)
{
    struct jnode *n = jparse_node(p, kind), **last = n ? &n->list : NULL;
    while (n && !jparse_take(p, JT_OP, close)) {
        if (last != &n->list && !jparse_want(p, JT_OP, ","))
            return NULL;
        if (jparse_take(p, JT_OP, close))
            break;
        struct jnode *item = jparse_expression(p);
        if (item && kind == JN_DICT)
            item = jparse_want(p, JT_OP, ":") ? jparse_binary(p, JN_DICT, 0, item, jparse_expression(p)) : NULL;
        else if (item) /* wrapped: a node's `next` may be in use by another list */
            item = jparse_binary(p, JN_LIST, 0, item, item);
        if (!item)
            return NULL;
        *last = item;
        last = &item->next;
    }
    return n;
}

static bool is_argument(const struct jnode *list, const struct jtoken *name)
{
    while (list && (list->n != name->n || memcmp(list->s, name->s, name->n) != 0))
        list = list->next;
    return list != NULL;
}

/* Parses call arguments behind "(": expressions, then name=expression. */
static struct jnode *arguments(struct jparser *p, struct jnode *call)
{
    struct jnode **last = &call->list;
    bool has_name = false; /* the previous argument is a keyword argument */
    while (!jparse_take(p, JT_OP, ")")) {
        if (last != &call->list && !jparse_want(p, JT_OP, ","))
            return NULL;
        if (jparse_take(p, JT_OP, ")"))
            break;
        struct jnode *argument = jparse_node(p, JN_LIST);
        if (!argument)
            return NULL;
        const struct jtoken *t = jparse_peek(p);
        if (t->kind == JT_NAME && t[1].kind == JT_OP && jname_is(t[1].s, t[1].n, "=")) {
            if (is_argument(call->list, t))
                return jparse_fail(p, "each argument once is");
            argument->s = t->s;
            argument->n = t->n;
            p->at += 2;
        } else if (has_name) {
            return jparse_fail(p, "name=value behind name=value is");
        }
        has_name = argument->s != NULL;
        argument->a = jparse_expression(p);
        if (!argument->a)
            return NULL;
        *last = argument;
        last = &argument->next;
    }
    return call;
}

static struct jnode *strings(struct jparser *p)
{
    const struct jtoken *t = jparse_peek(p);
    size_t n = 0, count = 0;
    while (t[count].kind == JT_STRING)
        n += t[count++].n;
    char *s = jarena_alloc(&p->j->arena, n + 1);
    if (!s)
        return NULL;
    n = 0;
    for (size_t i = 0; i < count; i++) {
        memcpy(s + n, t[i].s, t[i].n);
        n += t[i].n;
    }
    p->at += count;
    return constant(p, jstring(s, n));
}

/* Jinja's varargs and kwargs: the arguments of a macro beyond its parameters. */
static bool is_rest_of_arguments(const struct jparser *p, const struct jtoken *t)
{
    if (!p->macro || (!jname_is(t->s, t->n, "varargs") && !jname_is(t->s, t->n, "kwargs")))
        return false;
    const struct jnode *parameter = p->macro->list;
    while (parameter && (parameter->n != t->n || memcmp(parameter->s, t->s, t->n) != 0))
        parameter = parameter->next;
    return !parameter;
}

static struct jnode *primary(struct jparser *p)
{
    const struct jtoken *t = jparse_peek(p);
    if (t->kind == JT_STRING)
        return strings(p);
    if (t->kind == JT_INT || t->kind == JT_FLOAT) {
        p->at++;
        return constant(p, t->kind == JT_INT ? jint(t->i) : (struct jvalue){ .kind = JV_FLOAT, .f = t->f });
    }
    if (t->kind == JT_NAME) {
        static const char *const words[] = { "true", "True", "false", "False", "none", "None" };
        for (size_t i = 0; i < 6; i++) {
            if (jname_is(t->s, t->n, words[i])) {
                p->at++;
                return constant(p, i < 4 ? jbool(i < 2) : jnone());
            }
        }
        if (is_rest_of_arguments(p, t)) {
            jinja_fail(p->j, t->line, FSDPCK_ERR_UNSUPPORTED, p->err,
                       "'%.*s' in a macro is not in this version: give the macro a parameter for each argument",
                       (int)t->n, t->s);
            return NULL;
        }
        return name_node(p, JN_NAME, "a name");
    }
    if (jparse_take(p, JT_OP, "["))
        return items(p, JN_LIST, "]");
    if (jparse_take(p, JT_OP, "{"))
        return items(p, JN_DICT, "}");
    if (!jparse_take(p, JT_OP, "("))
        return jparse_fail(p, "an expression");
    struct jnode *n = jparse_tuple(p);
    return n && jparse_want(p, JT_OP, ")") ? n : NULL;
}

/* Parses behind "[": a key or a slice. */
static struct jnode *subscript(struct jparser *p, struct jnode *of)
{
    struct jnode *parts[3] = { NULL }, *n;
    size_t part = 0;
    while (!jparse_is(p, JT_OP, "]")) {
        if (jparse_take(p, JT_OP, ":")) {
            if (++part > 2)
                return jparse_fail(p, "]");
        } else if (parts[part] || !(parts[part] = jparse_expression(p))) {
            return jparse_fail(p, "]");
        }
    }
    p->at++;
    bool slice = part > 0;
    if (!slice && !parts[0])
        return jparse_fail(p, "a key");
    if (!slice)
        return jparse_binary(p, JN_ITEM, 0, of, parts[0]);
    n = jparse_node(p, JN_SLICE);
    if (!n)
        return NULL;
    n->a = parts[0];
    n->b = parts[1];
    n->c = parts[2];
    n->where = of;
    return n;
}

static struct jnode *postfix(struct jparser *p, struct jnode *n)
{
    while (n) {
        if (jparse_take(p, JT_OP, ".")) {
            struct jnode *attr = name_node(p, JN_ATTR, "an attribute");
            if (attr)
                attr->a = n;
            n = attr;
        } else if (jparse_take(p, JT_OP, "[")) {
            n = subscript(p, n);
        } else if (jparse_take(p, JT_OP, "(")) {
            struct jnode *call = jparse_node(p, JN_CALL);
            if (call)
                call->a = n;
            n = call ? arguments(p, call) : NULL;
        } else {
            break;
        }
    }
    return n;
}

static struct jnode *unknown(struct jparser *p, const struct jnode *n, const char *what)
{
    jinja_fail(p->j, n->line, FSDPCK_ERR_UNSUPPORTED, p->err, "the %s '%.*s' is not in this version", what,
               (int)(n->n > 60 ? 60 : n->n), n->s);
    return NULL;
}

static struct jnode *filter(struct jparser *p, struct jnode *of)
{
    struct jnode *n = name_node(p, JN_FILTER, "the name of a filter");
    if (!n)
        return NULL;
    n->a = of;
    n->function = jfilter_find(n->s, n->n);
    if (n->function < 0)
        return unknown(p, n, "filter");
    return jparse_take(p, JT_OP, "(") ? arguments(p, n) : n;
}

/* True if the next token can begin the argument of a test without parentheses. */
static bool begins_argument(const struct jparser *p)
{
    static const char *const no[] = { "else", "or", "and", "is" };
    const struct jtoken *t = jparse_peek(p);
    for (size_t i = 0; t->kind == JT_NAME && i < sizeof no / sizeof no[0]; i++) {
        if (jname_is(t->s, t->n, no[i]))
            return false;
    }
    return t->kind == JT_NAME || t->kind == JT_STRING || t->kind == JT_INT || t->kind == JT_FLOAT ||
           jparse_is(p, JT_OP, "[") || jparse_is(p, JT_OP, "{");
}

static struct jnode *test(struct jparser *p, struct jnode *of)
{
    bool negated = jparse_take(p, JT_NAME, "not");
    struct jnode *n = name_node(p, JN_TEST, "the name of a test");
    if (!n)
        return NULL;
    n->a = of;
    n->function = jtest_find(n->s, n->n);
    if (n->function < 0)
        return unknown(p, n, "test");
    if (jparse_take(p, JT_OP, "(")) {
        n = arguments(p, n);
    } else if (begins_argument(p)) {
        struct jnode *argument = jparse_node(p, JN_LIST);
        if (!argument || !(argument->a = postfix(p, primary(p))))
            return NULL;
        n->list = argument;
    }
    if (!n || !negated)
        return n;
    struct jnode *not = jparse_node(p, JN_NOT);
    if (not )
        not ->a = n;
    return not ;
}

struct jnode *jparse_filters(struct jparser *p, struct jnode *n)
{
    while (n) {
        if (jparse_take(p, JT_OP, "|"))
            n = filter(p, n);
        else if (jparse_take(p, JT_NAME, "is"))
            n = test(p, n);
        else if (jparse_is(p, JT_OP, "("))
            n = postfix(p, n);
        else
            break;
    }
    return n;
}

struct jnode *jparse_unary(struct jparser *p, bool filters)
{
    struct jnode *n;
    if (p->depth >= JINJA_MAX_DEPTH)
        return jparse_fail(p, "less nesting");
    p->depth++;
    if (jparse_take(p, JT_OP, "-")) {
        n = jparse_node(p, JN_NEG);
        if (n && !(n->a = jparse_unary(p, false)))
            n = NULL;
    } else if (jparse_take(p, JT_OP, "+")) {
        n = jparse_unary(p, false);
    } else {
        n = postfix(p, primary(p));
    }
    p->depth--;
    return filters ? jparse_filters(p, n) : n;
}
