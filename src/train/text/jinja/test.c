/* SPDX-License-Identifier: Apache-2.0 */
/* The tests of templates: the words after "is". */
#include "text/jinja/impl.h"

enum test_kind {
    T_BOOLEAN,
    T_DEFINED,
    T_DIVISIBLEBY,
    T_EQ,
    T_EVEN,
    T_FALSE,
    T_FLOAT,
    T_GE,
    T_GT,
    T_IN,
    T_INTEGER,
    T_ITERABLE,
    T_LE,
    T_LT,
    T_MAPPING,
    T_NE,
    T_NONE,
    T_NUMBER,
    T_ODD,
    T_SEQUENCE,
    T_STRING,
    T_TRUE,
    T_UNDEFINED,
};

static const struct {
    const char *name;
    enum test_kind kind;
} tests[] = {
    { "!=", T_NE },
    { "<", T_LT },
    { "<=", T_LE },
    { "==", T_EQ },
    { ">", T_GT },
    { ">=", T_GE },
    { "boolean", T_BOOLEAN },
    { "defined", T_DEFINED },
    { "divisibleby", T_DIVISIBLEBY },
    { "eq", T_EQ },
    { "equalto", T_EQ },
    { "even", T_EVEN },
    { "false", T_FALSE },
    { "float", T_FLOAT },
    { "ge", T_GE },
    { "greaterthan", T_GT },
    { "gt", T_GT },
    { "in", T_IN },
    { "integer", T_INTEGER },
    { "iterable", T_ITERABLE },
    { "le", T_LE },
    { "lessthan", T_LT },
    { "lt", T_LT },
    { "mapping", T_MAPPING },
    { "ne", T_NE },
    { "none", T_NONE },
    { "number", T_NUMBER },
    { "odd", T_ODD },
    { "sequence", T_SEQUENCE },
    { "string", T_STRING },
    { "true", T_TRUE },
    { "undefined", T_UNDEFINED },
};

int jtest_find(const char *s, size_t n)
{
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        if (jname_is(s, n, tests[i].name))
            return (int)i;
    }
    return -1;
}

static int remainder_is(struct jrun *r, const struct jvalue *v, int64_t by, int64_t wanted, bool *out)
{
    if ((v->kind != JV_INT && v->kind != JV_BOOL) || by == 0 || by == -1)
        return jfail(r, "%s is not odd, even or divisible", jkind_name(v));
    int64_t left = v->i % by;
    *out = (left < 0 ? -left : left) == wanted;
    return 0;
}

static int compare(struct jrun *r, enum test_kind kind, const struct jvalue *v, const struct jargs *args, bool *out)
{
    enum jop op = kind == T_EQ   ? JO_EQ
                  : kind == T_NE ? JO_NE
                  : kind == T_LT ? JO_LT
                  : kind == T_LE ? JO_LE
                  : kind == T_GT ? JO_GT
                  : kind == T_GE ? JO_GE
                                 : JO_IN;
    if (kind == T_DIVISIBLEBY)
        return args->at[0].kind == JV_INT ? remainder_is(r, v, args->at[0].i, 0, out)
                                          : jfail(r, "divisibleby wants a whole number");
    return jcompare(r, op, v, &args->at[0], out);
}

int jtest(struct jrun *r, int test, const struct jvalue *v, const struct jargs *args, bool *out)
{
    enum jvalue_kind k = v->kind;
    bool sequence = k == JV_STRING || k == JV_LIST || k == JV_DICT || k == JV_RANGE ||
                    k == JV_UNDEFINED; /* Jinja's undefined has length 0 and no items */
    enum test_kind kind = tests[test].kind;
    bool compares = kind == T_EQ || kind == T_NE || kind == T_LT || kind == T_LE || kind == T_GT || kind == T_GE ||
                    kind == T_IN || kind == T_DIVISIBLEBY;
    if (compares != (args->count == 1) || args->count > 1)
        return jfail(r, "the test '%s' wants %s argument", tests[test].name, compares ? "one" : "no");
    switch (kind) {
    case T_BOOLEAN: *out = k == JV_BOOL; return 0;
    case T_DEFINED: *out = k != JV_UNDEFINED; return 0;
    case T_UNDEFINED: *out = k == JV_UNDEFINED; return 0;
    case T_EVEN: return remainder_is(r, v, 2, 0, out);
    case T_ODD: return remainder_is(r, v, 2, 1, out);
    case T_FALSE: *out = k == JV_BOOL && !v->i; return 0;
    case T_TRUE: *out = k == JV_BOOL && v->i; return 0;
    case T_FLOAT: *out = k == JV_FLOAT; return 0;
    case T_INTEGER: *out = k == JV_INT; return 0;
    case T_NUMBER: *out = k == JV_INT || k == JV_FLOAT || k == JV_BOOL; return 0;
    case T_MAPPING: *out = k == JV_DICT; return 0;
    case T_NONE: *out = k == JV_NONE; return 0;
    case T_STRING: *out = k == JV_STRING; return 0;
    case T_ITERABLE: *out = sequence || k == JV_VIEW || k == JV_ITERATOR; return 0;
    case T_SEQUENCE: *out = sequence; return 0;
    default: return compare(r, kind, v, args, out);
    }
}
