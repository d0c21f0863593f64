/* SPDX-License-Identifier: Apache-2.0 */
/* Server for the interop checks: reads {"template": …, "context": {…}} per line, writes {"text", "spans"} (bytes of {%
 * generation %}) or {"error"}. With "turns": true it renders the context's messages as training does, and spans are the
 * turns of the assistant; with "last": true, only the last turn. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/chat/impl.h"

static int find_turns(struct jinja *j, json_t *o, struct chat_turns *turns, struct fsdpck_error *err)
{
    json_t *context = json_object_get(o, "context"), *tools = json_object_get(context, "tools");
    const struct chat c = { .jinja = j, .special = context };
    return chat_find_turns(&c, json_object_get(context, "messages"), json_is_null(tools) ? NULL : tools,
                           json_is_true(json_object_get(o, "last")), turns, err);
}

static json_t *render(json_t *o)
{
    struct fsdpck_error err = { 0 };
    struct jinja *j;
    struct chat_turns turns = { 0 };
    struct jinja_output *out = &turns.full;
    bool wants_turns = json_is_true(json_object_get(o, "turns"));
    json_t *template = json_object_get(o, "template");
    int rc = jinja_parse("template", json_string_value(template), json_string_length(template), &j, &err);
    if (!rc)
        rc =
            wants_turns ? find_turns(j, o, &turns, &err) : jinja_render(j, json_object_get(o, "context"), 0, out, &err);
    const struct jinja_span *found = wants_turns ? turns.spans : out->spans;
    json_t *spans = json_array(), *result;
    for (size_t i = 0; !rc && i < (wants_turns ? turns.nspans : out->nspans); i++)
        json_array_append_new(spans, json_pack("[I,I]", (json_int_t)found[i].begin, (json_int_t)found[i].end));
    result = rc ? json_pack("{s:s,s:i}", "error", err.message, "code", err.code)
                : json_pack("{s:o,s:O}", "text", json_stringn_nocheck(out->text, out->nbytes), "spans", spans);
    json_decref(spans);
    chat_turns_free(&turns);
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
