/* SPDX-License-Identifier: Apache-2.0 */
/* Applies binary operators to values, with Python's semantics. */
#include <math.h>
#include <string.h>

#include "text/jinja/impl.h"

static int join(struct jrun *r, const struct jvalue *a, const struct jvalue *b, struct jvalue *out)
{
    char *s = jarena_alloc(&r->arena, a->n + b->n + 1);
    if (!s)
        return jno_memory(r);
    memcpy(s, a->s, a->n);
    memcpy(s + a->n, b->s, b->n);
    *out = jstring(s, a->n + b->n);
    return 0;
}

static int join_lists(struct jrun *r, const struct jvalue *a, const struct jvalue *b, struct jvalue *out)
{
    int rc = jlist_new(r, a->list->count + b->list->count, out);
    for (size_t i = 0; !rc && i < a->list->count; i++)
        rc = jlist_add(r, out->list, &a->list->items[i]);
    for (size_t i = 0; !rc && i < b->list->count; i++)
        rc = jlist_add(r, out->list, &b->list->items[i]);
    out->tuple = !rc && a->tuple;
    r->steps += rc ? 0 : out->list->count;
    return rc;
}

static int integers(struct jrun *r, enum jop op, int64_t a, int64_t b, struct jvalue *out)
{
    int64_t i = 0;
    bool overflow = false;
    if ((op == JO_FLOORDIV || op == JO_MOD) && (b == 0 || (b == -1 && a == INT64_MIN)))
        return jfail(r, "a division by zero");
    switch (op) {
    case JO_ADD: overflow = __builtin_add_overflow(a, b, &i); break;
    case JO_SUB: overflow = __builtin_sub_overflow(a, b, &i); break;
    case JO_MUL: overflow = __builtin_mul_overflow(a, b, &i); break;
    case JO_FLOORDIV: i = a / b - (a % b != 0 && (a < 0) != (b < 0)); break;
    default: i = a % b + (a % b != 0 && (a % b < 0) != (b < 0) ? b : 0); break;
    }
    *out = jint(i);
    return overflow ? jfail(r, "a number is too large") : 0;
}

static int floats(struct jrun *r, enum jop op, double a, double b, struct jvalue *out)
{
    if ((op == JO_DIV || op == JO_FLOORDIV || op == JO_MOD) && b == 0)
        return jfail(r, "a division by zero");
    double left = op == JO_FLOORDIV || op == JO_MOD
                      ? fmod(a, b)
                      : 0; /* Python: the remainder has the sign of the divisor, and a // b is (a - remainder) / b */
    if (left != 0 && (left < 0) != (b < 0))
        left += b;
    double quotient = op == JO_FLOORDIV ? (a - left) / b : 0, whole = floor(quotient);
    double f = op == JO_ADD        ? a + b
               : op == JO_SUB      ? a - b
               : op == JO_MUL      ? a * b
               : op == JO_DIV      ? a / b
               : op == JO_FLOORDIV ? whole + (quotient - whole > 0.5)
               : left != 0         ? left
                                   : copysign(0, b);
    *out = (struct jvalue){ .kind = JV_FLOAT, .f = f };
    return 0;
}

static int repeat(struct jrun *r, const struct jvalue *text, int64_t times, struct jvalue *out)
{
    *out = jstring("", 0);
    if (times <= 0 || text->n == 0)
        return 0;
    char *s = (uint64_t)times > JINJA_MAX_OUTPUT / text->n ? NULL : jarena_alloc(&r->arena, text->n * (size_t)times);
    if (!s)
        return jinja_fail(r->j, r->line, FSDPCK_ERR_LIMIT, r->err, "it makes values of more than %d MiB",
                          JINJA_MAX_OUTPUT >> 20);
    for (int64_t i = 0; i < times; i++)
        memcpy(s + (size_t)i * text->n, text->s, text->n);
    *out = jstring(s, text->n * (size_t)times);
    return 0;
}

static int repeat_list(struct jrun *r, const struct jvalue *list, int64_t times, struct jvalue *out)
{
    int rc = jlist_new(r, 0, out);
    for (int64_t i = 0; i < times && list->list->count && !rc; i++) {
        struct jvalue so_far = *out;
        rc = join_lists(r, &so_far, list, out);
        if (r->steps > JINJA_MAX_STEPS)
            return jfail(r, "it takes more than %d steps", JINJA_MAX_STEPS);
    }
    out->tuple = list->tuple;
    return rc;
}

static bool is_number(const struct jvalue *v)
{
    return v->kind == JV_INT || v->kind == JV_FLOAT || v->kind == JV_BOOL;
}

static int concat(struct jrun *r, const struct jvalue *a, const struct jvalue *b, struct jvalue *out)
{
    struct jvalue x, y;
    int rc = jtext(r, a, &x);
    if (!rc)
        rc = jtext(r, b, &y);
    return rc ? rc : join(r, &x, &y, out);
}

int jbinary(struct jrun *r, enum jop op, const struct jvalue *a, const struct jvalue *b, struct jvalue *out)
{
    static const char *const names[] = { "+", "-", "*", "/", "//", "%" };
    if (op == JO_CONCAT)
        return concat(r, a, b, out);
    if (op == JO_MOD && a->kind == JV_STRING)
        return junsupported(r, "formatting by %% is not in this version");
    if (a->kind == JV_UNDEFINED || b->kind == JV_UNDEFINED)
        return jundefined_error(r, a->kind == JV_UNDEFINED ? a : b);
    if (is_number(a) && is_number(b)) {
        if (op == JO_DIV || a->kind == JV_FLOAT || b->kind == JV_FLOAT)
            return floats(r, op, a->kind == JV_FLOAT ? a->f : (double)a->i, b->kind == JV_FLOAT ? b->f : (double)b->i,
                          out);
        return integers(r, op, a->i, b->i, out);
    }
    if (op == JO_ADD && a->kind == JV_STRING && b->kind == JV_STRING)
        return join(r, a, b, out);
    if (op == JO_ADD && a->kind == JV_LIST && b->kind == JV_LIST && a->tuple == b->tuple)
        return join_lists(r, a, b, out);
    const struct jvalue *many = b->kind == JV_INT || b->kind == JV_BOOL ? a : b, *times = many == a ? b : a;
    if (op == JO_MUL && (times->kind == JV_INT || times->kind == JV_BOOL) &&
        (many->kind == JV_STRING || many->kind == JV_LIST))
        return many->kind == JV_STRING ? repeat(r, many, times->i, out) : repeat_list(r, many, times->i, out);
    return jfail(r, "%s %s %s has no meaning", jkind_name(a), names[op], jkind_name(b));
}
