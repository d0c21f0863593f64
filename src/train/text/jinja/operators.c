/* SPDX-License-Identifier: Apache-2.0 */
/* Parses operators in expressions, with Jinja's precedences. */
#include <string.h>

#include "text/jinja/impl.h"

struct level {
    const char *text[4];
    enum jop op[4];
};

static struct jnode *multiply(struct jparser *p)
{
    static const struct level l = { { "*", "/", "//", "%" }, { JO_MUL, JO_DIV, JO_FLOORDIV, JO_MOD } };
    struct jnode *n = jparse_unary(p, true);
    for (size_t i = 0; n && i < 4;) {
        if (jparse_take(p, JT_OP, l.text[i])) {
            n = jparse_binary(p, JN_BINARY, l.op[i], n, jparse_unary(p, true));
            i = 0;
        } else {
            i++;
        }
    }
    return n;
}

static struct jnode *concat(struct jparser *p)
{
    struct jnode *n = multiply(p);
    while (n && jparse_take(p, JT_OP, "~"))
        n = jparse_binary(p, JN_BINARY, JO_CONCAT, n, multiply(p));
    return n;
}

static struct jnode *add(struct jparser *p)
{
    struct jnode *n = concat(p);
    while (n) {
        bool plus = jparse_take(p, JT_OP, "+");
        if (!plus && !jparse_take(p, JT_OP, "-"))
            break;
        n = jparse_binary(p, JN_BINARY, plus ? JO_ADD : JO_SUB, n, concat(p));
    }
    return n;
}

static bool compare_op(struct jparser *p, enum jop *op)
{
    static const char *const text[] = { "==", "!=", "<", "<=", ">", ">=" };
    static const enum jop ops[] = { JO_EQ, JO_NE, JO_LT, JO_LE, JO_GT, JO_GE };
    for (size_t i = 0; i < 6; i++) {
        if (jparse_take(p, JT_OP, text[i])) {
            *op = ops[i];
            return true;
        }
    }
    const struct jtoken *t = jparse_peek(p);
    bool negated = jparse_is(p, JT_NAME, "not") && t[1].kind == JT_NAME && jname_is(t[1].s, t[1].n, "in");
    p->at += negated;
    *op = negated ? JO_NOT_IN : JO_IN;
    return jparse_take(p, JT_NAME, "in");
}

/* a < b < c means a < b and b < c: the node keeps a list of operators. */
static struct jnode *compare(struct jparser *p)
{
    struct jnode *n = add(p), *chain = NULL, **last = NULL;
    enum jop op;
    while (n && compare_op(p, &op)) {
        if (!chain) {
            chain = jparse_node(p, JN_COMPARE);
            if (!chain)
                return NULL;
            chain->a = n;
            last = &chain->list;
        }
        struct jnode *part = jparse_node(p, JN_COMPARE);
        if (!part || !(part->a = add(p)))
            return NULL;
        part->op = op;
        *last = part;
        last = &part->next;
    }
    return chain ? chain : n;
}

static struct jnode *negation(struct jparser *p)
{
    if (!jparse_take(p, JT_NAME, "not"))
        return compare(p);
    if (p->depth >= JINJA_MAX_DEPTH)
        return jparse_fail(p, "less nesting");
    struct jnode *n = jparse_node(p, JN_NOT);
    p->depth++;
    if (n && !(n->a = negation(p)))
        n = NULL;
    p->depth--;
    return n;
}

static struct jnode *conjunction(struct jparser *p)
{
    struct jnode *n = negation(p);
    while (n && jparse_take(p, JT_NAME, "and"))
        n = jparse_binary(p, JN_AND, 0, n, negation(p));
    return n;
}

struct jnode *jparse_expression_no_cond(struct jparser *p)
{
    struct jnode *n = conjunction(p);
    while (n && jparse_take(p, JT_NAME, "or"))
        n = jparse_binary(p, JN_OR, 0, n, conjunction(p));
    return n;
}

struct jnode *jparse_expression(struct jparser *p)
{
    if (p->depth >= JINJA_MAX_DEPTH)
        return jparse_fail(p, "less nesting");
    p->depth++;
    struct jnode *n = jparse_expression_no_cond(p);
    while (n && jparse_take(p, JT_NAME, "if")) {
        struct jnode *cond = jparse_node(p, JN_COND);
        if (!cond)
            return NULL;
        cond->b = n;
        cond->a = jparse_expression_no_cond(p);
        if (cond->a && jparse_take(p, JT_NAME, "else"))
            cond->c = jparse_expression(p);
        n = cond->a && !p->err->code ? cond : NULL;
    }
    p->depth--;
    return n;
}

/* Parses one expression, or several with commas between them: a list that displays as a tuple. */
struct jnode *jparse_tuple(struct jparser *p)
{
    bool empty = jparse_is(p, JT_OP, ")");
    struct jnode *n = empty ? NULL : jparse_expression(p);
    if (!empty && (!n || !jparse_is(p, JT_OP, ",")))
        return n;
    struct jnode *tuple = jparse_node(p, JN_LIST), **last = tuple ? &tuple->list : NULL;
    if (!tuple)
        return NULL;
    tuple->op = JO_CONCAT; /* marks a tuple */
    while (n) {
        struct jnode *item = jparse_binary(p, JN_LIST, 0, n, n);
        if (!item)
            return NULL;
        *last = item;
        last = &item->next;
        if (!jparse_take(p, JT_OP, ",") || jparse_is(p, JT_OP, ")") || jparse_is(p, JT_BLOCK_END, NULL) ||
            jparse_is(p, JT_VAR_END, NULL))
            return tuple;
        n = jparse_expression(p);
    }
    return empty ? tuple : NULL;
}
