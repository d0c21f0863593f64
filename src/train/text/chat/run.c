/* SPDX-License-Identifier: Apache-2.0 */
/* Renders a conversation as transformers does: the whole, the first messages, or with the texts of one message
 * replaced. Knows nothing of tokens or masks. */
#include <jansson.h>
#include <string.h>

#include "text/chat/impl.h"

/* The keys under which a message may have its reasoning, in transformers' order of preference. */
static const char *const reasoning_keys[] = { "reasoning_content", "thinking", "reasoning" };
enum { NREASONING = 3 };

json_t *chat_reasoning(json_t *message)
{
    for (int i = 0; i < NREASONING; i++) {
        json_t *value = json_object_get(message, reasoning_keys[i]);
        if (value && !json_is_null(value))
            return value;
    }
    return NULL;
}

bool chat_is_assistant(json_t *message)
{
    return strcmp(json_string_value(json_object_get(message, "role")), "assistant") == 0;
}

static bool says_something(json_t *message)
{
    const char *key;
    json_t *value;
    json_object_foreach (message, key, value) {
        if (strcmp(key, "role") != 0 && !json_is_null(value))
            return true;
    }
    return false;
}

static int check_messages(json_t *messages, struct fsdpck_error *err)
{
    size_t i;
    json_t *m;
    if (json_array_size(messages) == 0)
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, NULL, "'messages' is no list of at least one message");
    json_array_foreach (messages, i, m) {
        if (!json_is_string(json_object_get(m, "role")))
            return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, NULL, "message %zu has no role", i);
        if (!says_something(m)) /* many templates would render an empty turn */
            return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, NULL, "message %zu has a role and nothing else", i);
    }
    return 0;
}

/* As in apply_chat_template of transformers 5: keys whose value is null are dropped; the reasoning goes to
 * "reasoning_content", and to "thinking" unless the message has that key. */
static json_t *normal_message(json_t *message)
{
    json_t *reasoning = chat_reasoning(message), *m = json_object(), *value;
    const char *key;
    bool ok = m && (!reasoning || json_object_set(m, "thinking", reasoning) == 0);
    json_object_foreach (message, key, value)
        ok = ok && (json_is_null(value) || json_object_set(m, key, value) == 0);
    if (ok && (!reasoning || json_object_set(m, "reasoning_content", reasoning) == 0))
        return m;
    json_decref(m);
    return NULL;
}

static json_t *normal_messages(json_t *messages)
{
    json_t *list = json_array(), *m;
    size_t i;
    json_array_foreach (messages, i, m) {
        if (list && json_array_append_new(list, normal_message(m))) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}

static int no_template(struct fsdpck_error *err)
{
    fsdpck_error_set(err, FSDPCK_ERR_MISSING, NULL,
                     "the model's folder has no chat template, and conversations need one");
    fsdpck_error_hint(err, "put a chat_template.jinja into it, or give the data as prompt and completion, or as text");
    return FSDPCK_ERR_MISSING;
}

int chat_run(const struct chat *c, json_t *messages, json_t *tools, bool generation_prompt, struct jinja_output *out,
             struct fsdpck_error *err)
{
    int rc = c->jinja ? check_messages(messages, err) : no_template(err);
    if (rc)
        return rc;
    json_t *context = json_object();
    bool ok = context && json_object_update(context, c->special) == 0 &&
              json_object_set_new(context, "messages", normal_messages(messages)) == 0 &&
              json_object_set_new(context, "add_generation_prompt", json_boolean(generation_prompt)) == 0 &&
              json_object_set_new(context, "documents", json_null()) == 0 &&
              json_object_set_new(context, "tools", tools ? json_incref(tools) : json_null()) == 0;
    rc = ok ? jinja_render(c->jinja, context, c->now, out, err) : fsdpck_error_nomem(err, 1024);
    json_decref(context);
    return rc;
}

/* Replaces each text by `letter`. Returns false if there was none. */
static bool replace_text(json_t *object, const char *key, const char *letter)
{
    json_t *value = json_object_get(object, key), *item;
    size_t i;
    bool found = json_string_length(value) > 0;
    if (found)
        json_object_set_new(object, key, json_string(letter));
    json_array_foreach (value, i, item) {
        if (json_is_string(item))
            json_array_set_new(value, i, json_string(letter));
        found |= json_is_string(item) || replace_text(item, "text", letter);
    }
    return found;
}

/* A copy of the message in which `letter` replaces each text of its author: content, reasoning, names of called
 * functions. */
static json_t *with_letter(json_t *message, const char *letter)
{
    json_t *m = json_deep_copy(message), *calls = json_object_get(m, "tool_calls"), *call;
    size_t i;
    for (i = 0; i < NREASONING; i++)
        replace_text(m, reasoning_keys[i], letter);
    json_array_foreach (calls, i, call) {
        json_t *function = json_object_get(call, "function");
        replace_text(function ? function : call, "name", letter);
    }
    if (!replace_text(m, "content", letter) && json_array_size(calls) == 0)
        json_object_set_new(m, "content", json_string(letter));
    return m;
}

int chat_run_first(const struct chat *c, json_t *messages, json_t *tools, const struct chat_part *part,
                   struct jinja_output *out, bool *rendered, struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    json_t *list = json_array();
    for (size_t i = 0; list && i < part->count; i++) {
        json_t *m = json_array_get(messages, i);
        json_array_append_new(list, part->letter && i == part->varied ? with_letter(m, part->letter) : json_incref(m));
    }
    int rc = json_array_size(list) == part->count ? chat_run(c, list, tools, part->prompt, out, &own)
                                                  : fsdpck_error_nomem(&own, part->count * sizeof list);
    json_decref(list);
    *rendered = !rc;
    if (rc ==
        FSDPCK_ERR_FORMAT) /* a template may reject the first messages of a conversation that it accepts as a whole */
        return 0;
    if (rc && err && !err->code)
        *err = own;
    return rc;
}
