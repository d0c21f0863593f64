/* SPDX-License-Identifier: Apache-2.0 */
/* Converts the formats of other trainers to messages: ShareGPT conversations; Alpaca's instruction, input and output,
 * joined as LLaMA-Factory does. */
#include <jansson.h>
#include <string.h>

#include "text/chat/impl.h"

static const char *role_of(const char *from)
{
    static const char *const roles[][2] = {
        { "human", "user" },        { "user", "user" },        { "gpt", "assistant" },   { "assistant", "assistant" },
        { "chatgpt", "assistant" }, { "bot", "assistant" },    { "model", "assistant" }, { "system", "system" },
        { "tool", "tool" },         { "observation", "tool" },
    };
    for (size_t i = 0; from && i < sizeof roles / sizeof roles[0]; i++) {
        if (strcmp(from, roles[i][0]) == 0)
            return roles[i][1];
    }
    return NULL;
}

static int add(json_t *messages, const char *role, json_t *content, struct fsdpck_error *err)
{
    json_t *m = json_pack("{s:s,s:O}", "role", role, "content", content);
    return json_array_append_new(messages, m) ? fsdpck_error_nomem(err, 64) : 0;
}

/* Messages that already have "role" are copied unchanged. */
static int add_turn(json_t *messages, json_t *turn, size_t number, struct fsdpck_error *err)
{
    const char *from = json_string_value(json_object_get(turn, "from")), *role = role_of(from);
    json_t *value = json_object_get(turn, "value");
    if (json_object_get(turn, "role"))
        return json_array_append(messages, turn) ? fsdpck_error_nomem(err, 64) : 0;
    if (!from || !json_is_string(value))
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, NULL,
                                "'conversations': entry %zu has no 'from' and 'value' that are strings", number);
    if (!role)
        return fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, NULL,
                                "'conversations': entry %zu is from '%.40s', which is none of human, user, gpt, "
                                "assistant, chatgpt, bot, model, system, tool, observation",
                                number, from);
    return add(messages, role, value, err);
}

static int of_conversations(json_t *conversations, json_t *messages, struct fsdpck_error *err)
{
    json_t *turn;
    size_t i;
    int rc = json_array_size(conversations)
                 ? 0
                 : fsdpck_error_set(err, FSDPCK_ERR_FORMAT, NULL, "'conversations' is no list of at least one turn");
    json_array_foreach (conversations, i, turn) {
        if (!rc)
            rc = add_turn(messages, turn, i, err);
    }
    return rc;
}

static int of_history(json_t *history, json_t *messages, struct fsdpck_error *err)
{
    json_t *pair;
    size_t i;
    int rc = !history || json_is_null(history) || json_is_array(history)
                 ? 0
                 : fsdpck_error_set(err, FSDPCK_ERR_FORMAT, NULL, "'history' is no list of questions and answers");
    json_array_foreach (history, i, pair) {
        if (!rc && (json_array_size(pair) != 2 || !json_is_string(json_array_get(pair, 0)) ||
                    !json_is_string(json_array_get(pair, 1))))
            rc = fsdpck_error_set(err, FSDPCK_ERR_FORMAT, NULL, "'history': entry %zu is no question and answer", i);
        if (!rc)
            rc = add(messages, "user", json_array_get(pair, 0), err);
        if (!rc)
            rc = add(messages, "assistant", json_array_get(pair, 1), err);
    }
    return rc;
}

static int of_instruction(json_t *example, json_t *messages, struct fsdpck_error *err)
{
    json_t *instruction = json_object_get(example, "instruction"), *input = json_object_get(example, "input"),
           *output = json_object_get(example, "output"), *asked;
    if (!json_is_string(instruction) || !json_is_string(output) ||
        (input && !json_is_null(input) && !json_is_string(input)))
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, NULL,
                                "'instruction' and 'output' must both be strings, and 'input' where there is one");
    asked = json_string_length(input) ? json_sprintf("%s\n%s", json_string_value(instruction), json_string_value(input))
                                      : json_incref(instruction);
    int rc = of_history(json_object_get(example, "history"), messages, err);
    if (!rc)
        rc = asked ? add(messages, "user", asked, err) : fsdpck_error_nomem(err, json_string_length(input));
    if (!rc)
        rc = add(messages, "assistant", output, err);
    json_decref(asked);
    return rc;
}

/* Like TRL and LLaMA-Factory, accepts JSON in a string: the columns of a table cannot hold objects of different
 * shapes. */
int chat_tools(json_t *given, json_t **out, struct fsdpck_error *err)
{
    size_t nbytes = json_string_length(given), i;
    json_t *tools = nbytes ? json_loadb(json_string_value(given), nbytes, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL)
                    : json_is_string(given) ? json_null()
                                            : json_incref(given),
           *tool;
    int rc = 0;
    *out = NULL;
    if ((nbytes && !tools) || (tools && !json_is_null(tools) && !json_is_array(tools)))
        rc = fsdpck_error_set(err, FSDPCK_ERR_FORMAT, NULL,
                              "'tools' is neither a list of objects nor the JSON of one in a string");
    json_array_foreach (tools, i, tool) {
        if (!rc && !json_is_object(tool))
            rc = fsdpck_error_set(err, FSDPCK_ERR_FORMAT, NULL, "'tools': entry %zu is no object", i);
    }
    if (!rc && json_is_array(tools))
        *out = json_incref(tools);
    json_decref(tools);
    return rc;
}

int chat_form(json_t *example, json_t **messages, struct fsdpck_error *err)
{
    json_t *conversations = json_object_get(example, "conversations"),
           *instruction = json_object_get(example, "instruction"), *system = json_object_get(example, "system");
    int rc = 0;
    *messages = NULL;
    if (json_object_get(example, "messages") || (!conversations && !instruction))
        return 0;
    if (system && !json_is_null(system) && !json_is_string(system))
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, NULL, "'system' is no string");
    if (!(*messages = json_array()))
        return fsdpck_error_nomem(err, 64);
    if (json_string_length(system))
        rc = add(*messages, "system", system, err);
    if (!rc)
        rc = conversations ? of_conversations(conversations, *messages, err) : of_instruction(example, *messages, err);
    if (rc) {
        json_decref(*messages);
        *messages = NULL;
    }
    return rc;
}
