/* SPDX-License-Identifier: Apache-2.0 */
/* The table of filters. The parser resolves their names: a name that is not in this table is rejected when the template
 * is parsed. */
#include "text/jinja/filters.h"

static int filter_default(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    const struct jvalue *otherwise = jarg(args, 0, "default_value"), *falsy = jarg(args, 1, "boolean");
    (void)r;
    bool use = v->kind == JV_UNDEFINED || (falsy && jtrue(falsy) && !jtrue(v));
    *out = !use ? *v : otherwise ? *otherwise : jstring("", 0);
    return 0;
}

static const struct {
    const char *name;
    jfilter_fn *run;
} filters[] = {
    { "abs", jfilter_abs },
    { "capitalize", jfilter_capitalize },
    { "count", jfilter_length },
    { "d", filter_default },
    { "default", filter_default },
    { "dictsort", jfilter_dictsort },
    { "first", jfilter_first },
    { "float", jfilter_float },
    { "indent", jfilter_indent },
    { "int", jfilter_int },
    { "items", jfilter_items },
    { "join", jfilter_join },
    { "last", jfilter_last },
    { "length", jfilter_length },
    { "list", jfilter_list },
    { "lower", jfilter_lower },
    { "map", jfilter_map },
    { "reject", jfilter_reject },
    { "rejectattr", jfilter_rejectattr },
    { "replace", jfilter_replace },
    { "reverse", jfilter_reverse },
    { "safe", jfilter_string },
    { "select", jfilter_select },
    { "selectattr", jfilter_selectattr },
    { "string", jfilter_string },
    { "title", jfilter_title },
    { "tojson", jfilter_tojson },
    { "trim", jfilter_trim },
    { "unique", jfilter_unique },
    { "upper", jfilter_upper },
};

int jfilter_find(const char *s, size_t n)
{
    for (size_t i = 0; i < sizeof filters / sizeof filters[0]; i++) {
        if (jname_is(s, n, filters[i].name))
            return (int)i;
    }
    return -1;
}

int jfilter(struct jrun *r, int filter, const struct jvalue *v, const struct jargs *args, struct jvalue *out)
{
    if (r->depth >= 4 * JINJA_MAX_DEPTH) /* limits chains such as map of map */
        return jfail(r, "filters of filters of filters");
    r->depth++;
    int rc = filters[filter].run(r, v, args, out);
    r->depth--;
    return rc;
}
