/* SPDX-License-Identifier: Apache-2.0 */
/* Filters that make a number. */
#include "text/jinja/filters.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

int jfilter_int(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
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

int jfilter_float(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    (void)args;
    if (v->kind != JV_INT && v->kind != JV_FLOAT && v->kind != JV_BOOL)
        return junsupported(r, "float of %s is not in this version", jkind_name(v));
    *out = (struct jvalue){ .kind = JV_FLOAT, .f = v->kind == JV_FLOAT ? v->f : (double)v->i };
    return 0;
}

int jfilter_abs(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    (void)args;
    if ((v->kind != JV_INT || v->i == INT64_MIN) && v->kind != JV_FLOAT)
        return jfail(r, "abs of %s", jkind_name(v));
    *out = v->kind == JV_INT ? jint(v->i < 0 ? -v->i : v->i) : (struct jvalue){ .kind = JV_FLOAT, .f = fabs(v->f) };
    return 0;
}
