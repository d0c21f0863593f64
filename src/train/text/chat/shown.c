/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that a rendered conversation shows the content of its messages: templates drop unknown content silently. */
#include <jansson.h>
#include <string.h>

#include "text/chat/impl.h"

enum { TAIL = 24 };

const char *chat_note_text(enum chat_note note)
{
    static const char *const texts[] = {
        "\"tools\" that the chat template does not show",
        "reasoning in their last turn that the chat template does not show",
        "content beside tool_calls that the chat template does not show",
        "a turn of the assistant that begins within a token, which is not trained on",
    };
    return texts[note];
}

struct shown {
    const struct chat_turns *turns;
    bool whole;
};

static bool holds(const char *s, size_t begin, size_t end, const char *part, size_t nbytes)
{
    return end > begin && memmem(s + begin, end - begin, part, nbytes) != NULL;
}

static bool is_shown(const struct shown *s, const char *part, size_t nbytes)
{
    const struct jinja_output *full = &s->turns->full;
    bool found = s->whole && holds(full->text, 0, full->nbytes, part, nbytes);
    for (size_t i = 0; i < s->turns->nspans && !s->whole && !found; i++)
        found = holds(full->text, s->turns->spans[i].begin, s->turns->spans[i].end, part, nbytes);
    return found;
}

/* Searches for the last word only: templates strip or rewrite the text before it (white space, a thought in tags). JSON
 * values and lists are not checked. */
static bool text_is_shown(const struct shown *s, const json_t *text)
{
    const char *t = json_string_value(text);
    size_t end = json_string_length(text), begin = end;
    while (end > 0 && strchr(" \t\r\n", t[end - 1]))
        end--;
    for (begin = end; begin > 0 && end - begin < TAIL && !strchr(" \t\r\n>", t[begin - 1]);)
        begin--;
    return !t || end == begin || is_shown(s, t + begin, end - begin);
}

/* A name that JSON does not escape. */
static bool is_plain(const char *name)
{
    return name && *name &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") == strlen(name);
}

static int check_calls(const struct shown *s, json_t *message, size_t number, struct fsdpck_error *err)
{
    json_t *calls = json_object_get(message, "tool_calls"), *call;
    size_t i;
    json_array_foreach (calls, i, call) {
        json_t *function = json_object_get(call, "function");
        const char *name = json_string_value(json_object_get(function ? function : call, "name"));
        if (!is_plain(name) || is_shown(s, name, strlen(name)))
            continue;
        fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, NULL,
                         "message %zu calls the tool '%.60s', and the chat template does not show tool_calls: nothing "
                         "of the call would be learnt",
                         number, name);
        fsdpck_error_hint(err, "give the model a chat template that renders tool_calls, or put the call into "
                               "\"content\" in the model's own words");
        return FSDPCK_ERR_UNSUPPORTED;
    }
    return 0;
}

int chat_check_calls(const struct jinja_output *text, json_t *message, size_t number, struct fsdpck_error *err)
{
    const struct chat_turns turns = { .full = *text };
    const struct shown s = { &turns, true };
    return check_calls(&s, message, number, err);
}

/* Notes the tools as missing if the text is the same without them. */
static int check_tools(const struct chat *c, json_t *messages, const struct chat_turns *turns, unsigned *notes,
                       struct fsdpck_error *err)
{
    struct jinja_output without = { 0 };
    const struct chat_part all = { .count = json_array_size(messages) };
    bool rendered;
    int rc = chat_run_first(c, messages, NULL, &all, &without, &rendered, err);
    if (!rc && rendered && without.nbytes == turns->full.nbytes &&
        memcmp(without.text, turns->full.text, without.nbytes) == 0)
        *notes |= 1u << CHAT_NOTE_TOOLS;
    jinja_output_free(&without);
    return rc;
}

int chat_check_shown(const struct chat *c, json_t *messages, json_t *tools, const struct chat_turns *turns,
                     bool last_only, bool whole, unsigned *notes, struct fsdpck_error *err)
{
    const struct shown s = { turns, whole };
    size_t n = json_array_size(messages), last = n;
    int rc = json_array_size(tools) ? check_tools(c, messages, turns, notes, err) : 0;
    for (size_t i = 0; i < n; i++)
        last = chat_is_assistant(json_array_get(messages, i)) ? i : last;
    for (size_t i = last_only ? last : 0; i < n && !rc; i++) {
        json_t *m = json_array_get(messages, i);
        if (!chat_is_assistant(m))
            continue;
        rc = check_calls(&s, m, i, err);
        if (json_array_size(json_object_get(m, "tool_calls")) && !text_is_shown(&s, json_object_get(m, "content")))
            *notes |= 1u << CHAT_NOTE_CONTENT;
        if (i == last && !text_is_shown(&s, chat_reasoning(m)))
            *notes |= 1u << CHAT_NOTE_REASONING;
    }
    return rc;
}
