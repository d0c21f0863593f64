/* What the interop checks talk to: reads {"template": …, "context": {…}} a line, writes {"text", "spans"} (bytes of {% generation %}) or {"error"}. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja.h"

static json_t *render(json_t *o)
{
    struct fsdpck_error err = { 0 };
    struct jinja *j;
    struct jinja_output out = { 0 };
    json_t *template = json_object_get(o, "template");
    int rc = jinja_parse("template", json_string_value(template), json_string_length(template), &j, &err);
    if (!rc)
        rc = jinja_render(j, json_object_get(o, "context"), 0, &out, &err);
    json_t *spans = json_array(), *result;
    for (size_t i = 0; !rc && i < out.nspans; i++)
        json_array_append_new(spans, json_pack("[I,I]", (json_int_t)out.spans[i].begin, (json_int_t)out.spans[i].end));
    result = rc ? json_pack("{s:s,s:i}", "error", err.message, "code", err.code)
                : json_pack("{s:o,s:O}", "text", json_stringn_nocheck(out.text, out.nbytes), "spans", spans);
    json_decref(spans);
    jinja_output_free(&out);
    jinja_free(j);
    return result;
}

int main(void)
{
    char *line = NULL;
    size_t capacity = 0;
    ssize_t n;
    while ((n = getline(&line, &capacity, stdin)) > 0) {
        json_t *o = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, NULL), *result = render(o);
        json_dumpf(result, stdout, JSON_COMPACT | JSON_ENSURE_ASCII);
        putchar('\n');
        json_decref(result);
        json_decref(o);
    }
    free(line);
    return 0;
}
